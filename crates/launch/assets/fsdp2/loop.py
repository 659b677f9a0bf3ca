"""From the newest checkpoint to the last step: what a program does around its own step, whatever wraps the model.

A trainer has `plan`, `device`, `position`, `tokens`, `norm`, `is_asked_to_end` and `is_ending`, and `step`, `save`
and `load`. SIGTERM ends a run behind the step that runs, with a checkpoint and exit status 143.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

import collectives as c
import folder as folders
import lines
import plan as plans


class Steps(Protocol):
    """One rank of a run."""

    plan: plans.Plan
    device: torch.device
    position: int
    tokens: int
    norm: float | None
    is_asked_to_end: bool
    is_ending: bool

    def step(self, step: int) -> float: ...

    def save(self, where: str, step: int) -> str: ...

    def load(self, path: str, position: int | None = None) -> int: ...


def parser(about: str | None) -> argparse.ArgumentParser:
    """What every program is started with."""
    chosen = "cuda" if torch.cuda.is_available() else "cpu"
    made = argparse.ArgumentParser(description=about, allow_abbrev=False)
    made.add_argument("--plan", required=True)
    made.add_argument("--steps", type=int, help="end after this step, which changes no learning rate (default: the plan's)")
    made.add_argument("--device", choices=["cpu", "cuda"], default=chosen)
    made.add_argument("--checkpoints", help="folder that all ranks share (default: the plan's)")
    made.add_argument("--load", default="latest", help="latest, none, or the directory of a checkpoint")
    made.add_argument("--data-position", type=int, help="sequences to skip, where the data changed since the checkpoint")
    made.add_argument("--losses", help="file for the losses, written by rank 0 as JSON")
    return made


def start(device: str) -> torch.device:
    """Joins the process group torchrun describes."""
    if device == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    local = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=local)
    return local


def check_world(plan: plans.Plan) -> None:
    if dist.get_world_size() != plan.world:
        raise plans.PlanError(f"the plan is for {plan.world} ranks and {dist.get_world_size()} were started")


def finish(trainer: Steps, arguments: argparse.Namespace) -> None:
    """Runs, writes the losses where that was asked for, and ends the process."""
    signal.signal(signal.SIGTERM, lambda *_: setattr(trainer, "is_asked_to_end", True))
    losses, is_done = train(trainer, arguments)
    if dist.get_rank() == 0 and arguments.losses:
        with open(arguments.losses, "w", encoding="utf-8") as file:
            json.dump(losses, file)
    dist.destroy_process_group()
    sys.exit(0 if is_done else 128 + signal.SIGTERM)


def versions() -> dict[str, str]:
    """Of the libraries that are loaded."""
    names = ("torch", "deepspeed")
    return {name: str(sys.modules[name].__version__) for name in names if name in sys.modules}


def peaks(device: torch.device) -> list[lines.Peak]:
    """The most that torch's allocator held on any rank since the start; every rank calls it. Nothing on CPU."""
    if device.type != "cuda":
        return []
    mine = [torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)]
    held = torch.tensor(mine, device=device)
    of_all = held.new_empty(dist.get_world_size() * len(mine))
    dist.all_gather_into_tensor(of_all, held)
    by_rank = [tuple(row) for row in of_all.view(-1, len(mine)).tolist()]
    return lines.fullest(by_rank, ("max_allocated", "max_reserved"))


def train(trainer: Steps, arguments: argparse.Namespace) -> tuple[list[float], bool]:
    """From the newest checkpoint on: the losses of the steps that ran here, and whether the last one did."""
    run, losses = trainer.plan.run, []
    where, steps = arguments.checkpoints or run["checkpoints"], arguments.steps or run["steps"]
    say: Any = print if dist.get_rank() == 0 else lambda *_, **__: None
    # One rank looks: another might see the folder as it was a moment ago.
    seen = [folders.find(where, arguments.load) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(seen, group=c.on_hosts())
    (found,) = seen
    device = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else "CPU"
    say(lines.start(versions(), dist.get_world_size(), device), flush=True)
    done = trainer.load(found, arguments.data_position) if found else 0
    trainer.position = trainer.position if found else arguments.data_position or 0
    say(f"{f'goes on from {found}' if found else f'no checkpoint in {where} yet'}: step {done} of {steps}", flush=True)
    for step in range(done, steps):
        began = time.monotonic()
        losses.append(trainer.step(step))
        took = time.monotonic() - began
        if (step + 1) % run["log_every"] == 0:
            say(lines.step(step + 1, losses[-1], took, trainer.tokens, trainer.norm, peaks(trainer.device)), flush=True)
        if (step + 1) % run["save_every"] == 0 or step + 1 == steps or trainer.is_ending:
            began = time.monotonic()
            saved = trainer.save(where, step + 1)
            say(f"saved {saved} in {time.monotonic() - began:.3f} seconds", flush=True)
        if trainer.is_ending and step + 1 < steps:
            say("asked to end", flush=True)
            return losses, False
    return losses, True
