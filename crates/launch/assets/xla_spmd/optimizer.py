"""AdamW and Muon as functions of arrays, written in operators that jax arrays and torch tensors both have: one
text steps the model under either. State is cut like its parameter, and scalars are arrays too, so that a rate that
changes compiles nothing anew.
"""

from __future__ import annotations

from typing import Any

# What each keeps of a tensor, by the names torch gives it; `step` is a scalar.
STATE = {"adamw": ("exp_avg", "exp_avg_sq", "step"), "muon": ("momentum",)}


def update(kind: str, options: dict, parameter: Any, gradient: Any, state: dict, factor: Any) -> tuple[Any, dict]:
    """A parameter and its state after a step at `factor` of the peak learning rate."""
    rate = options["lr"] * factor
    kept = parameter * (1 - rate * options["weight_decay"])
    if kind == "muon":
        momentum = options["momentum"] * state["momentum"] + gradient
        direction = newton_schulz(gradient + options["momentum"] * momentum, options["newton_schulz_steps"])
        return kept - rate * direction, {"momentum": momentum}
    (first, second), step = options["betas"], state["step"] + 1
    mean = first * state["exp_avg"] + (1 - first) * gradient
    square = second * state["exp_avg_sq"] + (1 - second) * gradient * gradient
    scale = (square / (1 - second**step)) ** 0.5 + options["eps"]
    return kept - rate * (mean / (1 - first**step)) / scale, {"exp_avg": mean, "exp_avg_sq": square, "step": step}


def newton_schulz(matrix: Any, steps: int) -> Any:
    """The quintic iteration of Muon (Jordan et al. 2024) with its coefficients, over the last two dims: an expert
    bank is a stack of matrices."""
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / ((x * x).sum(axis=(-2, -1), keepdims=True) ** 0.5 + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    x = x.mT if is_tall else x
    return x * max(1.0, x.shape[-2] / x.shape[-1]) ** 0.5


def norm_of(gradients: list) -> Any:
    """The norm of all gradients together."""
    return sum((g * g).sum() for g in gradients) ** 0.5


def clip_scale(norm: Any, limit: float) -> Any:
    """What gradients of this norm are multiplied by so that it is at most `limit`; zero is no limit."""
    if limit == 0:
        return 1.0
    scale = limit / (norm + 1e-6)
    return scale * (scale < 1) + (scale >= 1)
