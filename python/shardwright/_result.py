"""Answers as objects: what people need as attributes, everything as `to_dict()`."""

from __future__ import annotations

import copy
import html
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from . import _native
from ._errors import Finding
from ._parts import Layout, made
from ._table import Table

if TYPE_CHECKING:
    import pandas
    import polars


class Result:
    """An answer; it does not change."""

    __slots__ = ("_json",)
    _json: dict[str, Any]
    question = ""
    """The command that answers it."""

    def __init__(self, json: dict[str, Any]) -> None:
        object.__setattr__(self, "_json", json)

    def to_dict(self) -> dict[str, Any]:
        """The whole answer, as the command prints it with `--json`."""
        return copy.deepcopy(self._json)

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self._json)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Notes, warnings and errors beside the answer."""
        return tuple(Finding.of(finding) for finding in self._json.get("findings", ()))

    @property
    def table(self) -> Table:
        """The answer's rows."""
        return Table(self._rows())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas data frame."""
        return self.table.to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars data frame."""
        return self.table.to_polars()

    def _rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _said(self) -> tuple[str, str]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n  ".join(line for line in self._said() if line)

    def _repr_html_(self) -> str:
        drawn = _native.html(self.question, self.to_json()) if self.question else ""
        said = self._said()
        if drawn:
            # What is drawn says the rest itself.
            return f"<p><strong>{html.escape(said[0].rsplit(': ', 1)[0])}</strong></p>{drawn}"
        lines = "<br>".join(html.escape(line) for line in said if line)
        return f"<p>{lines}</p>{self.table._repr_html_()}"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is an answer, which does not change")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and type(self) is type(other) and self._json == other._json

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._json,)


class Split(Result):
    """An answer about a recipe under a layout."""

    __slots__ = ()

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return str(self._json["recipe"])

    @property
    def layout(self) -> Layout:
        """Degrees as typed and derived."""
        return made(Layout, self._json["layout"])

    @property
    def derived(self) -> Mapping[str, str]:
        """What nobody typed, by name, with the reason."""
        return {item["key"]: item["why"] for item in self._json["layout"].get("derived", ())}

    @property
    def gives_up(self) -> tuple[str, ...]:
        """Seams: what the engine runs instead of what the recipe says."""
        return tuple(seam["name"] for seam in self._json.get("seams", ()))
