"""Low-rank adapters added after sharding. FSDP2 manages only what it saw when it wrapped, so an adapter's
gradient is this rank's alone until a hook sums it: over every replica, and over tp where both ranks' parts
of the output, or of the input, run through the same factor."""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist
from torch import nn

from parallelize import WRAPPER, Parallel
from optim import adamw
from plan import PlanError, Row


def add_lora(run: Parallel) -> list[torch.optim.Optimizer]:
    """Freezes the base and gives every target an adapter; returns the adapters' optimizer."""
    options = run.plan.lora
    for module in run.chunks.values():
        module.requires_grad_(False)
    adapters: list[nn.Parameter] = []
    for module in run.chunks.values():
        for name, child in list(module.named_modules()):
            path = name.replace(WRAPPER, "")
            if path.endswith(tuple(f".{target}" for target in options["targets"])):
                adapters += adapt(run, child, run.plan.rows[f"{path}.weight"], options)
    run.applied.append("lora")
    return [adamw([{"params": adapters}], run.plan.optimizers["adamw"])] if adapters else []


def adapt(run: Parallel, child: nn.Module, row: Row, options: dict) -> list[nn.Parameter]:
    cut = row.cut_over("tp")
    if row.expert or (cut and cut.shared_rows(run.plan.degrees["tp"])):
        raise PlanError(f"`{row.path}` takes no adapter: experts and shared heads need gradient sums of their own")
    down = draw(f"{row.path}.lora_a", (options["rank"], row.shape[1])) * row.shape[1] ** -0.5
    up = torch.zeros(row.shape[0], options["rank"])
    if cut:
        index = cut.index(run.plan.degrees["tp"], run.meshes.at("tp"))
        down, up = (down[:, index], up) if cut.dim == 1 else (down, up[index])
    dtype = next(child.parameters()).dtype
    a, b = (nn.Parameter(t.to(run.device, dtype)) for t in (down, up))
    replicas, tp = run.meshes.group("dp"), run.meshes.group("tp")
    # A factor that tp did not cut saw only this rank's part of the sum: its gradient is partial over tp.
    partial = {"a": cut is not None and cut.dim == 0, "b": cut is not None and cut.dim == 1}
    for name, factor in (("a", a), ("b", b)):
        whole_elsewhere = cut is None and run.plan.sequence_parallel
        groups = [replicas] + ([tp] if partial[name] or whole_elsewhere else [])
        factor.register_hook(summing(groups))
        child.register_parameter(f"lora_{name}", factor)
    scale = options["alpha"] / options["rank"]
    child.register_forward_hook(lambda m, args, out: out + low_rank(args[0], m, scale))
    return [a, b]


def low_rank(x: torch.Tensor, module: nn.Module, scale: float) -> torch.Tensor:
    return (x @ module.lora_a.to(x.dtype).T) @ module.lora_b.to(x.dtype).T * scale


def draw(path: str, shape: tuple[int, int]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(path.encode())))


def summing(groups: list[dist.ProcessGroup]):
    """A hook on a gradient: summed over each group before it is accumulated."""

    def hook(grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        for group in groups:
            dist.all_reduce(grad, group=group)
        return grad

    return hook
