"""A matrix state that a tanh passes through at every step. It cannot be scanned in parallel: steps are walked, on a GPU by
the kernels of `walk.py`, elsewhere one by one in torch."""

from __future__ import annotations

import math
from importlib import import_module

import torch


def kernels():
    """`walk.py`, which is beside this file in a package or on the path; it needs Triton."""
    return import_module(f"{__package__}.walk" if __package__ else "walk")


class Recurrence(torch.autograd.Function):
    """state = keep·state + (1 - keep)·tanh(state @ weight + k ⊗ v) along dim `time`, 0 or 1, read by q. The other of the two
    is the batch, then heads and columns follow; `keep` has no columns, and q and k may have fewer heads, which share
    theirs. `every` is the number of steps from one state that is kept to the next; backward walks those between again. A
    state's gradient is clipped to ±`clip` at every step, as the published block clips it: over thousands of steps a weight
    that grows would let it explode."""

    @staticmethod
    def forward(ctx, keep, q, k, v, weight, time=1, every=1, clip=0.0):
        """No clip at 0."""
        ctx.time, ctx.every, ctx.clip = time, every, clip or math.inf
        run = kernels().forward if v.is_cuda else forward
        out, states = run(keep, q, k, v, weight, time, every)
        ctx.save_for_backward(keep, q, k, v, weight, states)
        return out

    @staticmethod
    def backward(ctx, grad):
        run = kernels().backward if grad.is_cuda else backward
        return *run(ctx.saved_tensors, grad, ctx.time, ctx.every, ctx.clip), None, None, None


def by_step(time: int, heads: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views with time first and every head its own."""
    moved = (t.movedim(time, 0) for t in tensors)
    return tuple(t if t.shape[2] == heads else t.repeat_interleave(heads // t.shape[2], 2) for t in moved)


def walked(old, keep, k, v, weight, t):
    """What a step adds, and what it keeps of the state."""
    return torch.tanh(old @ weight + k[t, ..., :, None] * v[t, ..., None, :]), keep[t, ..., None, None]


def forward(keep, q, k, v, weight, time, every):
    """Kept states are those before steps 0, every, 2·every …"""
    keep, q, k, v = by_step(time, v.shape[2], keep, *(t.to(weight.dtype) for t in (q, k, v)))
    state, out, states = v.new_zeros(*v.shape[1:-1], k.shape[-1], v.shape[-1]), torch.empty_like(v), []
    for t in range(len(v)):
        if t % every == 0:
            states.append(state)
        fresh, stay = walked(state, keep, k, v, weight, t)
        state = torch.lerp(fresh, state, stay)
        out[t] = (state * q[t, ..., :, None]).sum(-2)
    return out.movedim(0, time).contiguous(), torch.stack(states)


def backward(kept, grad, time, every, clip=math.inf):
    given, weight, states = kept[:4], kept[4], kept[5]
    keep, q, k, v = by_step(time, given[3].shape[2], given[0], *(t.to(weight.dtype) for t in given[1:4]))
    (grad,) = by_step(time, v.shape[2], grad)
    to_keep, to_q, to_k, to_v = (torch.empty_like(t) for t in (keep, q, k, v))
    to_weight, to_state = torch.zeros_like(weight), torch.zeros_like(states[0])
    for first in reversed(range(0, len(v), every)):
        block = [states[first // every]]
        for t in range(first, min(first + every, len(v))):
            fresh, stay = walked(block[-1], keep, k, v, weight, t)
            block.append(torch.lerp(fresh, block[-1], stay))
        for t in reversed(range(first, first + len(block) - 1)):
            row, old, new = grad[t, ..., None, :], block[t - first], block[t - first + 1]
            to_state = (to_state + q[t, ..., :, None] * row).clamp(-clip, clip)
            to_q[t] = (new * row).sum(-1)
            fresh, stay = walked(old, keep, k, v, weight, t)
            to_keep[t] = (to_state * (old - fresh)).sum((-2, -1))
            inner = (1 - stay) * to_state * (1 - fresh * fresh)
            to_k[t] = (inner * v[t, ..., None, :]).sum(-1)
            to_v[t] = (inner * k[t, ..., :, None]).sum(-2)
            to_weight += (old.mT @ inner).sum(0)
            to_state = stay * to_state + inner @ weight.mT
    made = (t.movedim(0, time) for t in (to_keep, to_q, to_k, to_v))
    return *(shared(t, like).to(like.dtype) for t, like in zip(made, given)), to_weight


def shared(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient of heads that others read, from those of the readers."""
    heads = like.shape[2]
    return grad if grad.shape[2] == heads else grad.unflatten(2, (heads, -1)).sum(3)
