"""Low-rank adapters added after sharding. FSDP2 manages only what it saw when it wrapped, so that a factor is
whole on every replica, and its gradient is this rank's alone until a hook sums it: over replicas, and over tp
where each rank makes a part of it. Which factor is cut over tp, and which is summed, the plan's rows say."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from moe import Bank, grouped
from optim import of_elements, sum_shared
from parallelize import DTYPES, WRAPPER, Parallel
from plan import Plan, PlanError, Row


def add_lora(run: Parallel) -> list[torch.optim.Optimizer]:
    """Freezes what the plan does not train, adds the plan's factors, and returns their optimizer."""
    for row, parameter in run.parameters():
        parameter.requires_grad_(row.trained)
    adapters: list[nn.Parameter] = []
    for module in run.chunks.values():
        for name, child in list(module.named_modules()):
            path = name.replace(WRAPPER, "")
            if f"{path}.lora_a" in run.plan.rows:
                adapters += adapt(run, child, path)
    run.applied.append("lora")
    # A stage may hold none.
    return [of_elements(run.plan, [{"params": adapters}])] if adapters else []


def adapt(run: Parallel, child: nn.Module, path: str) -> list[nn.Parameter]:
    """Registers both factors beside a projection or a bank of them, with their hooks."""
    rows = [run.plan.rows[f"{path}.lora_{name}"] for name in "ab"]
    at, dtype = run.meshes.coordinates(), DTYPES[run.plan.precision["main"]]
    factors = []
    for row, whole in zip(rows, (drawn(rows[0]), torch.zeros(rows[1].shape))):
        part = row.part(whole, run.plan.degrees, at)
        factor = nn.Parameter(part.to(run.device, dtype))
        factor.register_hook(summing(run, row))
        child.register_parameter(row.path.rpartition(".")[2], factor)
        factors.append(factor)
    if run.plan.ways["adapters"] == "peft":
        if isinstance(child, Bank):
            raise PlanError(f"`{path}`: peft has no layer for a bank of experts")
        in_layer_of_peft(run.plan, child, factors)
        return factors
    scale = run.plan.lora["alpha"] / run.plan.lora["rank"]
    added = low_rank_of_experts if isinstance(child, Bank) else low_rank
    child.register_forward_hook(lambda module, inputs, out: out + added(module, *inputs) * scale)
    return factors


class Base(nn.Linear):
    """A projection as peft looks at one: whose weight is, at every call, what FSDP2 has put into the projection."""

    def __init__(self, child: nn.Module, rows: int, columns: int):
        nn.Module.__init__(self)
        self.in_features, self.out_features = columns, rows
        self.child, self.run = [child], child.forward

    @property
    def weight(self) -> torch.Tensor:
        return self.child[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


def in_layer_of_peft(plan: Plan, child: nn.Module, factors: list[nn.Parameter]) -> None:
    """Runs a projection inside peft's own layer, which multiplies its fp32 factors in fp32."""
    from peft import LoraConfig
    from peft.tuners.lora import bnb, layer

    low, high = factors
    rank, alpha = plan.lora["rank"], plan.lora["alpha"]
    kept = getattr(child, "held", None)
    base = kept[0] if kept else Base(child, high.shape[0], low.shape[1])
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0)
    made = (bnb.Linear4bit if kept else layer.Linear)(base, "default", config=config, r=rank, lora_alpha=alpha)
    made.lora_A["default"].weight, made.lora_B["default"].weight = low, high
    child.forward = made.forward


def low_rank(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (x @ module.lora_a.to(x.dtype).T) @ module.lora_b.to(x.dtype).T


def low_rank_of_experts(module: Bank, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return grouped(grouped(rows, module.lora_a.to(rows.dtype), ends), module.lora_b.to(rows.dtype), ends)


def drawn(row: Row) -> torch.Tensor:
    """A first value drawn from the path alone, so that no layout changes it."""
    generator = torch.Generator().manual_seed(zlib.crc32(row.path.encode()))
    return torch.randn(row.shape, generator=generator) * row.shape[-1] ** -0.5


def summing(run: Parallel, row: Row) -> Callable[[torch.Tensor], torch.Tensor]:
    """A hook on a factor's gradient: summed before it is accumulated. Experts have replicas of their own, among
    which are tp ranks that hold whole experts."""
    axes = ("edp", "etp") if row.expert else ("dp", "tp")
    replicas, tp = (run.meshes.group(axis) for axis in axes)
    degree, cut = run.plan.degrees[axes[1]], row.cut_over("tp")
    shared = cut.shared_rows(degree) if cut is not None and cut.dim == 0 else []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=replicas)
        if row.tp_gradient == "sum" and degree > 1:
            dist.all_reduce(grad, group=tp)
        for first, end, copies in shared:
            sum_shared(grad, slice(first, end), copies, degree, tp)
        return grad

    return hook
