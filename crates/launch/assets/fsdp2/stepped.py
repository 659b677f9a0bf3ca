"""Optimizers of other libraries, which know nothing of DTensors: each steps this rank's shards as plain tensors that
share their memory. bitsandbytes and torchao keep narrow state in blocks of a shard; a checkpoint holds that state
dequantised, so that other shards can be made of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from pieces import local_of
from plan import PlanError

# Keys of bitsandbytes' state with their scales: what is saved of them is fp32.
BLOCKWISE = {"state1": ("qmap1", "absmax1"), "state2": ("qmap2", "absmax2")}
TABLES = ("qmap1", "qmap2", "absmax1", "absmax2")
BLOCK = 256


def makers(options: dict) -> dict[str, Callable]:
    """How the plan's word for an optimizer makes one, from groups of plain parameters."""
    rate, decay, betas = options["lr"], options["weight_decay"], tuple(options["betas"])

    def of_bitsandbytes(name: str, **chosen) -> Callable:
        def make(groups: list) -> torch.optim.Optimizer:
            import bitsandbytes

            return getattr(bitsandbytes.optim, name)(groups, lr=rate, weight_decay=decay, betas=betas, **chosen)

        return make

    def of_torchao(name: str) -> Callable:
        def make(groups: list) -> torch.optim.Optimizer:
            import torchao.optim

            # Without an fp32 copy, small steps would be lost to rounding.
            chosen = {"eps": options["eps"], "bf16_stochastic_round": True}
            return getattr(torchao.optim, name)(groups, lr=rate, weight_decay=decay, betas=betas, **chosen)

        return make

    def sgd(groups: list) -> torch.optim.Optimizer:
        is_fused = groups[0]["params"][0].is_cuda
        return torch.optim.SGD(groups, lr=rate, momentum=betas[0], weight_decay=decay, fused=is_fused)

    def soap(groups: list) -> torch.optim.Optimizer:
        from pytorch_optimizer import SOAP

        return SOAP(groups, lr=rate, betas=betas, weight_decay=decay, eps=options["eps"])

    def shampoo(groups: list) -> torch.optim.Optimizer:
        import shampoo as of_matrices

        return of_matrices.make(groups, options)

    return {
        "adamw8bit": of_bitsandbytes("AdamW8bit", eps=options["eps"]),
        "paged-adamw": of_bitsandbytes("PagedAdamW32bit", eps=options["eps"]),
        "paged-adamw8bit": of_bitsandbytes("PagedAdamW8bit", eps=options["eps"]),
        "lion": of_bitsandbytes("Lion"),
        "lion8bit": of_bitsandbytes("Lion8bit"),
        # One tensor at a time: `foreach` would make the second moments of all of them at once.
        "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=rate, weight_decay=decay, foreach=False),
        "sgd": sgd,
        "soap": soap,
        "shampoo": shampoo,
        "ao-adamw8bit": of_torchao("AdamW8bit"),
        "ao-adamw4bit": of_torchao("AdamW4bit"),
        "ao-adamwfp8": of_torchao("AdamWFp8"),
    }


class Stepped:
    """An optimizer over shards. Behaves to the trainer as torch's own do."""

    is_portable = True

    def __init__(self, name: str, groups: list, options: dict):
        known = makers(options)
        if name not in known:
            raise PlanError(f"optimizer `{name}` is none of adamw, {', '.join(known)}")
        self.leaves: dict[nn.Parameter, nn.Parameter] = {}
        for group in groups:
            for parameter in group["params"]:
                # A rank may hold no rows of a small tensor.
                if local_of(parameter).numel():
                    self.leaves[parameter] = nn.Parameter(local_of(parameter.detach()))
        kept = [[self.leaves[p] for p in group["params"] if p in self.leaves] for group in groups]
        self.inner = known[name]([{"params": leaves} for leaves in kept if leaves])
        self.incoming: dict[nn.Parameter, dict[str, torch.Tensor]] = {}

    @property
    def param_groups(self) -> list[dict]:
        return self.inner.param_groups

    def step(self) -> None:
        for parameter, leaf in self.leaves.items():
            leaf.grad = None if parameter.grad is None else local_of(parameter.grad)
        self.inner.step()

    def zero_grad(self) -> None:
        for parameter, leaf in self.leaves.items():
            parameter.grad = leaf.grad = None

    def saved(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """State as it is saved: tensors like the shard in fp32 on the host, and scalars."""
        if parameter in self.incoming:
            return self.incoming[parameter]
        state = self.inner.state.get(self.leaves.get(parameter), {})
        found = {}
        for name, value in state.items():
            if name in TABLES or value is None:
                continue
            if not torch.is_tensor(value):
                value = torch.tensor(float(value))
            elif value.dtype == torch.uint8:
                value = dequantised(value, *(state[key] for key in BLOCKWISE[name]))
            elif hasattr(value, "codes"):
                value = value.dequantize()
            found[name] = value.detach().cpu()
        return found

    def expect(self, parameter: nn.Parameter, names: set[str]) -> None:
        """Room for state that a checkpoint is about to fill."""
        leaf = self.leaves.get(parameter)
        if leaf is not None and names:
            self.incoming[parameter] = {name: torch.zeros(self.shape(leaf, name)) for name in names}

    @staticmethod
    def shape(leaf: nn.Parameter, name: str) -> tuple[int, ...]:
        rows = {"step": (), "row_var": (*leaf.shape[:-1], 1), "col_var": (*leaf.shape[:-2], 1, leaf.shape[-1])}
        return rows.get(name, tuple(leaf.shape))

    def take(self) -> None:
        """Makes the optimizer's own state of what was read."""
        for parameter, values in self.incoming.items():
            leaf = self.leaves[parameter]
            state = self.inner.state[leaf]
            for name, value in values.items():
                state[name] = self.made(state, name, value, leaf)
        self.incoming = {}

    def made(self, state: dict, name: str, value: torch.Tensor, leaf: nn.Parameter):
        if name == "step":
            # bitsandbytes counts in Python, torch in a tensor on the host.
            return int(value) if hasattr(self.inner, "name2qmap") else value
        if hasattr(self.inner, "_new_buffer"):
            # torchao's own, which it quantises or not.
            return self.inner._new_buffer(leaf, name == "exp_avg").copy_(value.to(leaf.device))
        if name in BLOCKWISE and self.is_blockwise(leaf):
            qmap, absmax = BLOCKWISE[name]
            code = self.inner.name2qmap["dynamic" if name == "state1" else "udynamic"].to(leaf.device)
            self.inner.name2qmap["dynamic" if name == "state1" else "udynamic"] = state[qmap] = code
            value, state[absmax] = quantised(value.to(leaf.device), code)
            return value
        return value.to(leaf.device)

    def is_blockwise(self, leaf: nn.Parameter) -> bool:
        return getattr(self.inner, "args", None) is not None and self.inner.args.optim_bits == 8 and leaf.numel() >= 4096


def quantised(value: torch.Tensor, code: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from bitsandbytes import functional

    packed, state = functional.quantize_blockwise(value.float(), code=code, blocksize=BLOCK)
    return packed, state.absmax


def dequantised(value: torch.Tensor, code: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
    from bitsandbytes import functional

    return functional.dequantize_blockwise(value, absmax=absmax, code=code, blocksize=BLOCK)


class Int8:
    """Momenta of Muon in int8 with one fp32 scale for 256 elements of a shard, the largest of which is 127."""

    def __init__(self):
        self.of: dict[nn.Parameter, tuple[torch.Tensor, torch.Tensor]] = {}
        self.incoming: dict[nn.Parameter, dict[str, torch.Tensor]] = {}

    def follow(self, parameter: nn.Parameter, decay: float) -> torch.Tensor:
        """The momentum of this step, in fp32, shaped and sharded as the gradient is."""
        grad = parameter.grad
        local = local_of(grad)
        wide = local.new_zeros(-(-local.numel() // BLOCK) * BLOCK)
        if parameter in self.of:
            codes, scale = self.of[parameter]
            torch.mul(codes, scale, out=wide.view(-1, BLOCK))
            wide.mul_(decay)
        wide[: local.numel()].add_(local.reshape(-1))
        self.keep(parameter, wide)
        momentum = wide[: local.numel()].view_as(local)
        if not isinstance(grad, DTensor):
            return momentum
        whole = {"shape": grad.shape, "stride": grad.stride()}
        return DTensor.from_local(momentum, grad.device_mesh, grad.placements, run_check=False, **whole)

    def keep(self, parameter: nn.Parameter, wide: torch.Tensor) -> None:
        blocks = wide.view(-1, BLOCK)
        scale = torch.linalg.vector_norm(blocks, float("inf"), dim=1, keepdim=True).div_(127.0)
        if parameter not in self.of:
            self.of[parameter] = torch.empty_like(blocks, dtype=torch.int8), torch.empty_like(scale)
        for kept, new in zip(self.of[parameter], (blocks.div(scale.clamp(min=1e-30)).round_(), scale)):
            kept.copy_(new)

    def saved(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        if parameter in self.incoming or parameter not in self.of:
            return self.incoming.get(parameter, {})
        (codes, scale), local = self.of[parameter], local_of(parameter)
        return {"momentum": (codes * scale).flatten()[: local.numel()].view_as(local).cpu()}

    def expect(self, parameter: nn.Parameter, names: set[str]) -> None:
        if "momentum" in names and local_of(parameter).numel():
            self.incoming[parameter] = {"momentum": torch.zeros(local_of(parameter).shape)}

    def take(self) -> None:
        for parameter, values in self.incoming.items():
            local = local_of(parameter)
            wide = torch.zeros(-(-local.numel() // BLOCK) * BLOCK, device=local.device)
            wide[: local.numel()] = values["momentum"].flatten().to(local.device)
            self.keep(parameter, wide)
        self.incoming = {}


class Average:
    """An exponential average of the trained weights, in fp32, over this rank's shards."""

    def __init__(self, decay: float):
        self.decay, self.of = decay, {}

    @torch.no_grad()
    def begin(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self.of:
                self.of[parameter] = torch.empty_like(local_of(parameter), dtype=torch.float32).copy_(local_of(parameter))

    @torch.no_grad()
    def __call__(self, parameters: list[nn.Parameter]) -> None:
        """Follows one step; the first makes copies."""
        self.begin(parameters)
        for parameter in parameters:
            local = local_of(parameter)
            if local.dtype == torch.float32:
                self.of[parameter].lerp_(local, 1 - self.decay)
            else:
                self.of[parameter].mul_(self.decay).add_(local, alpha=1 - self.decay)
