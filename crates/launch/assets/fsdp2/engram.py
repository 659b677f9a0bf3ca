"""Engram branches (arXiv 2601.07372): rows looked up by hashes of the n-grams that end with a token, added to the
residual stream by a gate that reads it.

For each length a token makes some lookups, each into rows of its own: shares of the table lie one behind the other, the
larger ones first. A hash is the exclusive or of tokens times odd numbers, turned once more for each lookup; the numbers
follow from the layer alone. Before the first token stands token zero.
"""

from __future__ import annotations

import zlib

import torch
import torch.nn.functional as F
from torch import nn

from basics import Norm, Weight


class Biased(Weight):
    """A projection with a bias."""

    def __init__(self, rows: int, columns: int):
        super().__init__(rows, columns)
        self.bias = nn.Parameter(torch.empty(rows))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class Spread(Weight):
    """A causal depthwise convolution with steps between its taps, and SiLU."""

    def __init__(self, channels: int, taps: int, step: int):
        super().__init__(channels, 1, taps)
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x.transpose(1, 2), ((self.weight.shape[-1] - 1) * self.step, 0))
        x = F.conv1d(x, self.weight, dilation=self.step, groups=self.weight.shape[0])
        return F.silu(x).transpose(1, 2)


class Engram(nn.Module):
    """The branch of one layer."""

    def __init__(self, m: dict, index: int):
        super().__init__()
        e, hidden = m["engram"], m["hidden"]
        self.ngrams, self.heads, self.rows, self.root = e["ngrams"], e["heads"], e["rows"], hidden**0.5
        found = (self.ngrams - 1) * e["dim"]
        count = self.ngrams + (self.ngrams - 1) * self.heads
        self.odd = [zlib.crc32(f"engram {index} {k}".encode()) | 1 for k in range(count)]
        self.table = Weight(e["rows"], e["dim"] // e["heads"])
        self.key, self.value = Biased(hidden, found), Biased(hidden, found)
        self.key_norm, self.stream_norm, self.value_norm = (Norm(hidden, m["norm_eps"]) for _ in range(3))
        self.conv = Spread(hidden, e["conv"], self.ngrams)

    def places(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the table, [batch, sequence, lookups]."""
        each, more = divmod(self.rows, (self.ngrams - 1) * self.heads)
        mixed, places, first = ids * self.odd[0], [], 0
        for k in range(1, self.ngrams):
            mixed = mixed ^ (F.pad(ids, (k, 0))[:, : ids.shape[1]] * self.odd[k])
            for _ in range(self.heads):
                size = each + (len(places) < more)
                turned = mixed * self.odd[self.ngrams + len(places)]
                places.append((turned ^ (turned >> 29)) % size + first)
                first += size
        return torch.stack(places, -1)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        found = F.embedding(self.places(ids), self.table.weight).flatten(-2)
        near = (self.key_norm(self.key(found)) * self.stream_norm(x)).sum(-1, keepdim=True) / self.root
        gate = (near.abs().clamp_min(1e-6).sqrt() * near.sign()).sigmoid()
        value = gate * self.value(found)
        return x + value + self.conv(self.value_norm(value))
