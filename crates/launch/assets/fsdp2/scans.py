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
