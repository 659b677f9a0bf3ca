"""What answers consist of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

T = TypeVar("T")


def made(kind: type[T], json: Mapping[str, Any]) -> T:
    """A dataclass from the keys of its names; further keys stay in `to_dict()`."""
    names = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type]
    return kind(**{name: json[name] for name in names if name in json})


def gib(bytes: int) -> str:
    """Bytes in the largest binary unit that leaves at least one."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(bytes) >= size:
            return f"{bytes / size:.3g} {unit}"
    return f"{bytes} B"


def count(number: int) -> str:
    """A count in three digits."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


def seconds(time: float) -> str:
    """A time in three digits."""
    return f"{time:.3g} s" if time >= 1 else f"{1000 * time:.3g} ms"


@dataclass(frozen=True)
class Layout:
    """Who is where: degrees, batch, schedule."""

    world: int
    tp: int
    sp: bool
    cp: int
    pp: int
    vpp: int
    ep: int
    etp: int
    dp: int
    edp: int
    zero: str
    mbs: int
    microbatches: int
    gbs: int
    seq: int
    schedule: str
    recompute: str
    mode: str | None
    engine: str | None
    boundaries: list[int] | None

    def __str__(self) -> str:
        degrees = [f"{key} {getattr(self, key)}" for key in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp")]
        used = [text for text in degrees if not text.endswith(" 1")] or ["one rank"]
        return f"{', '.join(used)}, zero {self.zero}, mbs {self.mbs} × {self.microbatches}, recompute {self.recompute}"


@dataclass(frozen=True)
class Line:
    """One line of a rank's memory at its peak."""

    line: str
    bytes: int
    basis: str
    """How the figure is known: counted, replayed, measured, …"""
    scales_with: str
    ignores: str


@dataclass(frozen=True)
class Phase:
    """One phase of a step on a rank."""

    phase: str
    what: str
    allocated_peak_bytes: int | None
    """None where nobody knows it: what a compiler takes."""
    reserved_peak_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(frozen=True)
class RankClass:
    """Ranks that hold the same."""

    stage: int
    example_rank: int
    params: int
    total_bytes: int
    headroom_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    outside_bytes: int
    peak_phase: str
    peak_block: str | None
    ranks: range
    lines: tuple[Line, ...]
    phases: tuple[Phase, ...]

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> RankClass:
        """From a JSON answer."""
        first, count = json["ranks"]["first"], json["ranks"]["count"]
        parts = {
            "ranks": range(first, first + count),
            "lines": tuple(made(Line, line) for line in json["lines"]),
            "phases": tuple(made(Phase, phase) for phase in json["phases"]),
        }
        return made(cls, {**json, **parts})


@dataclass(frozen=True)
class Lever:
    """One change, and what it would do to the worst rank."""

    change: str
    saves_bytes: int
    total_bytes: int
    headroom_bytes: int
    costs: str


@dataclass(frozen=True)
class Part:
    """One part of a step's time."""

    name: str
    kind: str
    seconds: float
    share: float
    basis: str
    what: str


@dataclass(frozen=True)
class Step:
    """How long a step takes, and where such runs lay."""

    seconds: float
    low: float | None
    high: float | None
    tokens_per_second_per_device: float
    tflops_per_device: float
    mfu: float | None
    bubble: float
    bound: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Step:
        """From a JSON answer."""
        interval = json.get("interval") or {}
        parts = tuple(made(Part, part) for part in json["parts"])
        return made(cls, {**json, "low": interval.get("low"), "high": interval.get("high"), "parts": parts})


@dataclass(frozen=True)
class StageTime:
    """A stage's seconds in a step."""

    stage: int
    busy: float
    idle: float
    sending: float


@dataclass(frozen=True)
class Event:
    """A run of time on a stage; seconds are from the start of the step."""

    stage: int
    track: str
    """`schedule` for passes and waits, else what runs below them."""
    kind: str
    start: float
    end: float
    what: str
    microbatch: int | None = None
    chunk: int | None = None
    hidden: bool = False
    """Whether compute hides it."""


@dataclass(frozen=True)
class Choice:
    """A layout that was priced."""

    flags: str
    """As the command line takes it."""
    seconds: float
    tokens_per_second_per_device: float
    headroom_bytes: int
    layout: Layout

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Choice:
        """From a row of a frontier."""
        layout = json["layout"]
        return made(cls, {**json, "flags": layout["flags"], "layout": made(Layout, layout)})


@dataclass(frozen=True)
class Tensor:
    """A tensor, and what one rank holds of it."""

    path: str
    logical: tuple[int, ...]
    per_rank: tuple[int, ...]
    split: str
    rule: str
    quality: str
    holds: str
    optimizer: str
    dtype: str
    surface: str
    family: str

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Tensor:
        """From a JSON answer."""
        return made(cls, {**json, "logical": tuple(json["logical"]), "per_rank": tuple(json["per_rank"])})


@dataclass(frozen=True)
class Chunk:
    """Layers that follow each other on a stage."""

    stage: int
    chunk: int
    first_layer: int
    layers: int
    blocks: str
    params: int
    owns: tuple[str, ...]


@dataclass(frozen=True)
class File:
    """A file of a launch."""

    path: str
    contents: str
    executable: bool


@dataclass(frozen=True)
class Argument:
    """What an engine is told, and where that comes from."""

    flag: str
    values: tuple[str, ...]
    source: str
    why: str
