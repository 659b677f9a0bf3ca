"""The plan's model under DeepSpeed: built whole, or under ZeRO 3 in parts from the first tensor on, and filled with the
initial weights that every program of this project gives the same paths."""

from __future__ import annotations

from typing import Any, ContextManager

import deepspeed
import torch
from torch import nn

from model import AttentionCore, Head, Hybrid
from moe import Router
from parallelize import DTYPES, WRAPPER, Parallel, apply_activation_checkpointing, check_paths, initial
from plan import Plan, PlanError


def check(plan: Plan, config: dict[str, Any]) -> None:
    """Refuses what this program does not do, each by name."""
    split = [axis for axis in ("pp", "tp", "ep", "etp") if plan.degrees[axis] > 1]
    if split:
        raise PlanError(f"this program splits over replicas alone, and the plan splits over {', '.join(split)}")
    if plan.lora or plan.teacher or plan.ways["average"]:
        raise PlanError("adapters, teachers and averages are not in this program")
    if others := sorted({row.optimizer for row in plan.rows.values()} - {"adamw"}):
        raise PlanError(f"this program steps with AdamW, and the plan has {', '.join(others)}")
    asked, said = plan.precision["params"], "bf16" if config.get("bf16", {}).get("enabled") else "fp32"
    if asked != said:
        raise PlanError(f"weights are {asked} in the plan and {said} in DeepSpeed's configuration")


def build(plan: Plan, config: dict[str, Any], device: torch.device) -> nn.Module:
    """The model with its initial weights."""
    layers = list(range(len(plan.model["layers"])))
    make = lambda: Hybrid(plan.model, layers, True, True)
    with torch.device("meta"):
        check_paths(Parallel(plan, None, device, {0: make()}))
    dtype = DTYPES[plan.precision["params"]]
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with place(config, device):
            module = make()
    finally:
        torch.set_default_dtype(usual)
    fill(plan, module)
    for part in module.modules():
        if isinstance(part, Head):
            part.fused = plan.ways["loss"]
    apply_activation_checkpointing(Parallel(plan, None, device, {0: module}))
    return module


def place(config: dict[str, Any], device: torch.device) -> ContextManager:
    """Where parameters are made: under ZeRO 3 each is shared out as soon as its module is there. The format is the
    configuration's: 0.19.8 takes another one than the one it is given (`_set_dtype`)."""
    if config["zero_optimization"]["stage"] == 3:
        return deepspeed.zero.Init(config_dict_or_path=config)
    return device


@torch.no_grad()
def fill(plan: Plan, module: nn.Module) -> None:
    """Every parameter's weights, from its path alone; one that is shared out is gathered for it."""
    for name, parameter in module.named_parameters():
        row = plan.rows[name.replace(WRAPPER, "")]
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            # Ranks other than the first hold the gathered tensor too, and are given the first one's.
            parameter.copy_(initial(row, plan.model.get("init_std")).to(parameter))


def keep_wide(module: nn.Module) -> None:
    """DeepSpeed casts buffers with the weights; a balancing bias moves by less than bf16 tells apart."""
    for router in (m for m in module.modules() if isinstance(m, Router)):
        for name, buffer in router.named_buffers(recurse=False):
            setattr(router, name, torch.zeros_like(buffer, dtype=torch.float32))


def set_borders(module: nn.Module, borders) -> None:
    for part in module.modules():
        if isinstance(part, AttentionCore):
            part.borders = borders
