"""Holds checkpoints to what they promise: restart.py FOLDER, with plans as `parity.py` takes them

For each pair of layouts: two steps, a checkpoint and two more steps on the first; then
  - two steps from the checkpoint on the same layout give the losses and the state of the four, bit by bit;
  - on the other layout, what is loaded and saved again is what was saved, bit by bit, read by torch alone;
    and two steps from there agree with the four to 1e-5.
Then what must be refused, each spoilt on purpose. Exits 1 when something does not hold.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.distributed.checkpoint as dcp

import folder as folders
from parity import TOLERANCE, quiet, run
from train import Trainer

# Where the checkpoint is written, and where it is read: every axis changes somewhere.
PAIRS = [
    ("tiny-mamba2", "fsdp2-pp2-tp2-sp-ep2", "fsdp4-ep2"),
    ("tiny-mamba2", "fsdp4-tp2-sp-ep4", "fsdp2-pp2-interleaved"),
    ("tiny-mamba2", "fsdp2-tp4-sp", "one"),
    ("tiny-mamba2", "one", "fsdp4-tp2-sp"),
    ("tiny-mamba3", "fsdp2-tp4-sp", "fsdp2-pp2-tp2-sp-ep2"),
    ("tiny-mamba3", "fsdp4-tp2-sp-ep4", "fsdp8"),
    ("tiny-dense", "fsdp2-tp4-no-sp", "fsdp4"),
    ("tiny-lora", "fsdp4-tp2-sp-ep4", "fsdp2-pp2-tp2-sp-ep2"),
    ("tiny-moe", "fsdp2-tp4-sp", "fsdp4"),
]


def read_whole(path: str) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, put together by torch's own reader without a process group."""
    metadata = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    whole = {key: torch.full(entry.size, -1, dtype=entry.properties.dtype) for key, entry in metadata.items()}
    dcp.load(whole, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    return whole


def differing(one: str, other: str) -> list[str]:
    """Keys of two checkpoints that are not the same bits."""
    a, b = read_whole(one), read_whole(other)
    return [key for key in sorted(a.keys() | b.keys()) if key not in a or key not in b or not torch.equal(a[key], b[key])]


def four_steps(where: str):
    def work(trainer: Trainer) -> dict:
        losses = [trainer.step(0), trainer.step(1)]
        trainer.save(where, 2)
        losses += [trainer.step(2), trainer.step(3)]
        trainer.save(where, 4)
        return {"losses": losses}

    return work


def two_more(source: str, where: str):
    def work(trainer: Trainer) -> dict:
        done = trainer.load(source)
        trainer.save(where, done)
        losses = [trainer.step(done), trainer.step(done + 1)]
        trainer.save(where, done + 2)
        return {"losses": losses}

    return work


def check_pair(root: pathlib.Path, recipe: str, first: str, second: str, tmp: str) -> list[tuple[str, str | None]]:
    """What was checked, each with what is wrong about it."""
    here, there = (plan_of(root, recipe, name) for name in (first, second))
    name, (a, b, c) = f"{recipe} {first}", (f"{tmp}/{letter}" for letter in "abc")
    long = run(here, four_steps(a))
    if "error" in long:
        return [(name, long["error"])]
    at = f"{a}/{folders.name(2)}"
    same, moved = run(here, two_more(at, b)), run(there, two_more(at, c))
    verdicts = []
    for label, outcome, folder, is_same in ((f"{name} again", same, b, True), (f"{name} → {second}", moved, c, False)):
        if "error" in outcome:
            verdicts.append((label, outcome["error"]))
            continue
        wrong = differing(at, f"{folder}/{folders.name(2)}")
        verdicts.append((f"{label}: loaded", f"other bits in {', '.join(wrong[:4])}" if wrong else None))
        worst = max(abs(x - y) / abs(y) for x, y in zip(outcome["losses"], long["losses"][2:], strict=True))
        limit = 0.0 if is_same else TOLERANCE
        verdicts.append((f"{label}: two steps on, worst difference {worst:.1e}", None if worst <= limit else f"above {limit:g}"))
        if is_same:
            wrong = differing(f"{a}/{folders.name(4)}", f"{b}/{folders.name(4)}")
            verdicts.append((f"{label}: state after four steps", f"other bits in {', '.join(wrong[:4])}" if wrong else None))
    return verdicts


def plan_of(root: pathlib.Path, recipe: str, name: str) -> dict:
    return quiet(json.loads((root / recipe / name / "sharding.json").read_text()))


def check_refusals(root: pathlib.Path, tmp: str) -> list[tuple[str, str | None]]:
    """Checkpoints that must not be loaded, each by what is said of it."""
    raw = plan_of(root, "tiny-dense", "fsdp4")
    saved = run(raw, four_steps(f"{tmp}/a"))
    if "error" in saved:
        return [("tiny-dense fsdp4", saved["error"])]
    good = f"{tmp}/a/{folders.name(2)}"

    def spoilt(change) -> str:
        path = tempfile.mkdtemp(dir=tmp)
        shutil.copytree(good, path, dirs_exist_ok=True)
        change(path)
        return path

    def record(**changed):
        def change(path: str) -> None:
            said = json.loads(pathlib.Path(path, folders.RECORD).read_text())
            pathlib.Path(path, folders.RECORD).write_text(json.dumps({**said, **changed}))

        return change

    def cut_short(path: str) -> None:
        file = max(pathlib.Path(path).glob("*.distcp"), key=lambda f: f.stat().st_size)
        file.write_bytes(file.read_bytes()[:100])

    other_model = {**raw, "run": {**raw["run"], "identity": {**raw["run"]["identity"], "features": ["mtp"]}}}
    other_seed = {**raw, "run": {**raw["run"], "seed": 7}}
    wide = {**raw, "optimizers": {**raw["optimizers"]}, "precision": {**raw["precision"], "main": "fp64", "params": "fp64"}}
    cases = [
        ("another recipe", raw, record(recipe="other"), "another model's: its recipe is other"),
        ("another mode", raw, record(mode="author_dp"), "its mode is author_dp and this run's none"),
        ("other features", other_model, record(), "its features is none and this run's mtp"),
        ("another seed", other_seed, record(), "another stream of data"),
        ("a step that is not its own", raw, record(step=3), "disagree"),
        ("no record", raw, lambda path: os.remove(os.path.join(path, folders.RECORD)), "cannot be read"),
        ("no metadata", raw, lambda path: os.remove(os.path.join(path, ".metadata")), "metadata cannot be read"),
        ("a file cut short", raw, cut_short, "Error"),
        ("weights of another type", wide, record(), "`model."),
    ]
    verdicts = []
    for name, plan, change, said in cases:
        outcome = run(plan, two_more(spoilt(change), f"{tmp}/b"))
        is_refused = said in outcome.get("error", "")
        verdicts.append((f"{name} is refused", None if is_refused else str(outcome)[-400:]))
    return verdicts


def main() -> None:
    began, root = time.monotonic(), pathlib.Path(sys.argv[1])
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    checks, wrong = 0, 0

    def tell(verdicts: list[tuple[str, str | None]]) -> None:
        nonlocal checks, wrong
        for name, problem in verdicts:
            checks, wrong = checks + 1, wrong + (problem is not None)
            print(f"ok {name}" if problem is None else f"WRONG {name}: {problem}", flush=True)

    for recipe, first, second in PAIRS:
        if only in f"{recipe} {first} {second}":
            with tempfile.TemporaryDirectory() as tmp:
                tell(check_pair(root, recipe, first, second, tmp))
    if only in "refusals":
        with tempfile.TemporaryDirectory() as tmp:
            tell(check_refusals(root, tmp))
    print(f"fsdp2 checkpoints: {checks - wrong} of {checks} hold, {time.monotonic() - began:.0f} s")
    sys.exit(1 if wrong or not checks else 0)


if __name__ == "__main__":
    main()
