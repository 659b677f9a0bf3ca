"""Runs a table: train.py --table table.json --framework {torch_xla,jax}

torch_xla drives TPUs and annotates the torch reference (`model.py`); jax runs anywhere, on CPU devices too. Goes on
from the newest checkpoint in its folder, saves every `save_every` steps, at the end and on SIGTERM (then it exits
with 143), and reads the data that the table names (`data.py`). `--unsharded` runs the same steps on one device.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

import environment
import folder as folders
import lines
import table as tables
import tensors
from data import Stream
from schedule import factor

HERE = os.path.dirname(os.path.abspath(__file__))


def start(table: tables.Table, framework: str, is_sharded: bool) -> Any:
    """Imports the framework, which reads its flags now and never again."""
    if framework == "torch_xla":
        from run_torch_xla import TorchXlaRun

        return TorchXlaRun(table)
    from run_jax import JaxRun

    return JaxRun(table, is_sharded)


class Trainer:
    """A run with its data and its checkpoints."""

    def __init__(self, table: tables.Table, run: Any):
        self.table, self.run, self.position = table, run, 0
        self.stream = Stream(table.raw["run"], table.raw["batch"]["sequence"], table.raw["model"]["vocab"])
        self.is_asked_to_end = False

    def step(self, step: int) -> float:
        """One global batch; its mean loss."""
        loss = self.run.step(self.stream, self.position, factor(self.table.raw["run"], step))
        self.position += self.table.raw["batch"]["global_batch"]
        return loss

    def save(self, where: str, step: int) -> str:
        run = self.table.raw["run"]
        record = folders.record_of(run["identity"], step, self.position, self.stream.about())
        everything = self.run.tensors() | tensors.numbers(step, self.position)
        tensors.save(where, everything, record, run["keep_last"], self.run.is_writer())
        self.run.meet("saved")
        return os.path.join(where, folders.name(step))

    def load(self, path: str, position: int | None = None) -> int:
        """Goes on from a checkpoint; gives the steps done."""
        record = folders.read(path)
        folders.check(path, record, self.table.raw["run"]["identity"])
        self.position = folders.position(path, record, self.stream.about(), position)
        reader = tensors.Reader(path)
        reader.check(self.run.tensors() | tensors.numbers(0, 0))
        loaded = {key: int(reader.block(f"run.{key}")) for key in ("step", "data_position")}
        if loaded != {key: record[key] for key in loaded}:
            raise folders.CheckpointError(f"`{path}`: {folders.RECORD} and the tensors disagree: {loaded}")
        self.run.load(reader)
        return loaded["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--table", required=True)
    parser.add_argument("--steps", type=int, help="end after this step, which changes no learning rate (default: the table's)")
    parser.add_argument("--framework", choices=["torch_xla", "jax"], default="torch_xla")
    parser.add_argument("--unsharded", action="store_true", help="one device, jax only")
    parser.add_argument("--checkpoints", help="folder that all hosts share (default: the table's)")
    parser.add_argument("--load", default="latest", help="latest, none, or the directory of a checkpoint")
    parser.add_argument("--data-position", type=int, help="sequences to skip, where the data changed since the checkpoint")
    parser.add_argument("--losses", help="file for the losses, as JSON")
    arguments = parser.parse_args()
    environment.apply(os.path.join(HERE, "environment.env"))
    table = tables.load(arguments.table)
    trainer = Trainer(table, start(table, arguments.framework, not arguments.unsharded))
    signal.signal(signal.SIGTERM, lambda *_: setattr(trainer, "is_asked_to_end", True))
    losses, is_done = train(trainer, arguments)
    if arguments.losses and trainer.run.is_writer():
        with open(arguments.losses, "w", encoding="utf-8") as file:
            json.dump(losses, file)
    sys.exit(0 if is_done else 128 + signal.SIGTERM)


def train(trainer: Trainer, arguments: argparse.Namespace) -> tuple[list[float], bool]:
    """From the newest checkpoint on: the losses of the steps that ran here, and whether the last one did."""
    run, losses = trainer.table.raw["run"], []
    where, steps = arguments.checkpoints or run["checkpoints"], arguments.steps or run["steps"]
    say = print if trainer.run.is_writer() else lambda *_, **__: None
    say(lines.start(*trainer.run.about()), flush=True)
    found = folders.find(where, arguments.load)
    done = trainer.load(found, arguments.data_position) if found else 0
    trainer.position = trainer.position if found else arguments.data_position or 0
    say(f"{f'goes on from {found}' if found else f'no checkpoint in {where} yet'}: step {done} of {steps}", flush=True)
    batch = trainer.table.raw["batch"]
    for step in range(done, steps):
        began = time.monotonic()
        losses.append(trainer.step(step))
        took, is_ending = time.monotonic() - began, trainer.run.agreed(trainer.is_asked_to_end)
        if (step + 1) % run["log_every"] == 0:
            tokens = batch["global_batch"] * batch["sequence"]
            say(lines.step(step + 1, losses[-1], took, tokens, trainer.run.norm, trainer.run.peaks()), flush=True)
        if (step + 1) % run["save_every"] == 0 or step + 1 == steps or is_ending:
            began = time.monotonic()
            saved = trainer.save(where, step + 1)
            say(f"saved {saved} in {time.monotonic() - began:.3f} seconds", flush=True)
        if is_ending and step + 1 < steps:
            say("asked to end", flush=True)
            return losses, False
    return losses, True


if __name__ == "__main__":
    main()
