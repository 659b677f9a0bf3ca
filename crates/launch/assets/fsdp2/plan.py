"""sharding.json as Python sees it: degrees, one row a tensor, and which part of a tensor a rank holds.

Knows no module and starts no process. Everything is checked on reading; what is unknown is refused
by name, because a key that nobody reads is a policy that nobody follows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

SCHEMA = "shardwright.fsdp2/1"
WRAP_ORDER = ["pp", "tp", "activation-checkpointing", "compile", "fsdp", "ep", "optimizer", "lora"]
KEYS = {
    "schema", "recipe", "wrap_order", "degrees", "sequence_parallel", "schedule", "chunks", "stages",
    "reshard_after_forward", "prefetch", "recompute", "compile", "batch", "precision", "model", "modules",
    "tensors", "optimizers", "lora", "ways", "documents", "teacher", "run",
}  # fmt: skip
AXES = ("world", "pp", "vpp", "dp", "tp", "ep", "etp", "edp")
TP_GRADIENTS = ("cut", "whole", "sum")
WAYS = {"optimizer", "base", "adapters", "loss", "average", "momentum"}


class PlanError(ValueError):
    """The plan cannot be followed as written."""


@dataclass(frozen=True)
class Segment:
    """A run of equal units along one dim; `shared` when ranks outnumber units and neighbours hold copies."""

    count: int
    size: int
    shared: bool


@dataclass(frozen=True)
class Cut:
    """One dim cut over one axis, segment by segment, so that a unit is never cut."""

    axis: str
    dim: int
    segments: tuple[Segment, ...]

    def index(self, degree: int, at: int) -> torch.Tensor:
        """Indices along the dim that position `at` of `degree` holds."""
        runs, start = [], 0
        for segment in self.segments:
            count = 1 if segment.shared else segment.count // degree
            first = at // (degree // segment.count) if segment.shared else at * count
            runs.append(torch.arange(start + first * segment.size, start + (first + count) * segment.size))
            start += segment.count * segment.size
        return torch.cat(runs)

    def shared_rows(self, degree: int) -> list[tuple[int, int, int]]:
        """Local ranges that neighbours hold too: (first, past the last, ranks that hold each unit)."""
        spans, start = [], 0
        for segment in self.segments:
            rows = segment.size if segment.shared else segment.count // degree * segment.size
            if segment.shared and degree > segment.count:
                spans.append((start, start + rows, degree // segment.count))
            start += rows
        return spans


@dataclass(frozen=True)
class Row:
    """How one tensor is held: `tp_gradient` says whether tp ranks hold parts, equal copies, or copies
    whose gradients are partial and must be summed."""

    path: str
    shape: tuple[int, ...]
    cuts: tuple[Cut, ...]
    tp_gradient: str
    optimizer: str
    expert: bool
    trained: bool

    @property
    def is_factor(self) -> bool:
        """Whether it belongs to an adapter, which is added when everything else is sharded."""
        return self.path.endswith((".lora_a", ".lora_b"))

    def cut_over(self, *axes: str) -> Cut | None:
        """The cut over one of these axes."""
        return next((cut for cut in self.cuts if cut.axis in axes), None)

    def part(self, whole: torch.Tensor, degrees: dict[str, int], at: dict[str, int]) -> torch.Tensor:
        """What the rank at these coordinates holds of the whole tensor."""
        for cut in self.cuts:
            index = cut.index(degrees[cut.axis], at[cut.axis]).to(whole.device)
            whole = whole.index_select(cut.dim, index)
        return whole


@dataclass(frozen=True)
class Plan:
    """A plan that passed its checks."""

    raw: dict[str, Any]
    degrees: dict[str, int]
    rows: dict[str, Row] = field(repr=False)

    def __getattr__(self, key: str) -> Any:
        if key in KEYS:
            return self.raw[key]
        raise AttributeError(key)

    @property
    def world(self) -> int:
        return self.degrees["world"]


def load(path: str) -> Plan:
    """Reads and checks a plan."""
    with open(path, encoding="utf-8") as file:
        return parse(json.load(file))


def parse(raw: dict[str, Any]) -> Plan:
    """Checks a plan already read."""
    if raw.get("schema") != SCHEMA:
        raise PlanError(f"schema is {raw.get('schema')!r}, this module reads {SCHEMA!r}")
    if unknown := sorted(set(raw) - KEYS):
        raise PlanError(f"unknown keys: {', '.join(unknown)}")
    if missing := sorted(KEYS - set(raw)):
        raise PlanError(f"missing keys: {', '.join(missing)}")
    if raw["wrap_order"] != WRAP_ORDER:
        raise PlanError(f"wrap order is {raw['wrap_order']}, this module applies {WRAP_ORDER}")
    if odd := sorted(set(raw["ways"]) ^ WAYS):
        raise PlanError(f"ways: {', '.join(odd)} missing or unknown")
    degrees = {axis: int(raw["degrees"][axis]) for axis in AXES}
    check_degrees(degrees, raw["sequence_parallel"], any(entry["expert"] for entry in raw["tensors"]))
    rows = [read_row(entry, degrees) for entry in raw["tensors"]]
    return Plan(raw, degrees, {row.path: row for row in rows})


def check_degrees(d: dict[str, int], sequence_parallel: bool, has_experts: bool) -> None:
    """Refuses degrees whose meshes do not cover the world, and what the module does not build."""
    if d["pp"] * d["dp"] * d["tp"] != d["world"]:
        raise PlanError(f"pp·dp·tp = {d['pp']}·{d['dp']}·{d['tp']} is not the world of {d['world']}")
    if d["pp"] * d["edp"] * d["ep"] * d["etp"] != d["world"]:
        raise PlanError(f"pp·edp·ep·etp = {d['pp']}·{d['edp']}·{d['ep']}·{d['etp']} is not the world of {d['world']}")
    if d["etp"] not in (1, d["tp"]) or (d["etp"] > 1 and d["ep"] > 1):
        raise PlanError(f"etp {d['etp']} with tp {d['tp']} and ep {d['ep']}: experts are cut by expert or by tp, not both")
    if has_experts and d["tp"] > d["etp"] and not sequence_parallel:
        raise PlanError("whole experts under tp need sequence parallelism: without it tp ranks route the same tokens")


def read_row(entry: dict[str, Any], degrees: dict[str, int]) -> Row:
    """One row, its cuts held against its shape."""
    path, shape = entry["path"], tuple(entry["shape"])
    cuts = []
    for cut in entry["cuts"]:
        segments = tuple(Segment(s["count"], s["size"], s["shared"]) for s in cut["segments"])
        if sum(s.count * s.size for s in segments) != shape[cut["dim"]]:
            raise PlanError(f"{path}: segments of dim {cut['dim']} do not add up to {shape[cut['dim']]}")
        degree = degrees[cut["axis"]]
        for s in segments:
            if (degree % s.count if s.shared else s.count % degree) != 0:
                raise PlanError(f"{path}: {s.count} units cannot be cut over {cut['axis']}={degree}")
        cuts.append(Cut(cut["axis"], cut["dim"], segments))
    if entry["tp_gradient"] not in TP_GRADIENTS:
        raise PlanError(f"{path}: tp_gradient {entry['tp_gradient']!r} is none of {TP_GRADIENTS}")
    return Row(path, shape, tuple(cuts), entry["tp_gradient"], entry["optimizer"], entry["expert"], entry["trained"])
