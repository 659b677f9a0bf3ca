"""First weights. Needs numpy alone, so that either framework starts from the same."""

from __future__ import annotations

import zlib

import numpy as np


def initial(path: str, shape: list[int], deviation: float | None = None) -> np.ndarray:
    """A tensor's first value, drawn from its path alone, so that no mesh changes it. Matrices have the recipe's
    deviation, or one that keeps activations of any width in range."""
    leaf = path.rpartition(".")[2]
    draw = np.random.default_rng(zlib.crc32(path.encode()))
    if leaf in ("A_log", "dt_bias"):
        return draw.uniform(-1, 1, shape).astype(np.float32)
    if leaf == "D" or path.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    if leaf == "bias":
        return np.zeros(shape, np.float32)
    return (draw.standard_normal(shape) * (deviation or min(0.08, shape[-1] ** -0.5))).astype(np.float32)
