"""A recipe's tables as TOML: what a dict of one can hold, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(table: Mapping[str, Any], path: str = "") -> str:
    """The text; keys before tables, as TOML wants them."""
    plain = {key: value for key, value in table.items() if not _is_table(value)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items() if value is not None]
    for key, value in table.items():
        if not _is_table(value):
            continue
        inner = f"{path}.{_key(key)}" if path else _key(key)
        for item in [value] if isinstance(value, Mapping) else value:
            head = f"[{inner}]" if isinstance(value, Mapping) else f"[[{inner}]]"
            lines += ["", head, dumps(item, inner).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    is_some = isinstance(value, (list, tuple)) and len(value) > 0
    return isinstance(value, Mapping) or (is_some and all(isinstance(item, Mapping) for item in value))


def _key(key: object) -> str:
    text = str(key)
    return text if text and all(c.isascii() and (c.isalnum() or c in "_-") for c in text) else json.dumps(text)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        # A JSON string is a TOML string, once DEL is escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"a recipe holds no {type(value).__name__}: {value!r}")
