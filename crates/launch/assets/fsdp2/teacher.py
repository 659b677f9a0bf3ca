"""Distillation: a frozen model beside the one that is trained, and the distance of their distributions.

The teacher is shared out over replicas as the model is, in the format of products, and makes no graph. Its weights are
`model.PATH` of a checkpoint that this program, or whoever writes torch's distributed format, has written; without one
they are drawn, as the model's own are. What is minimised is the sum over tokens of the divergence KL(teacher ‖ model).
"""

from __future__ import annotations

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import plan as plans
from basics import wide
from model import Hybrid
from parallelize import Meshes, Parallel, parallelize
from pieces import Held

PLAIN = {"optimizer": "adamw", "base": None, "adapters": "ours", "loss": "eager", "average": None, "momentum": "fp32"}


class Teacher:
    """The frozen model of one rank."""

    def __init__(self, plan: plans.Plan, meshes: Meshes, device: torch.device):
        said = plan.teacher
        layers = list(range(len(said["model"]["layers"])))
        raw = {
            **plan.raw, "recipe": said["recipe"], "model": said["model"], "tensors": said["tensors"], "teacher": None,
            "lora": None, "ways": PLAIN, "chunks": [layers], "stages": [[0]], "modules": [],
            "recompute": {"policy": "none", "modules": []}, "compile": {"blocks": [], "backend": "eager"},
            "precision": {**plan.precision, "main": plan.precision["params"]},
        }  # fmt: skip
        self.plan = plans.parse(raw)
        build = lambda layers, first, last: Hybrid(self.plan.model, layers, first, last)
        self.run: Parallel = parallelize(self.plan, meshes, device, build)
        for _, parameter in self.run.parameters():
            parameter.requires_grad_(False)
        if said["weights"]:
            load(said["weights"], self.run)

    @property
    def module(self) -> nn.Module:
        (module,) = self.run.chunks.values()
        return module

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of every token."""
        return self.module(tokens)


def load(path: str, run: Parallel) -> None:
    """Reads the weights of a checkpoint and nothing else of it."""
    import checkpoint

    tensors = checkpoint.model_of(run)
    reader = dcp.FileSystemReader(path)
    saved = reader.read_metadata().state_dict_metadata
    missing = sorted(set(tensors) - set(saved))
    if missing:
        raise checkpoint.CheckpointError(f"`{path}` has no `{missing[0]}` of the teacher")
    # Weights are read as they were saved, and kept in the format of products.
    as_saved = lambda key, there: torch.empty(there.local.shape, dtype=saved[key].properties.dtype)
    read = {key: Held(there.shape, as_saved(key, there), there.pieces) for key, there in tensors.items()}
    for key, there in read.items():
        if tuple(saved[key].size) != there.shape:
            raise checkpoint.CheckpointError(f"`{path}`: `{key}` is {tuple(saved[key].size)}, and the teacher's {there.shape}")
    with torch.no_grad():
        dcp.load({}, storage_reader=reader, planner=checkpoint.Reader(path, read), process_group=checkpoint.on_hosts())
        for key, there in read.items():
            tensors[key].local.copy_(there.local)


class _Distance(torch.autograd.Function):
    """KL(wanted ‖ made) over the vocabulary, summed over tokens. The buffer of the model's own logarithms becomes, in
    place, the gradient: its probabilities less the wanted ones."""

    @staticmethod
    def forward(ctx, logits, wanted):
        made = torch.log_softmax(wide(logits), -1)
        aim = torch.log_softmax(wide(wanted), -1)
        probabilities = aim.exp()
        total = aim.sub_(made).mul_(probabilities).sum()
        ctx.save_for_backward(made.exp_().sub_(probabilities))
        ctx.dtype = logits.dtype
        return total

    @staticmethod
    def backward(ctx, grad):
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grad).to(ctx.dtype), None


def distance(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The sum over tokens of how far the model's distribution is from the wanted one."""
    return _Distance.apply(logits, wanted)
