"""The run under torch_xla: the torch reference, annotated, and traced micro-steps. Only what names the framework is
here: optimizer, data and checkpoints are the text that also runs under JAX."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as spmd
import torch_xla.runtime as runtime

import table as tables
from initial import initial
from lines import Peak
from model import Hybrid
from moe import Router, move_expert_biases
from optimizer import STATE, clip_scale, norm_of, update
from tensors import Reader, Tensor


class TorchXlaRun:
    """Parameters and optimizer state where the table puts them, and the steps that move them."""

    def __init__(self, table: tables.Table):
        self.table, raw = table, table.raw
        model = Hybrid(raw["model"], list(range(len(raw["model"]["layers"]))), True, True)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(initial(path, raw["shapes"][path], raw["model"]["init_std"])))
        self.routers = [module for module in model.modules() if isinstance(module, Router)]
        for router in self.routers:
            router.batch = (raw["batch"]["global_batch"], raw["batch"]["sequence"])
        self.device = torch_xla.device()
        self.model = model.to(self.device)
        self.mesh = tables.mark_torch_xla(table, self.model)
        self.params = dict(self.model.named_parameters())
        self.state = {path: {name: self.fresh(path, name) for name in STATE[raw["optimizer_of"][path]]} for path in self.params}
        # Of the last step's gradients, before they were clipped.
        self.norm: float | None = None
        self.micro_step, self.apply = torch_xla.compile(self.forward_backward), torch_xla.compile(self.moved)

    def fresh(self, path: str, name: str) -> torch.Tensor:
        if name == "step":
            return torch.zeros((), device=self.device)
        value = torch.zeros(self.table.raw["shapes"][path], device=self.device)
        spmd.mark_sharding(value, self.mesh, tables.torch_xla_spec(self.table.parameters[path]))
        return value

    def forward_backward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One micro-step's part of the loss; gradients add up in the parameters."""
        logits = self.model(tokens[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten()) / self.table.raw["batch"]["microbatches"]
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def moved(self, factor: torch.Tensor) -> torch.Tensor:
        raw = self.table.raw
        norm = norm_of([p.grad for p in self.params.values()])
        scale = clip_scale(norm, raw["run"]["clip"])
        for path, parameter in self.params.items():
            kind, state = raw["optimizer_of"][path], self.state[path]
            value, kept = update(kind, raw["optimizers"][kind], parameter, parameter.grad * scale, state, factor)
            parameter.copy_(value)
            for name, fresh in kept.items():
                state[name].copy_(fresh)
            parameter.grad = None
        # One program over the mesh: counts are of all devices already.
        move_expert_biases(self.routers, lambda counts: counts)
        return norm

    def step(self, stream, position: int, factor: float) -> float:
        """A global batch, one micro-step behind another."""
        size, losses = self.table.raw["batch"], []
        count = size["global_batch"] // size["microbatches"]
        for number in range(size["microbatches"]):
            tokens = torch.from_numpy(stream.rows(position + number * count, count)).to(self.device)
            spmd.mark_sharding(tokens, self.mesh, tables.torch_xla_spec(self.table.raw["data"]))
            losses.append(self.micro_step(tokens))
        norm = self.apply(torch.tensor(factor, dtype=torch.float32).to(self.device))
        self.norm = norm.item()
        return sum(loss.item() for loss in losses)

    def about(self) -> tuple[dict[str, str], int, str]:
        """Versions, devices of the run, and their kind."""
        versions = {"torch": torch.__version__, "torch_xla": torch_xla.__version__}
        return versions, runtime.global_runtime_device_count(), runtime.device_type() or "unknown"

    def peaks(self) -> list[Peak]:
        """The most that XLA held on a device of this host since the start; nothing where the runtime does not say."""
        try:
            held = [xm.get_memory_info(device).get("peak_bytes_used", 0) for device in xm.get_xla_supported_devices()]
        except (RuntimeError, AttributeError, KeyError):
            return []
        rank = max(range(len(held)), key=lambda rank: held[rank], default=0)
        return [Peak("max_used", held[rank], rank)] if held and held[rank] else []

    def arrays(self) -> dict[str, torch.Tensor]:
        model = {f"model.{path}": value for path, value in self.model.state_dict(keep_vars=True).items()}
        return model | {f"optimizer.{p}.{n}": value for p, state in self.state.items() for n, value in state.items()}

    def tensors(self) -> dict[str, Tensor]:
        def get(value: torch.Tensor) -> np.ndarray:
            return value.detach().cpu().numpy()

        return {key: (tuple(v.shape), str(v.dtype).removeprefix("torch."), lambda v=v: get(v)) for key, v in self.arrays().items()}

    def load(self, reader: Reader) -> None:
        with torch.no_grad():
            for key, value in self.arrays().items():
                value.copy_(torch.from_numpy(reader.block(key)).to(self.device))

    def is_writer(self) -> bool:
        return runtime.process_index() == 0

    def meet(self, why: str) -> None:
        if runtime.process_count() > 1:
            xm.rendezvous(why)

    def agreed(self, is_asked: bool) -> bool:
        """Whether any process was asked to end."""
        return xm.mesh_reduce("ending", is_asked, any) if runtime.process_count() > 1 else is_asked
