"""Questions as words of the command line, answers as its JSON."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import _native
from ._errors import Bug, DoesNotFit, Finding, Refused, Usage

OK, NO, USAGE, DOES_NOT_FIT = 0, 1, 2, 3

PATIENCE = 1.0
"""Seconds before anybody needs to see progress."""


def ask(
    words: Sequence[str],
    texts: Mapping[str, str] | None = None,
    *,
    answers: Sequence[int] = (OK,),
) -> dict[str, Any]:
    """The JSON that `shardwright WORDS --json` prints. Exits among `answers` are one; others are raised."""
    with _progress(words) as progress:
        exit, text, _, messages = _native.answer([*words, "--json"], dict(texts or {}), progress)
    # Text for people where JSON was asked for: help, which no question of ours asks.
    found: dict[str, Any] = json.loads(text) if text else {}
    is_answer = bool(set(found) - {"schema", "findings", "error"})
    if exit in answers and is_answer:
        return found
    findings = [Finding.of(finding) for finding in found.get("findings", ())]
    if exit == USAGE:
        raise Usage([_in_python(finding) for finding in findings], messages)
    if exit == DOES_NOT_FIT:
        raise DoesNotFit(findings, messages)
    if exit in (OK, NO):
        raise Refused(findings, messages)
    raise Bug(findings, messages)


def flags(given: Mapping[str, Any]) -> list[str]:
    """Keywords as flags: `mbs=2` is `--mbs=2`, `sp=False` is `--no-sp`, a list is repeated, None is left out."""
    words = []
    for key, value in given.items():
        flag = "--" + key.rstrip("_").replace("_", "-")
        if value is None or (value is False and key != "sp"):
            continue
        if value is False:
            words.append("--no-sp")
        elif value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            if key == "engine_args":
                words.extend(f"{flag}={item}" for item in value)
            elif value:
                words.append(f"{flag}={','.join(map(str, value))}")
        else:
            words.append(f"{flag}={value}")
    return words


def _in_python(finding: Finding) -> Finding:
    """The finding in keywords, where the command line speaks of flags."""

    def keyword(found: re.Match[str]) -> str:
        return "`" + found.group(1).replace("-", "_") + "`"

    def said(text: str) -> str:
        return re.sub(r"['`]--([a-z0-9-]+)(?:[= ][^'`]*)?['`]", keyword, text)

    hint = finding.hint and said(finding.hint).replace("--help shows", "`shardwright COMMAND --help` shows")
    return replace(finding, message=said(finding.message), hint=hint)


@contextlib.contextmanager
def _progress(words: Sequence[str]) -> Iterator[Callable[[int, int], object] | None]:
    """A bar of tqdm's, where it is installed and somebody looks, once a search takes more than a second."""
    if words[0] != "plan" or not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield None
        return
    began = time.monotonic()
    bar: Any = None

    def show(done: int, of: int) -> None:
        nonlocal bar
        if bar is None and time.monotonic() - began > PATIENCE:
            bar = tqdm(total=of, desc="layouts inside a layer", leave=False)
        if bar is not None:
            bar.total = of
            bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()
