"""Collectives with their transposes, each pair beside one another. A group of one is the identity."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import nn

Group = dist.ProcessGroup


@functools.cache
def on_hosts() -> Group:
    """All ranks by gloo: for what is no work for a device's memory, such as names and plans."""
    return dist.new_group(backend="gloo")


def gather_along(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """All-gather, concatenated along `dim` in rank order."""
    whole = x.new_empty(group.size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole.unflatten(0, (group.size(), -1)).movedim(0, dim).flatten(dim, dim + 1)


def scatter_sum_along(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """Reduce-scatter: the sum over the group, of which each rank keeps its part along `dim`."""
    parts = x.unflatten(dim, (group.size(), -1)).movedim(dim, 0).contiguous()
    if dist.get_backend(group) == "gloo":
        # gloo has no reduce-scatter in every release; a sum of the whole is the same number.
        dist.all_reduce(parts, group=group)
        return parts[group.rank()].clone()
    out = torch.empty_like(parts[0])
    dist.reduce_scatter_tensor(out, parts, group=group)
    return out


def summed(x: torch.Tensor, group: Group) -> torch.Tensor:
    """All-reduce into a new tensor."""
    out = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out, group=group)
    return out


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return gather_along(x, dim, group)

    @staticmethod
    def backward(ctx, grad):
        return scatter_sum_along(grad, ctx.dim, ctx.group), None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return scatter_sum_along(x, dim, group)

    @staticmethod
    def backward(ctx, grad):
        return gather_along(grad, ctx.dim, ctx.group), None, None


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad, ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return summed(x, group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive, group):
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return exchange_plain(x, send, receive, group)

    @staticmethod
    def backward(ctx, grad):
        return exchange_plain(grad, ctx.receive, ctx.send, ctx.group), None, None, None


def exchange_plain(x: torch.Tensor, send: list[int], receive: list[int], group: Group) -> torch.Tensor:
    """All-to-all of rows with counts by rank, outside autograd."""
    out = x.new_empty((sum(receive), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
    return out


def exchange(x: torch.Tensor, send: list[int], receive: list[int], group: Group) -> torch.Tensor:
    """All-to-all of rows; backward sends every row home."""
    return _Exchange.apply(x, send, receive, group)


def sum_both_ways(x: torch.Tensor, group: Group) -> torch.Tensor:
    """A sum that every rank goes on to use in its own part of the result: summed in backward too."""
    return _Copy.apply(_Sum.apply(x, group), group)


class Enter(nn.Module):
    """Into a tensor-parallel region: the sequence made whole under SP, else a copy whose gradient is summed."""

    def __init__(self, group: Group, sequence_parallel: bool):
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return gather_along(x, 1, self.group) if self.sequence_parallel else x
        return _Gather.apply(x, 1, self.group) if self.sequence_parallel else _Copy.apply(x, self.group)


class Leave(nn.Module):
    """Out of it: partial sums added up, and under SP dealt out along the sequence."""

    def __init__(self, group: Group, sequence_parallel: bool):
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ScatterSum.apply(x, 1, self.group) if self.sequence_parallel else _Sum.apply(x, self.group)


class SumSquares(nn.Module):
    """The sum of squares of a norm that spans the heads of all tp ranks."""

    def __init__(self, group: Group):
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum_both_ways(x, self.group)


class SumCounts(nn.Module):
    """Counts of whole sequences, of which each tp rank routed a part; no gradient."""

    def __init__(self, group: Group):
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return summed(x, self.group)


class _CrossEntropy(torch.autograd.Function):
    """The loss of logits whose vocabulary rows are cut over ranks. One fp32 buffer becomes, in place, logits
    less their maximum, exponentials, probabilities and, in backward, their gradient."""

    @staticmethod
    def forward(ctx, logits, targets, first, group):
        local = (targets >= first) & (targets < first + logits.shape[-1])
        index = torch.where(local, targets - first, torch.zeros_like(targets)).unsqueeze(-1)
        top = logits.amax(-1, keepdim=True)
        if group is not None:
            dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        probabilities = logits.to(wide_of(logits), copy=True).sub_(top)
        hit = probabilities.gather(-1, index).squeeze(-1) * local
        total = probabilities.exp_().sum(-1)
        if group is not None:
            dist.all_reduce(hit, group=group)
            dist.all_reduce(total, group=group)
        probabilities.div_(total.unsqueeze(-1))
        ctx.save_for_backward(probabilities, index, local)
        ctx.dtype = logits.dtype
        return (total.log() - hit).sum()

    @staticmethod
    def backward(ctx, grad):
        probabilities, index, local = ctx.saved_tensors
        probabilities.scatter_add_(-1, index, -local.unsqueeze(-1).to(probabilities.dtype))
        return probabilities.mul_(grad).to(ctx.dtype), None, None, None


def wide_of(x: torch.Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def vocabulary_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, first: int, group: Group | None) -> torch.Tensor:
    """Sum of cross-entropies when each rank holds the logits of its vocabulary rows, from `first` on. The loss
    is the same on every rank, and each differentiates its own logits."""
    return _CrossEntropy.apply(logits, targets, first, group)
