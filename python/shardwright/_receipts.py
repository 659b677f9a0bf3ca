"""Receipts: what became of runs, beside what was promised of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ._ask import NO, OK, USAGE, ask, flags
from ._parts import seconds
from ._result import Result
from ._table import Table


class Receipt(Result):
    """One receipt: who ran, promised beside measured."""

    __slots__ = ()
    question = "receipt"

    @property
    def id(self) -> str:
        """Its name: the hash of its file."""
        return str(self._json["id"])

    @property
    def recipe(self) -> str | None:
        """The recipe that ran, where the receipt says."""
        recipe = self._json["receipt"]["identity"].get("recipe")
        return None if recipe is None else str(recipe)

    @property
    def state(self) -> str:
        """How it ended: finished, failed, …"""
        return str(self._json["outcome"]["state"])

    @property
    def step_seconds(self) -> float | None:
        """What a step took, warm-up apart."""
        return _number(self._json["outcome"]["step_seconds"])

    @property
    def promised_seconds(self) -> float | None:
        """What was promised of it."""
        return _number(self._json["outcome"]["promised_seconds"])

    @property
    def first_loss(self) -> float | None:
        """The first that was written down."""
        return _loss(self._json["outcome"]["first_loss"])

    @property
    def last_loss(self) -> float | None:
        """The last."""
        return _loss(self._json["outcome"]["last_loss"])

    @property
    def steps(self) -> Table:
        """Every step that was written down."""
        return self.table

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(step) for step in self._json["receipt"]["evidence"]["steps"]]

    def _said(self) -> tuple[str, str]:
        took = f", {seconds(self.step_seconds)} each" if self.step_seconds else ""
        promised = f", {seconds(self.promised_seconds)} promised" if self.promised_seconds else ""
        first = f"Receipt {self.id[:12]} of {self.recipe or 'an unknown recipe'}: {self.state}"
        return first, f"{self._json['outcome']['steps']} steps{took}{promised}"


class Comparison(Result):
    """Two runs held against each other: a row for every difference of what ran."""

    __slots__ = ()
    question = "compare"

    @property
    def comparable(self) -> bool:
        """Whether their throughput may be compared."""
        return not self._json.get("error", False)

    @property
    def layer(self) -> str | None:
        """The first layer in which they differ: recipe, mode, features, lane, …"""
        layer = self._json["layer"]
        return None if layer is None else str(layer)

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(change) for change in self._json["changes"]]

    def _said(self) -> tuple[str, str]:
        verdict = "may be compared" if self.comparable else "may not be compared"
        differ = f"they differ in {self.layer}" if self.layer else "the same was run"
        return f"Comparison: {verdict}, {differ}", f"{len(self._rows())} differences"


class Drift(Result):
    """A history: a row for every turn of a figure."""

    __slots__ = ()
    question = "drift"

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(turn) for turn in self._json["turns"]]

    def _said(self) -> tuple[str, str]:
        return f"Drift over {len(self._json['runs'])} runs: {len(self._rows())} turns", ""


class Receipts:
    """A store of receipts."""

    __slots__ = ("_store",)

    def __init__(self, store: str | os.PathLike[str] | None = None) -> None:
        self._store = {"store": None if store is None else os.fspath(store)}

    def list(self, recipe: str | None = None, all: bool = False) -> Table:
        """Receipts in the store, the last one last."""
        return Table(self._ask("list", recipe=recipe, all=all)["receipts"])

    def show(self, name: str) -> Receipt:
        """One receipt, by the beginning of its name or by its file."""
        return Receipt(self._ask("show", name))

    def record(self, launch: str | os.PathLike[str] | None = None, *, log: Any = (), **given: Any) -> Receipt:
        """Records a run from its launch directory, or from logs and what ran: `record(log="logs/hook.jsonl",
        recipe="llama3-8b", engine="fsdp2")`. Gives the receipt."""
        logs = [log] if isinstance(log, (str, os.PathLike)) else list(log)
        words = [] if launch is None else [os.fspath(launch)]
        words += [f"--log={os.fspath(path)}" for path in logs]
        return self.show(str(self._ask("record", *words, **given)["id"]))

    def compare(self, *names: str, against: Sequence[str] = ()) -> Comparison:
        """May two runs be compared, in which layer do they differ, and what came of it."""
        other = ["--against", *against] if against else []
        return Comparison(self._ask("compare", *names, *other, answers=(OK, NO, USAGE)))

    def drift(self, *names: str) -> Drift:
        """When a figure of a history left its noise."""
        return Drift(self._ask("drift", *names, answers=(OK, NO, USAGE)))

    def _ask(self, what: str, *words: str, answers: Sequence[int] = (OK,), **given: Any) -> dict[str, Any]:
        return ask(["receipt", what, *words, *flags({**given, **self._store})], answers=answers)

    def __repr__(self) -> str:
        return f"Receipts below {self._ask('list')['store']}\n  {len(self.list())} receipts"


def receipts(store: str | os.PathLike[str] | None = None) -> Receipts:
    """The store of receipts there, or the usual one."""
    return Receipts(store)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _loss(value: Any) -> float | None:
    """Of a step and its loss."""
    return None if value is None else float(value[1])
