"""What every block of the reference model is made of: activations, a bare weight, norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

GATED = {"swiglu": F.silu, "geglu": F.gelu}
PLAIN = {"relu2": lambda x: F.relu(x).square(), "gelu": F.gelu, "silu": F.silu}


def activate(name: str, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """The activation; a gated one reads gate rows first, then up rows, and multiplies its gate with `factor`."""
    if name in GATED:
        gate, up = x.chunk(2, -1)
        return GATED[name](times(gate, factor)) * up
    return PLAIN[name](x)


def rows_of(name: str, width: int) -> int:
    """Rows of the projection in front of an activation."""
    return 2 * width if name in GATED else width


class Weight(nn.Module):
    """A bare `weight`, and a projection onto its rows when called."""

    def __init__(self, *shape: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class Norm(nn.Module):
    """RMS norm in fp32 or wider; LayerNorm when the recipe's norm has a bias."""

    def __init__(self, width: int, eps: float, kind: str = "rmsnorm"):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if kind == "layernorm" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is not None:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def times(x: torch.Tensor, factor: float) -> torch.Tensor:
    """A constant of the recipe; one is none."""
    return x if factor == 1.0 else x * factor


def wide(x: torch.Tensor) -> torch.Tensor:
    """At least fp32, for sums and scans."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
