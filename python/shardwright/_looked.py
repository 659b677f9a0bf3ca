"""Answers that need no price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._parts import Chunk, Tensor, count, made
from ._result import Result, Split


class Params(Result):
    """How many parameters."""

    __slots__ = ()
    question = "params"

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return str(self._json["recipe"])

    @property
    def total(self) -> int:
        """In all."""
        return int(self._json["total"])

    @property
    def active(self) -> int:
        """That act on one token."""
        return int(self._json["active"])

    @property
    def by_family(self) -> Mapping[str, int]:
        """Totals by family: A attention, E experts, M mamba, …"""
        return {name: family["total"] for name, family in self._json["by_family"].items()}

    @property
    def by_surface(self) -> Mapping[str, int]:
        """Totals by surface."""
        return {name: surface["total"] for name, surface in self._json["by_surface"].items()}

    def _rows(self) -> list[dict[str, Any]]:
        return [{"family": name, **family} for name, family in self._json["by_family"].items()]

    def _said(self) -> tuple[str, str]:
        counts = f"{count(self.total)} parameters, {count(self.active)} active a token"
        return f"Params of {self.recipe}: {counts}", f"{self._json['pattern']} to depth {self._json['depth']}"


class Check(Split):
    """Is the layout legal? True where it is."""

    __slots__ = ()
    question = "check"

    @property
    def legal(self) -> bool:
        """Whether no rule refuses it."""
        return bool(self._json["legal"])

    def __bool__(self) -> bool:
        return self.legal

    def _rows(self) -> list[dict[str, Any]]:
        keys = ("severity", "rule", "object", "message", "hint")
        return [{key: finding.get(key) for key in keys} for finding in self._json["findings"]]

    def _said(self) -> tuple[str, str]:
        errors = [finding for finding in self.findings if finding.severity == "error"]
        verdict = "legal" if self.legal else f"not legal, {len(errors)} errors"
        return f"Check of {self.recipe}: {verdict}", str(errors[0].message if errors else self.layout)


class Splits(Split):
    """The ownership table: every tensor, its rule and what one rank holds."""

    __slots__ = ()
    question = "splits"

    @property
    def rank(self) -> int:
        """The rank it is of."""
        return int(self._json["rank"])

    @property
    def rank_params(self) -> int:
        """Parameters on this rank."""
        return int(self._json["rank_params"])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What it holds."""
        return tuple(Tensor.of(tensor) for tensor in self._json["tensors"])

    @property
    def no_axis_can_fix(self) -> tuple[str, ...]:
        """What stays whole whatever the degrees."""
        return tuple(self._json["no_axis_can_fix"])

    def _rows(self) -> list[dict[str, Any]]:
        keys = ("path", "logical", "per_rank", "split", "quality", "optimizer", "holds", "rule")
        return [{key: tensor[key] for key in keys} for tensor in self._json["tensors"]]

    def _said(self) -> tuple[str, str]:
        held = f"rank {self.rank} holds {count(self.rank_params)} parameters in {len(self._json['tensors'])} tensors"
        return f"Splits of {self.recipe}: {held}", str(self.layout)


class Stages(Split):
    """Pipeline cuts."""

    __slots__ = ()
    question = "stages"

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Every chunk of every stage."""
        pairs = [(stage["stage"], chunk) for stage in self._json["stages"] for chunk in stage["chunks"]]
        return tuple(made(Chunk, {**chunk, "stage": stage, "owns": tuple(chunk["owns"])}) for stage, chunk in pairs)

    @property
    def megatron_pattern(self) -> str | None:
        """The pattern as Megatron takes it, where it has every block."""
        pattern = self._json["megatron_pattern"]
        return None if pattern is None else str(pattern)

    def _rows(self) -> list[dict[str, Any]]:
        keys = ("stage", "chunk", "first_layer", "layers", "blocks", "params")
        return [{**{key: getattr(chunk, key) for key in keys}, "owns": ", ".join(chunk.owns)} for chunk in self.chunks]

    def _said(self) -> tuple[str, str]:
        layers = ", ".join(str(chunk.layers) for chunk in self.chunks)
        return f"Stages of {self.recipe}: {len(self._json['stages'])} stages, layers {layers}", str(self.layout)


class Mesh(Result):
    """Ranks, coordinates and groups."""

    __slots__ = ()
    question = "mesh"

    @property
    def world(self) -> int:
        """Ranks in all."""
        return int(self._json["world"])

    @property
    def degrees(self) -> Mapping[str, int]:
        """Of every axis."""
        return {axis["axis"]: axis["degree"] for axis in self._json["axes"]}

    @property
    def coordinates(self) -> Mapping[str, int]:
        """Of the rank that was asked for; empty without one."""
        return dict((self._json.get("rank") or {}).get("coordinates", {}))

    @property
    def groups(self) -> Mapping[str, tuple[int, ...]]:
        """Ranks of every group of the rank that was asked for."""
        groups = (self._json.get("rank") or {}).get("groups", {})
        return {axis: tuple(group["ranks"]) for axis, group in groups.items()}

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(axis) for axis in self._json["axes"]]

    def _said(self) -> tuple[str, str]:
        degrees = ", ".join(f"{axis} {degree}" for axis, degree in self.degrees.items())
        return f"Mesh of {self.world} ranks, order {self._json['order']}", degrees


class Rehearsal(Split):
    """The plan run small on every rank and on one, compared."""

    __slots__ = ()
    question = "rehearse"

    @property
    def passes(self) -> bool:
        """Whether all ranks compute what one computes."""
        return bool(self._json["parity"]["pass"]) and not self._json.get("error", False)

    def __bool__(self) -> bool:
        return self.passes

    @property
    def tolerance(self) -> float:
        """How far a figure may be off."""
        return float(self._json["parity"]["tolerance"])

    @property
    def worst(self) -> float:
        """How far the worst gradient is."""
        return float(self._json["parity"]["gradient"])

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(axis) for axis in self._json["traffic"]]

    def _said(self) -> tuple[str, str]:
        verdict = "the split is right" if self.passes else "the split is wrong"
        ranks = f"{self.layout.world} ranks, worst gradient off by {self.worst:.2g} of {self.tolerance:.2g}"
        return f"Rehearsal of {self.recipe}: {verdict}", ranks
