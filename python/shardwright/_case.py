"""A case: a recipe, a cluster and what is said of the layout; and questions about it."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._ask import DOES_NOT_FIT, NO, OK, ask, flags
from ._errors import Refused
from ._looked import Check, Mesh, Params, Rehearsal, Splits, Stages
from ._parts import gib, seconds
from ._priced import Fit, Launch, Plan, Schedule
from ._recipe import AnyRecipe, Recipe, as_recipe
from ._result import Result
from ._words import BOUNDS, LAYOUT, RECIPE, STATE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._words import FitFlags, Flags, LaunchFlags, RehearseFlags, SearchFlags

KNOWN = {*RECIPE, *LAYOUT, *STATE, *BOUNDS}


class Case:
    """One job. Cases do not change: `with_flags` makes another."""

    __slots__ = ("_given", "on", "recipe")
    recipe: Recipe
    on: str | None
    """The cluster, as `8xH200`."""
    _given: dict[str, Any]

    def __init__(self, recipe: Recipe, on: str | None, given: Mapping[str, Any]) -> None:
        object.__setattr__(self, "recipe", recipe)
        object.__setattr__(self, "on", on)
        object.__setattr__(self, "_given", dict(given))
        if not KNOWN.issuperset(given):
            # The command line says what may have been meant.
            ask(["fit", recipe.word, *flags(given), *flags({"on": on or "8xH200"})], recipe.texts)

    @property
    def flags(self) -> dict[str, Any]:
        """What was said of it."""
        return dict(self._given)

    def with_flags(self, **changed: Unpack[Flags]) -> Case:
        """The same with some flags otherwise."""
        return Case(self.recipe, self.on, {**self._given, **changed})

    def of_words(self, words: str) -> Case:
        """Another case of this recipe, from the line that an answer prints of it."""
        given: dict[str, Any] = {}
        on = self.on
        left = shlex.split(words)[::-1]
        while left:
            word = left.pop()
            key = word[2:].replace("-", "_")
            if not word.startswith("--"):
                continue
            if key == "no_sp":
                given["sp"] = False
            elif not left or left[-1].startswith("--") and key != "engine_args":
                given[key] = True
            elif key == "on":
                on = left.pop()
            elif key == "engine_args":
                given.setdefault(key, []).append(left.pop())
            else:
                given["with_" if key == "with" else key] = left.pop()
        kept = {key: self._given[key] for key in BOUNDS if key in self._given}
        return Case(self.recipe, on, {**kept, **given})

    def check(self) -> Check:
        """Is the layout legal? Every finding with its rule, the reason, and values that would do; an engine's own rules
        where `engine` names one."""
        return Check(self._ask("check", RECIPE + LAYOUT, on=self.on, no=True))

    def params(self) -> Params:
        """How many parameters, by family and surface."""
        return Params(self._ask("params", (*RECIPE, "mode")))

    def splits(self, rank: int | None = None) -> Splits:
        """Who owns what: every tensor, its rule and its shape on a rank."""
        return Splits(self._ask("splits", RECIPE + LAYOUT, rank=rank, **self._job()))

    def stages(self) -> Stages:
        """Pipeline cuts: what each stage owns besides layers."""
        return Stages(self._ask("stages", RECIPE + LAYOUT + STATE + ("work_limit",), on=self.on, **self._job()))

    def mesh(self, rank: int | None = None) -> Mesh:
        """Ranks, and the groups of every axis."""
        return Mesh(self._ask("mesh", LAYOUT, rank=rank, **self._job()))

    def fit(self, **given: Unpack[FitFlags]) -> Fit:
        """Will it fit? Memory of every class of ranks, line by line, and the step's time."""
        return Fit(self._ask("fit", KNOWN, on=self.on, no=True, fits=False, **given))

    def plan(self, **given: Any) -> Plan:
        """The best of every layout that this case leaves open: what it says is pinned."""
        return Plan(self._ask("plan", KNOWN, on=self.on, fits=False, **given), self)

    def schedule(self) -> Schedule:
        """The simulated step: what each stage does when."""
        return Schedule(self._ask("schedule", RECIPE + LAYOUT + STATE + ("work_limit",), on=self.on))

    def launch(self, directory: str | os.PathLike[str] | None = None, **given: Unpack[LaunchFlags]) -> Launch:
        """What to hand to the cluster; written into a new directory where one is named. Raises DoesNotFit where it
        does not, unless `override_memory` is said."""
        out = None if directory is None else os.fspath(directory)
        known = RECIPE + LAYOUT + STATE + ("work_limit",)
        return Launch(self._ask("launch", known, on=self.on, out=out, **given))

    def rehearse(self, **given: Unpack[RehearseFlags]) -> Rehearsal:
        """Is the split right? Trains the model made small on every rank and on one, here, and compares."""
        known = (*RECIPE, *(key for key in LAYOUT if key != "engine"), "optimizer", "work_limit")
        return Rehearsal(self._ask("rehearse", known, no=True, **given))

    def _ask(self, question: str, keys: Any, *, no: bool = False, fits: bool = True, **more: Any) -> dict[str, Any]:
        """The answer; a no is one where it is asked for, and so is what does not fit where nobody needs it to."""
        given = {key: value for key, value in self._given.items() if key in keys}
        recipe = [] if question == "mesh" else [self.recipe.word]
        words = [question, *recipe, *flags({**given, **more})]
        answers = [OK, *([NO] if no else []), *([] if fits else [DOES_NOT_FIT])]
        return ask(words, self.recipe.texts, answers=answers)

    def _job(self) -> dict[str, Any]:
        """World, engine and mode, for questions that take no cluster: those that a fit would have."""
        if self.on is None:
            return {}
        layout = self._ask("fit", KNOWN, on=self.on, fits=False, levers="no")["case"]["layout"]
        job = {key: layout[key] for key in ("world", "engine", "mode") if layout[key] is not None}
        return {key: value for key, value in job.items() if key not in self._given}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a case does not change; with_flags makes another")

    def __eq__(self, other: object) -> bool:
        said = (self.recipe, self.on, self._given)
        return isinstance(other, Case) and said == (other.recipe, other.on, other._given)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.recipe, self.on, self._given)

    def __repr__(self) -> str:
        on = f" on {self.on}" if self.on else ""
        return f"Case {self.recipe.word}{on}\n  {' '.join(flags(self._given)) or 'nothing is pinned'}"


def case(recipe: AnyRecipe, on: str | None = None, **given: Unpack[Flags]) -> Case:
    """A job: `case("nam56r", on="8xH200", tp=2)`. What is left out is derived, and every answer says so."""
    return Case(as_recipe(recipe), on, given)


def plan(recipe: AnyRecipe, on: str, **given: Unpack[SearchFlags]) -> Plan:
    """What to run on this cluster: keywords pin an axis, and what is left out is searched."""
    search = ("top", "explain", "stats", "max_tp_in_node")
    told = {key: value for key, value in given.items() if key in search}
    pinned = {key: value for key, value in given.items() if key not in search}
    return Case(as_recipe(recipe), on, pinned).plan(**told)


class Sweep(Result):
    """Many cases fitted: a row each."""

    __slots__ = ()

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._json["rows"]]

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The row with the most tokens a second among those that fit."""
        rows = [row for row in self._rows() if row["fits"] and row["tokens_per_second_per_device"]]
        return max(rows, key=lambda row: float(row["tokens_per_second_per_device"]), default=None)

    def _said(self) -> tuple[str, str]:
        rows, best = self._rows(), self.best
        fitting = sum(1 for row in rows if row["fits"])
        what = ", ".join(f"{key} {best[key]}" for key in self._json["over"]) if best else ""
        step = f"; best {what}: a step of {seconds(best['seconds'])}" if best else ""
        left = f"headroom {gib(best['headroom_bytes'])}" if best else ""
        return f"Sweep of {len(rows)} cases: {fitting} fit{step}", left


def sweep(
    recipe: AnyRecipe, on: str | Sequence[str], over: Mapping[str, Sequence[Any]], **given: Unpack[Flags]
) -> Sweep:
    """Fits every combination: `sweep("nam56r", "8xH200", over={"tp": [1, 2, 4], "mbs": [1, 2]})`. A combination that is
    refused is a row that says by which rule."""
    clusters = [on] if isinstance(on, str) else list(on)
    model = as_recipe(recipe)
    rows = []
    for cluster, *values in itertools.product(clusters, *over.values()):
        said = dict(zip(over, values))
        rows.append({"on": cluster, **said, **_row(Case(model, cluster, {**given, **said}))})
    return Sweep({"over": list(over), "rows": rows})


def _row(case: Case) -> dict[str, Any]:
    names = ("verdict", "total_bytes", "headroom_bytes", "seconds", "tokens_per_second_per_device", "refused_by")
    row: dict[str, Any] = {"fits": False, **dict.fromkeys(names)}
    try:
        fit = case.fit(levers="no")
    except Refused as refused:
        errors = [finding.rule for finding in refused.findings if finding.severity == "error"]
        return {**row, "verdict": "refused", "refused_by": ", ".join(dict.fromkeys(errors))}
    row.update(fits=fit.fits, verdict=fit.verdict, total_bytes=fit.total_bytes, headroom_bytes=fit.headroom_bytes)
    if fit.step:
        row.update(seconds=fit.step.seconds, tokens_per_second_per_device=fit.step.tokens_per_second_per_device)
    return row
