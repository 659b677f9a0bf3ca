"""Answers in bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._parts import Argument, Choice, Event, File, Lever, RankClass, StageTime, Step, gib, made, seconds
from ._result import Result, Split

if TYPE_CHECKING:
    from ._case import Case


class Fit(Split):
    """Memory of every class of ranks, and the step's time."""

    __slots__ = ()
    question = "fit"

    @property
    def verdict(self) -> str:
        """`fits`, `tight` (without the headroom asked for) or `does-not-fit`."""
        return str(self._json["verdict"])

    @property
    def fits(self) -> bool:
        """Whether every rank's memory is enough, headroom apart."""
        return self.verdict != "does-not-fit"

    @property
    def rank_classes(self) -> tuple[RankClass, ...]:
        """Ranks that hold the same, together."""
        return tuple(RankClass.of(ranks) for ranks in self._json["rank_classes"])

    @property
    def worst(self) -> RankClass:
        """The fullest."""
        return RankClass.of(self._json["rank_classes"][self._json["worst"]])

    @property
    def total_bytes(self) -> int:
        """What the fullest rank's device holds at its peak."""
        return self.worst.total_bytes

    @property
    def headroom_bytes(self) -> int:
        """What it leaves free; less than nothing where it does not fit."""
        return self.worst.headroom_bytes

    @property
    def device(self) -> str:
        """The device's name."""
        return str(self._json["hardware"]["device"]["name"])

    @property
    def levers(self) -> tuple[Lever, ...]:
        """What one change would do."""
        return tuple(made(Lever, lever) for lever in self._json["levers"])

    @property
    def step(self) -> Step | None:
        """The step's time, where it can be priced."""
        step = self._json.get("step") or {}
        return Step.of(step) if "seconds" in step else None

    def _rows(self) -> list[dict[str, Any]]:
        keys = ("line", "bytes", "basis", "scales_with", "ignores")
        rows = []
        for ranks in self._json["rank_classes"]:
            who = {"stage": ranks["stage"], "first_rank": ranks["ranks"]["first"]}
            rows += [{**who, **{key: line[key] for key in keys}} for line in ranks["lines"]]
        return rows

    def _said(self) -> tuple[str, str]:
        worst = self.worst
        held = f"stage {worst.stage} holds {gib(worst.total_bytes)}, headroom {gib(worst.headroom_bytes)}"
        verdict = self.verdict.replace("-", " ")
        step = f"; a step of {seconds(self.step.seconds)}" if self.step else ""
        return f"Fit of {self.recipe} on {self.device}: {verdict}, {held}{step}", str(self.layout)


class Plan(Result):
    """The best layout of a search, and what stands beside it."""

    __slots__ = ("_case",)
    _case: Case
    question = "plan"

    def __init__(self, json: dict[str, Any], case: Case) -> None:
        super().__init__(json)
        object.__setattr__(self, "_case", case)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._json, self._case)

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return str(self._json["recipe"])

    @property
    def fits(self) -> bool:
        """Whether any layout does."""
        return self._json["best"] is not None

    @property
    def best(self) -> Choice | None:
        """The best layout; None where none fits."""
        best = self._json["best"]
        if best is None:
            return None
        step = best["step"]
        rate = step["tokens_per_second_per_device"]
        return Choice.of({**best, "seconds": step["seconds"], "tokens_per_second_per_device": rate})

    @property
    def step(self) -> Step | None:
        """The best layout's step."""
        return Step.of(self._json["best"]["step"]) if self.fits else None

    @property
    def case(self) -> Case:
        """The best layout as a case, to fit, rehearse or launch."""
        if not self.fits:
            raise ValueError("no layout fits, so there is none to go on with")
        return self._case.of_words(self._json["best"]["flags"])

    @property
    def frontier(self) -> tuple[Choice, ...]:
        """Layouts that no other beats in both time and headroom."""
        return tuple(Choice.of(point) for point in self._json["frontier"])

    @property
    def top(self) -> tuple[Choice, ...]:
        """The fastest layouts, with `top=N`."""
        return tuple(Choice.of(point) for point in self._json["top"])

    @property
    def rejected(self) -> Mapping[str, int]:
        """Why the others lost: how many by each rule or bound."""
        return dict(self._json["rejected"])

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for choice in self.top or self.frontier:
            degrees = {key: getattr(choice.layout, key) for key in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs")}
            priced = {"seconds": choice.seconds, "headroom_bytes": choice.headroom_bytes, "flags": choice.flags}
            rows.append({**degrees, **priced})
        return rows

    def _said(self) -> tuple[str, str]:
        best = self.best
        if best is None:
            return f"Plan of {self.recipe}: no layout fits", self.findings[-1].hint or ""
        took = f"a step of {seconds(best.seconds)}, {best.tokens_per_second_per_device:,.0f} tokens a second a device"
        return f"Plan of {self.recipe}: {took}, headroom {gib(best.headroom_bytes)}", best.flags


class Schedule(Split):
    """The simulated step: a row for everything that a stage does, and when."""

    __slots__ = ()
    question = "schedule"

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return float(self._json["seconds"])

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """How long each stage works, waits and sends."""
        return tuple(made(StageTime, stage) for stage in self._json["stages"])

    @property
    def events(self) -> tuple[Event, ...]:
        """Passes, waits, collectives and sends, in the order of stages and time. Of a long step, the first and last
        passes of each stage."""
        return tuple(made(Event, event) for event in self._json["events"])

    def _rows(self) -> list[dict[str, Any]]:
        keys = ("stage", "track", "kind", "microbatch", "start", "end", "what")
        return [{key: event.get(key) for key in keys} for event in self._json["events"]]

    def _said(self) -> tuple[str, str]:
        idle = ", ".join(seconds(stage.idle) for stage in self.stages[:8])
        order = f"{self._json['schedule']}, {self._json['microbatches']} microbatches"
        return f"Schedule of {self.recipe}: {seconds(self.seconds)} a step, {order}", f"stages wait {idle}"


class Launch(Split):
    """What an engine and a scheduler are told."""

    __slots__ = ()
    question = "launch"

    @property
    def engine(self) -> str:
        """Which engine."""
        return str(self._json["engine"])

    @property
    def command(self) -> str:
        """What starts it."""
        return str(self._json["command"])

    @property
    def files(self) -> tuple[File, ...]:
        """Every file, with its contents."""
        return tuple(made(File, file) for file in self._json["files"])

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Every argument, and where it comes from."""
        given = self._json["arguments"]
        return tuple(made(Argument, {**a, "values": tuple(a["values"]), "source": a["from"]}) for a in given)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that are set."""
        return {variable["name"]: variable["value"] for variable in self._json["environment"]}

    def _rows(self) -> list[dict[str, Any]]:
        given = self.arguments
        return [{"flag": a.flag, "values": " ".join(a.values), "from": a.source, "why": a.why} for a in given]

    def _said(self) -> tuple[str, str]:
        files = ", ".join(file.path for file in self.files)
        seams = f", {len(self.gives_up)} seams" if self.gives_up else ""
        return f"Launch of {self.recipe} on {self.engine}: {len(self.arguments)} arguments{seams}", files
