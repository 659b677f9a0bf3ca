"""The learning rate of a step, as the policy says: up in a line, then down in half a cosine."""

from __future__ import annotations

import math


def factor(run: dict, step: int) -> float:
    """The share of the peak rate that `step`, counted from zero, runs at. The first step already moves, the
    last of the warm-up is at the peak, and step `run["steps"]` would be at the least rate."""
    warmup = min(run["warmup_steps"], max(run["steps"] - 1, 0))
    if step < warmup:
        return (step + 1) / warmup
    least = run["least_learning_rate"] / run["learning_rate"]
    progress = min((step - warmup) / max(run["steps"] - warmup, 1), 1.0)
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * progress))
