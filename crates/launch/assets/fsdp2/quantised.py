"""Projections whose frozen weight is kept in nf4, by bitsandbytes. A weight is quantised from bf16 when the model is
filled and is whole on every replica: FSDP2 neither sees nor shards it. Embedding, head and norms stay as they are."""

from __future__ import annotations

import torch
from torch import nn

from basics import Weight
from plan import Plan, PlanError, Row

# Double quantisation keeps one byte a block of 64 weights instead of four, and one fp32 scale for 256 of those.
FORMATS = {"nf4": False, "nf4-double": True}


class Quantised(nn.Module):
    """Takes a projection's place in the tree. What it holds is in a list, so that nobody who walks the tree casts,
    shards or saves it: it is frozen, and made again from its row."""

    def __init__(self, row: Row, is_double: bool):
        super().__init__()
        self.row, self.is_double, self.held = row, is_double, []

    def fill(self, whole: torch.Tensor, device: torch.device) -> None:
        from bitsandbytes.nn import Linear4bit, Params4bit

        rows, columns = self.row.shape
        options = {"compress_statistics": self.is_double, "quant_type": "nf4"}
        with torch.device("meta"):
            linear = Linear4bit(columns, rows, bias=False, compute_dtype=torch.bfloat16, **options)
        linear.weight = Params4bit(whole.to(torch.bfloat16), requires_grad=False, module=linear, **options).to(device)
        self.held = [linear]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held[0](x)


def quantise(plan: Plan, root: nn.Module) -> None:
    """Puts `Quantised` where the plan's base format asks for it: under every frozen projection of a layer."""
    wanted = plan.ways["base"]
    if wanted is None:
        return
    if wanted not in FORMATS:
        raise PlanError(f"base format `{wanted}` is none of {', '.join(FORMATS)}")
    if plan.degrees["tp"] > 1:
        raise PlanError(f"a base in {wanted} is not cut over tp")
    for name, child in list(root.named_modules()):
        row = plan.rows.get(f"{name}.weight")
        if isinstance(child, Weight) and name.startswith("layers.") and row is not None and not row.trained:
            owner, _, leaf = name.rpartition(".")
            setattr(root.get_submodule(owner), leaf, Quantised(row, FORMATS[wanted]))
