"""Side embeddings: rows that a token's n-gram or structure selects, projected onto the hidden width.

Rows are found by the rule of the recipe, whose constants the launch wrote into `sides.json`. Every rank
holds the tables whole and looks up its own tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Lookup:
    """One lookup of a token: the rows it may find, and the hash that picks one."""

    start: int
    rows: int
    factors: tuple[int, ...]
    bias: int


@dataclass(frozen=True)
class Side:
    """One side embedding of the recipe."""

    name: str
    rows: int
    dim: int
    tables: int
    components: int
    scaled: bool
    from_data: bool
    lookups: tuple[Lookup, ...]


@dataclass(frozen=True)
class Settings:
    """What `sides.json` says."""

    engine_root: str | None
    sides: tuple[Side, ...]
    streams: dict[str, list[str]]

    @property
    def channels(self) -> int:
        """Ids that the data carries for each token."""
        return sum(len(side.lookups) for side in self.sides if side.from_data)


def read(path: Path) -> Settings:
    """The settings of a launch."""
    said = json.loads(path.read_text())
    return Settings(said["engine_root"], tuple(map(_side, said["sides"])), said["streams"])


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings beside this file."""
    return read(Path(__file__).resolve().parent / "sides.json")


def _side(said: dict[str, Any]) -> Side:
    lookups = (Lookup(l["start"], l["rows"], tuple(l["factors"]), l["bias"]) for l in said["lookups"])
    return Side(**{**said, "lookups": tuple(lookups)})


def hashed_rows(side: Side, tokens: Tensor, positions: Tensor) -> Tensor:
    """Rows [batch, sequence, lookups] by the tokens up to each; those before a sequence's start count as zero."""
    most = max(len(lookup.factors) for lookup in side.lookups)
    before = [tokens] + [_earlier(tokens, positions, back) for back in range(1, most)]
    return torch.stack([_row(lookup, before) for lookup in side.lookups], dim=-1)


def _earlier(tokens: Tensor, positions: Tensor, back: int) -> Tensor:
    return torch.where(positions >= back, tokens.roll(back, dims=1), 0)


def _row(lookup: Lookup, before: Sequence[Tensor]) -> Tensor:
    mixed = before[0] * lookup.factors[0] ^ lookup.bias
    for token, factor in zip(before[1:], lookup.factors[1:]):
        mixed = mixed ^ token * factor
    return lookup.start + mixed % lookup.rows


def given_rows(side: Side, ids: Tensor) -> Tensor:
    """Rows of the ids [batch, sequence, lookups] that the data carries; too large an id is the largest."""
    starts = ids.new_tensor([lookup.start for lookup in side.lookups])
    last = ids.new_tensor([lookup.rows - 1 for lookup in side.lookups])
    return starts + torch.minimum(ids.clamp(min=0), last)


def rows_of(sides: Iterable[Side], tokens: Tensor, positions: Tensor, ids: Tensor | None) -> list[Tensor]:
    """Rows of every side embedding, for whole sequences."""
    found, taken = [], 0
    for side in sides:
        if not side.from_data:
            found.append(hashed_rows(side, tokens, positions))
            continue
        assert ids is not None, f"the data carries no ids for {side.name}"
        found.append(given_rows(side, ids[..., taken : taken + len(side.lookups)]))
        taken += len(side.lookups)
    return found


class SideEmbedding(nn.Module):
    """Table, projection and the scales of its components."""

    def __init__(self, side: Side, hidden: int, dtype: torch.dtype, device: torch.device | str | int) -> None:
        super().__init__()
        self.side = side
        self.table = nn.Embedding(side.rows, side.dim, dtype=dtype, device=device)
        self.proj = nn.Linear(side.tables * side.dim, hidden, bias=False, dtype=dtype, device=device)
        scales = torch.empty(side.components, dtype=dtype, device=device)
        self.scales = nn.Parameter(scales) if side.scaled else None

    def forward(self, rows: Tensor) -> Tensor:
        found = self.table(rows).unflatten(-2, (self.side.tables, self.side.components))
        if self.scales is not None:
            found = found * self.scales.unsqueeze(-1)
        summed = found.sum(-2) if self.side.components > 1 else found.squeeze(-2)
        return F.linear(summed.flatten(-2), self.proj.weight)


class SideEmbeddings(nn.Module):
    """All side embeddings of the first stage, added to the embedded tokens."""

    def __init__(self, config: Any, sides: Sequence[Side]) -> None:
        super().__init__()
        self.config = config
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        if config.init_model_with_meta_device:
            device = "meta"
        for side in sides:
            setattr(self, side.name, SideEmbedding(side, config.hidden_size, config.params_dtype, device))
        self.names = [side.name for side in sides]
        self.reset_parameters()
        self._mark()

    def reset_parameters(self) -> None:
        """Draws initial values: scales are one."""
        if not self.config.perform_initialization:
            return
        for module in (getattr(self, name) for name in self.names):
            self.config.embedding_init_method(module.table.weight)
            self.config.init_method(module.proj.weight)
            if module.scales is not None:
                nn.init.ones_(module.scales)

    def _mark(self) -> None:
        """Adam takes all of them; each rank sees its part of a sequence, so gradients are summed over tp."""
        for parameter in self.parameters():
            parameter.is_embedding_or_output_parameter = True
            parameter.sequence_parallel = self.config.sequence_parallel

    def forward(self, x: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """`x` is [sequence, batch, hidden], `rows` [sequence, batch, lookups] each."""
        for name, found in zip(self.names, rows, strict=True):
            x = x + getattr(self, name)(found)
        return x
