"""What changes from step to step: the learning rate, as the policy says, up in a line, and down in half a cosine, in a
line, in the last steps alone (`wsd`) or not at all; and the scale of a loss in fp16."""

from __future__ import annotations

import math


def factor(run: dict, step: int) -> float:
    """The share of the peak rate that `step`, counted from zero, runs at. The first step already moves, the
    last of the warm-up is at the peak, and step `run["steps"]` would be at the least rate."""
    warmup = min(run["warmup_steps"], max(run["steps"] - 1, 0))
    if step < warmup:
        return (step + 1) / warmup
    if run["decay"] == "constant":
        return 1.0
    least = run["least_learning_rate"] / run["learning_rate"]
    over = run["decay_steps"] if run["decay"] == "wsd" else run["steps"] - warmup
    progress = min(max((step - (run["steps"] - over)) / max(over, 1), 0.0), 1.0)
    left = 0.5 * (1 + math.cos(math.pi * progress)) if run["decay"] == "cosine" else 1 - progress
    return least + (1 - least) * left


class Scale:
    """What a loss in fp16 is multiplied with so that small gradients do not vanish, as torch's GradScaler moves it:
    halved when a gradient overflows, which also skips the step, and doubled after 2000 sound steps."""

    def __init__(self, value: float = 2.0**16, patience: int = 2000):
        self.value, self.patience, self.sound = value, patience, 0

    def follow(self, norm) -> bool:
        """Whether the gradients of this norm may be stepped with."""
        is_sound = bool(norm.isfinite())
        self.sound = self.sound + 1 if is_sound else 0
        if not is_sound:
            self.value /= 2
        elif self.sound == self.patience:
            self.value, self.sound = self.value * 2, 0
        return is_sound
