"""Attention inside documents: the rows of a microbatch behind one another, and where documents begin among them.

On a GPU this is torch's flash kernel over sequences of many lengths, elsewhere one document after the other. Rotary
positions go on from document to document of a row: a rotation is relative, and no query meets a key of another document.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Borders:
    """Where the documents of the microbatch that runs begin. Every attention of a model looks here."""

    def __init__(self):
        self.lengths: list[int] = []
        self.cumulative: torch.Tensor | None = None

    def take(self, rows: list[list[int]], length: int, device: torch.device) -> None:
        """A microbatch of rows of `length` tokens, in which documents begin at these places, the first at zero."""
        starts = [row * length + start for row, starts in enumerate(rows) for start in starts] + [len(rows) * length]
        self.lengths = [end - start for start, end in zip(starts, starts[1:])]
        self.cumulative = torch.tensor(starts, dtype=torch.int32, device=device)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
        """[batch, sequence, heads, width] each, to [batch, sequence, heads · width]."""
        batch = q.shape[0]
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        y = self.on_gpu(q, k, v, scale) if q.is_cuda else self.one_by_one(q, k, v, scale)
        return y.unflatten(0, (batch, -1)).flatten(2)

    def on_gpu(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
        longest, where = max(self.lengths), self.cumulative
        # No dropout, causal, and no scores to look at.
        chosen = (where, where, longest, longest, 0.0, True, False)
        return torch.ops.aten._flash_attention_forward(q, k, v, *chosen, scale=scale)[0]

    def one_by_one(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
        found, is_grouped = [], q.shape[1] != k.shape[1]
        for parts in zip(*(t.split(self.lengths) for t in (q, k, v))):
            one = (part.transpose(0, 1) for part in parts)
            y = F.scaled_dot_product_attention(*one, is_causal=True, scale=scale, enable_gqa=is_grouped)
            found.append(y.transpose(0, 1))
        return torch.cat(found)
