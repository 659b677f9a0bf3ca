"""Rows with names: to be read, or handed to pandas or polars."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import pandas
    import polars

SHOWN = 20
"""Rows that a notebook or a prompt is shown."""


class Table(Sequence[Mapping[str, Any]]):
    """Rows as dicts, all with the same keys."""

    __slots__ = ("_columns", "_rows")

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._columns: tuple[str, ...] = tuple(dict.fromkeys(key for row in rows for key in row))
        self._rows = tuple({name: row.get(name) for name in self._columns} for row in rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names, in order."""
        return self._columns

    def column(self, name: str) -> list[Any]:
        """One column's values."""
        return [row[name] for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Table:
        return Table(self._rows[index]) if isinstance(index, slice) else dict(self._rows[index])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (dict(row) for row in self._rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Rows as dicts of their own."""
        return [dict(row) for row in self._rows]

    def to_csv(self) -> str:
        """As CSV with a head."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        return text.getvalue()

    def to_pandas(self) -> pandas.DataFrame:
        """As a pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.to_dicts(), columns=list(self._columns))

    def to_polars(self) -> polars.DataFrame:
        """As a polars data frame."""
        try:
            import polars
        except ImportError as error:
            raise ImportError("to_polars needs polars: pip install polars") from error
        return polars.DataFrame({name: self.column(name) for name in self._columns}, strict=False)

    def __repr__(self) -> str:
        shown = [[_cell(row[name]) for name in self._columns] for row in self._rows[:SHOWN]]
        widths = [max(map(len, column)) for column in zip(self._columns, *shown)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in [self._columns, *shown]]
        more = len(self) - len(shown)
        return "\n".join(line.rstrip() for line in lines) + (f"\n… {more} more rows" if more > 0 else "")

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = [row([_cell(line[name]) for name in self._columns], "td") for line in self._rows[:SHOWN]]
        more = len(self) - len(body)
        note = f"<p>… {more} more rows</p>" if more > 0 else ""
        return f"<table><thead>{row(self._columns, 'th')}</thead><tbody>{''.join(body)}</tbody></table>{note}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
