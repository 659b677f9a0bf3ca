"""Runs a plan: torchrun … train.py --plan sharding.json

On CPU with gloo or on GPUs with nccl. Goes on from the newest checkpoint in its folder, saves every `save_every`
steps, at the end and on SIGTERM (then it exits with 143), and reads the data that the plan names (`data.py`).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

import checkpoint
import collectives as c
import folder as folders
import loop
import plan as plans
from clip import Clip
from data import Stream
from documents import Borders
from lora import add_lora
from model import AttentionCore, Head, Hybrid
from moe import Router, move_expert_biases
from optim import build_optimizers, finish_gradients
from parallelize import DTYPES, Meshes, Parallel, parallelize
from schedule import Scale, factor
from stepped import Average
from teacher import Teacher, distance


class Trainer:
    """One rank of a run."""

    def __init__(self, plan: plans.Plan, device: torch.device, build=None):
        self.plan, self.device = plan, device
        self.meshes = Meshes.of(plan, device.type)
        build = build or (lambda layers, first, last: Hybrid(plan.model, layers, first, last))
        self.run: Parallel = parallelize(plan, self.meshes, device, build)
        self.teacher = Teacher(plan, self.meshes, device) if plan.teacher else None
        self.borders = Borders() if plan.documents else None
        for module in self.modules():
            if isinstance(module, AttentionCore):
                module.borders = self.borders
            elif isinstance(module, Head):
                module.fused = plan.ways["loss"]
        self.optimizers = add_lora(self.run) if plan.lora else build_optimizers(self.run)
        self.rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.clip = Clip(self.run, plan.run["clip"])
        self.scale = Scale() if plan.precision["params"] == "fp16" else None
        self.average = Average(plan.ways["average"]) if plan.ways["average"] else None
        batch = plan.batch
        self.global_batch = batch["micro_batch"] * batch["microbatches"] * plan.degrees["dp"]
        self.tokens = self.global_batch * batch["sequence"]
        self.schedule = self.pipeline() if plan.degrees["pp"] > 1 else None
        for layer in (layer for chunk in self.run.chunks.values() for layer in chunk.layers.values()):
            length = batch["sequence"] if layer.mod is None else layer.mod.count(batch["sequence"])
            for module in (m for m in layer.modules() if isinstance(m, Router)):
                module.batch = (self.tokens // batch["sequence"], length)
        self.stream = Stream(plan.run, batch["sequence"], plan.model["vocab"], plan.documents)
        self.position = 0
        # Whether this rank was asked to end, and whether any was.
        self.is_asked_to_end = self.is_ending = False
        # Of the last step's gradients, before they were clipped; none where nothing asks for it.
        self.norm: float | None = None

    def modules(self) -> list[torch.nn.Module]:
        """Of the model and of its teacher."""
        roots = [*self.run.chunks.values(), *([self.teacher.module] if self.teacher else [])]
        return [module for root in roots for module in root.modules()]

    def routers(self) -> list[Router]:
        return [m for chunk in self.run.chunks.values() for m in chunk.modules() if isinstance(m, Router)]

    def trained(self) -> list[torch.nn.Parameter]:
        return [p for chunk in self.run.chunks.values() for p in chunk.parameters() if p.requires_grad]

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
            streams = [plan.model["mhc"]["streams"]] if plan.model["mhc"] else []
            hidden = torch.empty(size, part, *streams, plan.model["hidden"], **options)
            logits = torch.empty(size, length, plan.model["vocab"] // tp, **options)
        return (hidden if index else tokens), (hidden if index + 1 < len(plan.chunks) else logits)

    def batch(self, microbatch: int) -> torch.Tensor:
        """[micro_batch, sequence + 1] tokens: this replica's rows of the global batch."""
        first, size = self.first(microbatch), self.plan.batch["micro_batch"]
        return torch.from_numpy(self.stream.rows(first, size)).to(self.device)

    def first(self, microbatch: int) -> int:
        """The first sequence of a microbatch of this replica, by its number in the run."""
        size = self.plan.batch["micro_batch"]
        return self.position + (microbatch * self.plan.degrees["dp"] + self.meshes.at("dp")) * size

    def take_documents(self, microbatch: int) -> None:
        """Tells attention where the documents of a microbatch begin."""
        first, batch = self.first(microbatch), self.plan.batch
        rows = [self.stream.starts(index) for index in range(first, first + batch["micro_batch"])]
        self.borders.take(rows, batch["sequence"], self.device)

    def step(self, step: int) -> float:
        """Forward, backward and update of one global batch; the global mean loss."""
        batches = [self.batch(m) for m in range(self.plan.batch["microbatches"])]
        total = self.run_pipeline(batches) if self.schedule else self.run_whole(batches)
        finish_gradients(self.run)
        self.balance()
        norm = self.clip(self.scale.value if self.scale else 1.0)
        is_sound = self.scale is None or self.scale.follow(norm)
        for optimizer, rates in zip(self.optimizers, self.rates):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor(self.plan.run, step)
            if is_sound:
                optimizer.step()
            optimizer.zero_grad()
        if self.average is not None:
            self.average(self.trained())
        self.position += self.global_batch
        # Every tp rank holds the same loss. Whether to end is agreed upon with it.
        said = torch.stack([total.double() / self.plan.degrees["tp"], total.new_tensor(self.is_asked_to_end).double()])
        dist.all_reduce(said)
        loss, asked = said.tolist()
        self.is_ending = asked > 0
        # Read behind the loss, which the host waits for in any case.
        self.norm = None if norm is None else float(norm)
        return loss

    def run_whole(self, batches: list[torch.Tensor]) -> torch.Tensor:
        (module,) = self.run.chunks.values()
        total = torch.zeros((), device=self.device)
        for microbatch, tokens in enumerate(batches):
            if self.borders is not None:
                self.take_documents(microbatch)
            if self.teacher is not None:
                wanted = self.teacher(tokens[:, :-1])
                loss = distance(module(tokens[:, :-1]), wanted) / self.tokens
                del wanted
            elif self.plan.ways["loss"] != "eager":
                loss = module(tokens[:, :-1], tokens[:, 1:]) / self.tokens
            else:
                loss = self.loss(module(tokens[:, :-1]), tokens[:, 1:])
            (loss * self.scale.value if self.scale else loss).backward()
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


    def save(self, where: str, step: int) -> str:
        """Writes a checkpoint of the run after `step` steps; every rank calls it."""
        run = self.plan.run
        record = folders.record_of(run["identity"], step, self.position, self.stream.about())
        return checkpoint.save(where, self.run, self.optimizers, record, run["keep_last"], self.average)

    def load(self, path: str, position: int | None = None) -> int:
        """Goes on from a checkpoint; every rank calls it. Gives the steps done."""
        record = folders.read(path)
        folders.check(path, record, self.plan.run["identity"])
        self.position = folders.position(path, record, self.stream.about(), position)
        loaded = checkpoint.load(path, self.run, self.optimizers, self.average)
        if loaded != {key: record[key] for key in loaded}:
            raise folders.CheckpointError(f"`{path}`: {folders.RECORD} and the tensors disagree: {loaded}")
        return loaded["step"]


def main() -> None:
    arguments = loop.parser(__doc__).parse_args()
    plan = plans.load(arguments.plan)
    device = loop.start(arguments.device)
    loop.check_world(plan)
    torch.set_default_dtype(torch.promote_types(torch.float32, DTYPES[plan.precision["main"]]))
    loop.finish(Trainer(plan, device), arguments)


if __name__ == "__main__":
    main()
