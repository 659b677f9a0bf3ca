"""Collectives with their transposes, each pair beside one another. A group of one is the identity."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

Group = dist.ProcessGroup


def gather_along(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """All-gather, concatenated along `dim` in rank order."""
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def scatter_sum_along(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """Reduce-scatter: the sum over the group, of which each rank keeps its part along `dim`."""
    parts = [part.contiguous() for part in x.chunk(group.size(), dim)]
    out = torch.empty_like(parts[0])
    if dist.get_backend(group) == "gloo":
        # gloo has no reduce-scatter of lists in every release; a sum of the whole is the same number.
        whole = torch.stack(parts)
        dist.all_reduce(whole, group=group)
        return whole[group.rank()].clone()
    dist.reduce_scatter(out, parts, group=group)
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


def vocabulary_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, first: int, group: Group | None) -> torch.Tensor:
    """Sum of cross-entropies when each rank holds the logits of its vocabulary rows, from `first` on."""
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    local = (targets >= first) & (targets < first + logits.shape[-1])
    index = torch.where(local, targets - first, torch.zeros_like(targets))
    top = logits.detach().amax(-1)
    if group is not None:
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
    shifted = logits - top.unsqueeze(-1)
    hit = shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1) * local
    exponentials = shifted.exp().sum(-1)
    if group is not None:
        # The loss is the same on every rank and each differentiates its own logits: backward is the identity.
        hit, exponentials = _Sum.apply(hit, group), _Sum.apply(exponentials, group)
    return (exponentials.log() - hit).sum()
