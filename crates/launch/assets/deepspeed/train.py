"""Runs a plan under DeepSpeed: torchrun … train.py --plan sharding.json --deepspeed_config ds_config.json

The model, its initial weights, data and learning rate are those of the FSDP2 program; ZeRO, offload, accumulation,
clipping and AdamW are DeepSpeed's, as its configuration says. Goes on from the newest checkpoint in its folder, saves
every `save_every` steps, at the end and on SIGTERM (then it exits with 143).
"""

from __future__ import annotations

import json
import os
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

import collectives as c
import folder as folders
import loop
import plan as plans
import zero
from data import Stream
from documents import Borders
from moe import Router, move_expert_biases
from schedule import factor

# The name of DeepSpeed's own directory in a checkpoint.
TAG = "deepspeed"


class Trainer:
    """One rank of a run."""

    def __init__(self, plan: plans.Plan, config: dict[str, Any], device: torch.device):
        self.plan, self.device = plan, device
        zero.check(plan, config)
        module = zero.build(plan, config, device)
        self.engine, *_ = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=config)
        zero.keep_wide(self.engine.module)
        self.borders = Borders() if plan.documents else None
        zero.set_borders(self.engine.module, self.borders)
        batch, self.replicas = plan.batch, plan.degrees["dp"]
        self.global_batch = batch["micro_batch"] * batch["microbatches"] * self.replicas
        self.tokens = self.global_batch * batch["sequence"]
        self.set_router_batches()
        self.rates = [group["lr"] for group in self.engine.basic_optimizer.param_groups]
        self.stream = Stream(plan.run, batch["sequence"], plan.model["vocab"], plan.documents)
        self.position = 0
        self.norm: float | None = None
        self.is_asked_to_end = self.is_ending = False

    def set_router_batches(self) -> None:
        """Balancing losses are means over a step of this replica: DeepSpeed takes the mean over replicas."""
        batch = self.plan.batch
        for layer in self.engine.module.layers.values():
            length = batch["sequence"] if layer.mod is None else layer.mod.count(batch["sequence"])
            for module in (m for m in layer.modules() if isinstance(m, Router)):
                module.batch = (self.global_batch // self.replicas, length)

    def balance(self) -> None:
        """Moves balancing biases by the counts of every rank."""

        def summed(counts: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(counts)
            return counts

        move_expert_biases(self.engine.module.modules(), summed)

    def first(self, microbatch: int) -> int:
        """The first sequence of a microbatch of this replica, by its number in the run."""
        return self.position + (microbatch * self.replicas + dist.get_rank()) * self.plan.batch["micro_batch"]

    def batch(self, microbatch: int) -> torch.Tensor:
        """[micro_batch, sequence + 1] tokens: this replica's rows of the global batch."""
        rows = self.stream.rows(self.first(microbatch), self.plan.batch["micro_batch"])
        return torch.from_numpy(rows).to(self.device)

    def take_documents(self, microbatch: int) -> None:
        first, batch = self.first(microbatch), self.plan.batch
        rows = [self.stream.starts(index) for index in range(first, first + batch["micro_batch"])]
        self.borders.take(rows, batch["sequence"], self.device)

    def step(self, step: int) -> float:
        """Forward, backward and update of one global batch; the global mean loss."""
        for group, rate in zip(self.engine.basic_optimizer.param_groups, self.rates):
            group["lr"] = rate * factor(self.plan.run, step)
        total = torch.zeros((), device=self.device)
        for microbatch in range(self.plan.batch["microbatches"]):
            if self.borders is not None:
                self.take_documents(microbatch)
            tokens = self.batch(microbatch)
            loss = self.loss(self.engine(tokens[:, :-1]), tokens[:, 1:])
            # The divisor is of the whole step already.
            self.engine.backward(loss, scale_wrt_gas=False)
            total += loss.detach()
            self.engine.step()
        self.norm = self.engine.get_global_grad_norm()
        self.balance()
        self.position += self.global_batch
        # Whether to end is agreed upon with the loss.
        said = torch.stack([total.double() / self.replicas, total.new_tensor(self.is_asked_to_end).double()])
        dist.all_reduce(said)
        loss, asked = said.tolist()
        self.is_ending = asked > 0
        return loss

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """This replica's mean over a step: DeepSpeed takes the mean over replicas."""
        return c.vocabulary_cross_entropy(logits, targets, 0, None) / (self.tokens // self.replicas)

    def save(self, where: str, step: int) -> str:
        """Writes a checkpoint of the run after `step` steps; every rank calls it."""
        run = self.plan.run
        if dist.get_rank() == 0:
            folders.begin(where, step)
        dist.barrier(c.on_hosts())
        partial = folders.partial(where, step)
        if not os.path.isdir(partial):
            raise folders.CheckpointError(f"`{where}` is not a folder that all ranks share: one does not see `{partial}`")
        self.engine.save_checkpoint(partial, tag=TAG, save_latest=False)
        dist.barrier(c.on_hosts())
        if dist.get_rank() == 0:
            record = folders.record_of(run["identity"], step, self.position, self.stream.about())
            folders.finish(where, step, record, run["keep_last"])
        dist.barrier(c.on_hosts())
        return os.path.join(where, folders.name(step))

    def load(self, path: str, position: int | None = None) -> int:
        """Goes on from a checkpoint; every rank calls it. Gives the steps done."""
        record, identity = folders.read(path), self.plan.run["identity"]
        folders.check(path, record, identity)
        if record["layout"] != identity["layout"]:
            raise folders.CheckpointError(
                f"`{path}` was written by {record['layout']}, and this run is {identity['layout']}: DeepSpeed reads a "
                "checkpoint of another layout after `python -m deepspeed.checkpoint.ds_to_universal` alone"
            )
        self.position = folders.position(path, record, self.stream.about(), position)
        loaded, _ = self.engine.load_checkpoint(path, tag=TAG)
        if loaded is None or self.engine.global_steps != record["step"]:
            raise folders.CheckpointError(f"`{path}`: {folders.RECORD} and DeepSpeed's state disagree")
        return record["step"]


def main() -> None:
    parser = loop.parser(__doc__)
    parser.add_argument("--deepspeed_config", required=True)
    arguments = parser.parse_args()
    plan = plans.load(arguments.plan)
    with open(arguments.deepspeed_config, encoding="utf-8") as file:
        config = json.load(file)
    device = loop.start(arguments.device)
    if get_accelerator().device_name() != device.type:
        raise plans.PlanError(f"DeepSpeed chose another accelerator than {device.type}: set DS_ACCELERATOR={device.type}")
    deepspeed.init_distributed()
    loop.check_world(plan)
    loop.finish(Trainer(plan, config, device), arguments)


if __name__ == "__main__":
    main()
