"""The folder that checkpoints lie in: one directory a step, whole or not there at all.

`step-00000010/` holds tensors in the program's own format and `shardwright.json`: whose it is, which step, how far
the data was read. It is written under another name and renamed when every rank is done, so that a directory with a
step's name is complete. The folder must be one that all ranks share.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any

SCHEMA = "shardwright.checkpoint/1"
RECORD = "shardwright.json"
# What must be the same for weights to mean the same; a layout may change.
IDENTITY = ("recipe", "recipe_sha256", "mode", "features")


class CheckpointError(ValueError):
    """The checkpoint is not one that this run may load, or cannot be written."""


def name(step: int) -> str:
    return f"step-{step:08d}"


def partial(folder: str, step: int) -> str:
    """Where a step is written before it has its name."""
    return os.path.join(folder, f".{name(step)}.partial")


def complete(folder: str) -> dict[int, str]:
    """Directories of steps that were finished, by step, oldest first."""
    if not os.path.isdir(folder):
        return {}
    found = {}
    for entry in os.listdir(folder):
        match = re.fullmatch(r"step-(\d{8,})", entry)
        if match and os.path.isfile(os.path.join(folder, entry, RECORD)):
            found[int(match[1])] = os.path.join(folder, entry)
    return dict(sorted(found.items()))


def find(folder: str, asked: str) -> str | None:
    """The checkpoint to go on from: `latest` (none when there is none), `none`, or a directory. One that would
    leave later steps of the folder behind is refused: the run would write over them."""
    steps = complete(folder)
    if asked == "latest":
        return steps[max(steps)] if steps else None
    if asked != "none" and not os.path.isfile(os.path.join(asked, RECORD)):
        raise CheckpointError(f"`{asked}` is no finished checkpoint: it has no {RECORD}")
    start = -1 if asked == "none" else read(asked)["step"]
    if later := [path for step, path in steps.items() if step > start]:
        raise CheckpointError(
            f"`{folder}` has {len(later)} later checkpoints, up to `{os.path.basename(later[-1])}`, which this run "
            "would write over: move them, or give it a folder of its own with --checkpoints"
        )
    return None if asked == "none" else asked


def read(path: str) -> dict[str, Any]:
    """The record of a checkpoint."""
    try:
        with open(os.path.join(path, RECORD), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError) as problem:
        raise CheckpointError(f"`{path}`: {RECORD} cannot be read: {problem}") from problem
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise CheckpointError(f"`{path}`: {RECORD} is not of schema {SCHEMA!r}")
    return record


def check(path: str, record: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuses the checkpoint of another recipe, mode or bundle of features."""
    if wrong := [key for key in IDENTITY if record.get(key) != identity[key]]:
        said = "; ".join(f"its {key} is {show(record.get(key))} and this run's {show(identity[key])}" for key in wrong)
        raise CheckpointError(f"`{path}` is another model's: {said}")


def show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)[:16]


def position(path: str, record: dict[str, Any], about: dict[str, Any], asked: int | None) -> int:
    """Sequences consumed. A position in another stream of data means nothing in this one, unless it is said anew."""
    if asked is not None:
        return asked
    if record["data"] != about:
        raise CheckpointError(
            f"`{path}` stopped in another stream of data ({record['data']}; here {about}): say where to go on in "
            "this one with --data-position, in sequences"
        )
    return record["data_position"]


def record_of(identity: dict[str, Any], step: int, consumed: int, about: dict[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, **identity, "step": step, "data_position": consumed, "data": about}


def begin(folder: str, step: int) -> str:
    """An empty directory to write a step into; what an interrupted run left under its name is removed."""
    where = partial(folder, step)
    shutil.rmtree(where, ignore_errors=True)
    os.makedirs(where)
    return where


def finish(folder: str, step: int, record: dict[str, Any], keep_last: int | None) -> str:
    """Gives a step its name, and removes the oldest ones beyond those to keep."""
    where, final = partial(folder, step), os.path.join(folder, name(step))
    with open(os.path.join(where, RECORD), "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(where, final)
    sync(folder)
    steps = complete(folder)
    for old in list(steps)[: len(steps) - keep_last] if keep_last else []:
        # Without its record it is no checkpoint any more, whatever happens to the rest of it.
        os.remove(os.path.join(steps[old], RECORD))
        shutil.rmtree(steps[old])
    return final


def sync(folder: str) -> None:
    """The names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
