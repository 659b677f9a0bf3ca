"""A loop of one's own."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from ..hook import Receipt


class Loop:
    """A run as a block: what is raised in it ends the run, and is raised on."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "logs/hook.jsonl",
        model: Any = None,
        every: int = 100,
        engine: str | None = "torch",
        **watched: Any,
    ) -> None:
        self._path, self._model, self._every, self._engine, self._watched = path, model, every, engine, watched

    def __enter__(self) -> Receipt:
        self._receipt = Receipt(self._path, engine=self._engine)
        if self._model is not None:
            self._receipt.watch(self._model, every=self._every, **self._watched)
        return self._receipt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._receipt.end()
        else:
            self._receipt.failed(error)
