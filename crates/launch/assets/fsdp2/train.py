"""Runs a plan: torchrun … train.py --plan sharding.json --steps N

On CPU with gloo or on GPUs with nccl. Data is synthetic and drawn from (step, sequence) alone, so that
every layout sees the same tokens; put your own loader where `sequences` is called.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist

import collectives as c
import plan as plans
from lora import add_lora
from model import Hybrid
from moe import Router, move_expert_biases
from optim import build_optimizers, finish_gradients
from parallelize import DTYPES, Meshes, Parallel, parallelize


def sequences(plan: plans.Plan, step: int, microbatch: int, replica: int, device: torch.device) -> torch.Tensor:
    """[micro_batch, sequence + 1] tokens: lines of constant stride, so that there is something to learn."""
    batch, vocab = plan.batch, plan.model["vocab"]
    size = batch["micro_batch"]
    first = (microbatch * plan.degrees["dp"] + replica) * size
    out = []
    for index in range(first, first + size):
        generator = torch.Generator().manual_seed(step * 1_000_003 + index)
        start, stride = torch.randint(vocab, (2,), generator=generator).tolist()
        out.append((start + (1 + stride % 7) * torch.arange(batch["sequence"] + 1)) % vocab)
    return torch.stack(out).to(device)


class Trainer:
    """One rank of a run."""

    def __init__(self, plan: plans.Plan, device: torch.device, build=None):
        self.plan, self.device = plan, device
        self.meshes = Meshes.of(plan, device.type)
        build = build or (lambda layers, first, last: Hybrid(plan.model, layers, first, last))
        self.run: Parallel = parallelize(plan, self.meshes, device, build)
        self.optimizers = add_lora(self.run) if plan.lora else build_optimizers(self.run)
        batch = plan.batch
        self.tokens = batch["micro_batch"] * batch["microbatches"] * plan.degrees["dp"] * batch["sequence"]
        self.schedule = self.pipeline() if plan.degrees["pp"] > 1 else None
        for module in self.routers():
            module.batch = (self.tokens // batch["sequence"], batch["sequence"])

    def routers(self) -> list[Router]:
        return [m for chunk in self.run.chunks.values() for m in chunk.modules() if isinstance(m, Router)]

    def balance(self) -> None:
        """Moves balancing biases by the counts of every rank that routed other tokens."""
        axes = ("dp", "tp") if self.plan.sequence_parallel else ("dp",)

        def summed(counts: torch.Tensor) -> torch.Tensor:
            for axis in axes:
                dist.all_reduce(counts, group=self.meshes.group(axis))
            return counts

        move_expert_biases(self.routers(), summed)

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """This replica's share of the global mean."""
        group = self.meshes.group("tp") if self.plan.degrees["tp"] > 1 else None
        first = self.meshes.at("tp") * logits.shape[-1] if group is not None else 0
        return c.vocabulary_cross_entropy(logits, targets, first, group) / self.tokens

    def pipeline(self):
        """torch's own schedule over this rank's chunks."""
        from torch.distributed import pipelining as pp

        group, count = self.meshes.group("pp"), len(self.plan.chunks)
        stages = [
            pp.PipelineStage(module, index, count, self.device, *self.shapes(index), group=group)
            for index, module in self.run.chunks.items()
        ]
        microbatches, name = self.plan.batch["microbatches"], self.plan.schedule
        options = {"loss_fn": self.loss, "scale_grads": False}
        if name == "1f1b":
            return pp.Schedule1F1B(stages[0], microbatches, **options)
        known = {"interleaved": "ScheduleInterleaved1F1B", "dualpipev": "ScheduleDualPipeV"}
        if name not in known:
            raise plans.PlanError(f"schedule `{name}` is none of 1f1b, {', '.join(known)}")
        from torch.distributed.pipelining import schedules

        return getattr(schedules, known[name])(stages, microbatches, **options)

    def shapes(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a chunk takes and gives, so that stages need not ask one another."""
        plan, tp = self.plan, self.plan.degrees["tp"]
        size, length = plan.batch["micro_batch"], plan.batch["sequence"]
        with torch.device("meta"):
            tokens = torch.empty(size, length, dtype=torch.long)
            part = length // tp if plan.sequence_parallel else length
            options = {"dtype": DTYPES[plan.precision["params"]], "requires_grad": True}
            hidden = torch.empty(size, part, plan.model["hidden"], **options)
            logits = torch.empty(size, length, plan.model["vocab"] // tp, **options)
        return (hidden if index else tokens), (hidden if index + 1 < len(plan.chunks) else logits)

    def step(self, step: int) -> float:
        """Forward, backward and update of one global batch; the global mean loss."""
        batches = [
            sequences(self.plan, step, m, self.meshes.at("dp"), self.device)
            for m in range(self.plan.batch["microbatches"])
        ]
        total = self.run_pipeline(batches) if self.schedule else self.run_whole(batches)
        finish_gradients(self.run)
        self.balance()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        # Every tp rank holds the same loss.
        total = total.double() / self.plan.degrees["tp"]
        dist.all_reduce(total)
        return total.item()

    def run_whole(self, batches: list[torch.Tensor]) -> torch.Tensor:
        (module,) = self.run.chunks.values()
        total = torch.zeros((), device=self.device)
        for tokens in batches:
            loss = self.loss(module(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()
            total = total + loss.detach()
        return total

    def run_pipeline(self, batches: list[torch.Tensor]) -> torch.Tensor:
        tokens, losses = torch.cat(batches), []
        last = len(self.plan.chunks) - 1
        inputs = (tokens[:, :-1].contiguous(),) if 0 in self.run.chunks else ()
        if last in self.run.chunks:
            # Nobody reads the logits of all microbatches, which are most of what the last stage would hold.
            target = tokens[:, 1:].contiguous()
            self.schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
            return torch.stack([loss.detach() for loss in losses]).sum()
        self.schedule.step(*inputs)
        return torch.zeros((), device=self.device)


def start(device: str) -> torch.device:
    """Joins the process group torchrun describes."""
    if device == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    local = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=local)
    return local


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--plan", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--losses", help="file for the losses, written by rank 0 as JSON")
    arguments = parser.parse_args()
    plan = plans.load(arguments.plan)
    device = start(arguments.device)
    if dist.get_world_size() != plan.world:
        raise plans.PlanError(f"the plan is for {plan.world} ranks and {dist.get_world_size()} were started")
    torch.set_default_dtype(DTYPES[plan.precision["main"]])
    trainer, losses = Trainer(plan, device), []
    for step in range(arguments.steps):
        began = time.monotonic()
        losses.append(trainer.step(step))
        if dist.get_rank() == 0:
            print(f"step {step} loss {losses[-1]:.6f} seconds {time.monotonic() - began:.3f}", flush=True)
    if dist.get_rank() == 0 and arguments.losses:
        with open(arguments.losses, "w", encoding="utf-8") as file:
            json.dump(losses, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
