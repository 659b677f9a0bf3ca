"""What walks the sequence: a selective scan in products of matrices, and a recurrence step by step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

CHUNK = 64


def scan(log_decay: torch.Tensor, u: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """state = exp(log_decay)·state + u ⊗ b along dim 1, read by c. Backward computes it again."""
    return checkpoint(chunked_scan, log_decay, u, b, c, use_reentrant=False, preserve_rng_state=False)


def chunked_scan(log_decay: torch.Tensor, u: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The same in products of matrices: inside chunks of the sequence, and of states between them (Mamba-2,
    arXiv 2405.21060, section 6). [batch, sequence, heads, ...] in, [batch, sequence, heads, width] out."""
    length = u.shape[1]
    pad = -length % min(CHUNK, length)
    log_decay, u, b, c = (F.pad(t, (0, 0) * (t.dim() - 2) + (0, pad)) if pad else t for t in (log_decay, u, b, c))
    # [batch, heads, chunks, positions, ...]
    log_decay, u, b, c = (
        t.unflatten(1, (-1, min(CHUNK, length))).movedim(3, 1).contiguous() for t in (log_decay, u, b, c)
    )
    total = log_decay.cumsum(-1)
    y = (c @ b.mT * between(total)) @ u
    states = ((total[..., -1:] - total).exp().unsqueeze(-1) * b).mT @ u
    before = handed(total[..., -1], states.flatten(-2)).view_as(states)
    y = y + (total.exp().unsqueeze(-1) * c) @ before
    return y.movedim(1, 3).flatten(1, 2)[:, :length]


def between(total: torch.Tensor) -> torch.Tensor:
    """What is left at each of a chunk's positions of every one up to it."""
    return (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()


def handed(log_decay: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """States before each of a row of chunks, which decay over a chunk and take in its own: one product where chunks are
    few; else chunks of chunks hand on what is left of theirs."""
    count = log_decay.shape[-1]
    if count <= CHUNK:
        return F.pad(between(log_decay.cumsum(-1)) @ fresh, (0, 0, 1, -1))
    pad = -count % CHUNK
    if pad:
        log_decay, fresh = F.pad(log_decay, (0, pad)), F.pad(fresh, (0, 0, 0, pad))
    total = log_decay.unflatten(-1, (-1, CHUNK)).cumsum(-1)
    inside = between(total) @ fresh.unflatten(-2, (-1, CHUNK))
    before = handed(total[..., -1], inside[..., -1, :])
    after = inside + total.exp().unsqueeze(-1) * before.unsqueeze(-2)
    return F.pad(after.flatten(-3, -2), (0, 0, 1, -1 - pad))


class Recurrence(torch.autograd.Function):
    """state = keep·state + (1 - keep)·tanh(state @ weight + k ⊗ v) along dim 1, read by q. States are kept, and
    backward walks them from the end; on a GPU in one kernel each way."""

    @staticmethod
    def forward(ctx, keep, q, k, v, weight):
        if v.is_cuda:
            import walk

            out, states = walk.forward(keep, q, k, v, weight)
            ctx.save_for_backward(keep, q, k, v, weight, states)
            return out
        states = v.new_zeros(v.shape[1] + 1, v.shape[0], *k.shape[2:], v.shape[-1])
        out = torch.empty_like(v, memory_format=torch.contiguous_format)
        for t in range(v.shape[1]):
            old, stay = states[t], keep[:, t, :, None, None]
            fresh = torch.tanh(old @ weight + k[:, t, :, :, None] * v[:, t, :, None, :])
            torch.lerp(fresh, old, stay, out=states[t + 1])
            out[:, t] = (states[t + 1] * q[:, t, :, :, None]).sum(-2)
        ctx.save_for_backward(keep, q, k, v, weight, states)
        return out

    @staticmethod
    def backward(ctx, grad):
        if grad.is_cuda:
            import walk

            return walk.backward(ctx.saved_tensors, grad)
        keep, q, k, v, weight, states = ctx.saved_tensors
        to_keep, to_q, to_k, to_v = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (keep, q, k, v))
        to_weight, to_state = torch.zeros_like(weight), torch.zeros_like(states[0])
        for t in reversed(range(v.shape[1])):
            old, stay, row = states[t], keep[:, t, :, None, None], grad[:, t, :, None, :]
            to_state = to_state + q[:, t, :, :, None] * row
            to_q[:, t] = (states[t + 1] * row).sum(-1)
            fresh = torch.tanh(old @ weight + k[:, t, :, :, None] * v[:, t, :, None, :])
            to_keep[:, t] = (to_state * (old - fresh)).sum((-2, -1))
            inner = (1 - stay) * to_state * (1 - fresh * fresh)
            to_k[:, t] = (inner * v[:, t, :, None, :]).sum(-1)
            to_v[:, t] = (inner * k[:, t, :, :, None]).sum(-2)
            to_weight += (old.mT @ inner).sum(0)
            to_state = stay * to_state + inner @ weight.mT
        return to_keep, to_q, to_k, to_v, to_weight
