"""Layers that take some tokens only: mixture of depths (arXiv 2404.02258).

A router scores every token; of each sequence those that score highest go through the layer, in order and at their own
positions, and what the layer adds to one is multiplied with its score. All others stay as they are. The choice reads
whole sequences, which a rank must hold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from basics import Weight


class Depth(Weight):
    """The router of one layer, around the layer's blocks."""

    def __init__(self, m: dict):
        super().__init__(1, m["hidden"])
        self.capacity = m["mod"]["capacity"]

    def count(self, length: int) -> int:
        """Tokens that are taken of a sequence."""
        return min(max(int(self.capacity * length), 1), length)

    def forward(self, x: torch.Tensor, run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """`run` is given tokens and their positions."""
        scores = super().forward(x).squeeze(-1)
        chosen = scores.detach().topk(self.count(x.shape[1]), -1).indices.sort(-1).values
        rows = chosen.unsqueeze(-1).expand(-1, -1, x.shape[-1])
        taken = x.gather(1, rows)
        added = run(taken, chosen) - taken
        return x.scatter_add(1, rows, added * scores.gather(1, chosen).unsqueeze(-1))
