"""Applies a plan to a model, one step a function, in the plan's wrap order:

    PP → TP (with SP) → activation checkpointing → compile → fully_shard → EP → optimizer → LoRA

`model` may be any module tree whose parameters carry the plan's paths and whose tensor-parallel regions
are bordered by `enter` and `leave`. It is built on the meta device; weights are filled at the end, each
rank its part. Gradients are sums, never means: the loss is divided by the global token count up front.
Needs torch 2.11: `ignored_params`, plain sums, and pipelines that return no outputs.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import collectives as c
from plan import Plan, PlanError, Row
from quantised import Quantised, quantise

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
# Submodule that a name of the plan's selective recompute stands for.
RECOMPUTABLE = {"core_attn": ".core", "mlp": ".mlp", "moe": ".moe", "shared_experts": ".shared", "layernorm": ".norm"}
WRAPPER = "_checkpoint_wrapped_module."


@dataclass
class Meshes:
    """The dense mesh (pp, dp, tp) and the expert mesh (pp, edp, ep, etp), over the same ranks."""

    dense: DeviceMesh
    expert: DeviceMesh

    @staticmethod
    def of(plan: Plan, device: str) -> Meshes:
        d = plan.degrees
        dense = init_device_mesh(device, (d["pp"], d["dp"], d["tp"]), mesh_dim_names=("pp", "dp", "tp"))
        shape = (d["pp"], d["edp"], d["ep"], d["etp"])
        return Meshes(dense, init_device_mesh(device, shape, mesh_dim_names=("pp", "edp", "ep", "etp")))

    def mesh(self, axis: str) -> DeviceMesh:
        return (self.expert if axis in ("edp", "ep", "etp") else self.dense)[axis]

    def group(self, axis: str) -> dist.ProcessGroup:
        return self.mesh(axis).get_group()

    def at(self, axis: str) -> int:
        return self.mesh(axis).get_local_rank()

    def coordinates(self) -> dict[str, int]:
        return {axis: self.at(axis) for axis in ("pp", "dp", "tp", "edp", "ep", "etp")}


@dataclass
class Parallel:
    """What a rank runs: its chunks, and how to find a parameter's row."""

    plan: Plan
    meshes: Meshes
    device: torch.device
    chunks: dict[int, nn.Module] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)

    def parameters(self) -> list[tuple[Row, nn.Parameter]]:
        """Every parameter this rank holds a shard of, with its row; adapters are not sharded."""
        found = []
        for module in self.chunks.values():
            for name, parameter in module.named_parameters():
                row = self.plan.rows.get(name.replace(WRAPPER, ""))
                if row is not None and not row.is_factor:
                    found.append((row, parameter))
        return found


Build = Callable[[list[int], bool, bool], nn.Module]


def parallelize(plan: Plan, meshes: Meshes, device: torch.device, build: Build) -> Parallel:
    """Every step before the optimizer, in order. `build(layers, is_first, is_last)` makes one chunk."""
    run = Parallel(plan, meshes, device)
    apply_pp(run, build)
    check_paths(run)
    for module in run.chunks.values():
        quantise(plan, module)
    apply_tp(run)
    apply_activation_checkpointing(run)
    apply_compile(run)
    apply_fsdp(run)
    apply_ep(run)
    set_prefetch(run)
    fill(run)
    return run


def apply_pp(run: Parallel, build: Build) -> None:
    """Builds only the chunks of this rank's stage. Depth is all that PP owns."""
    chunks, last = run.plan.chunks, len(run.plan.chunks) - 1
    with torch.device("meta"):
        for index in run.plan.stages[run.meshes.at("pp")]:
            run.chunks[index] = build(chunks[index], index == 0, index == last)
    run.applied.append("pp")


def check_paths(run: Parallel) -> None:
    """The model and the plan must name the same tensors with the same shapes."""
    for module in run.chunks.values():
        for name, parameter in module.named_parameters():
            row = run.plan.rows.get(name)
            if row is None:
                raise PlanError(f"the plan has no row for parameter `{name}`")
            if tuple(parameter.shape) != row.shape:
                raise PlanError(f"`{name}` is {tuple(parameter.shape)} in the model and {row.shape} in the plan")


def apply_tp(run: Parallel) -> None:
    """Cuts parameters by the table and puts collectives where regions begin and end."""
    degree = run.plan.degrees["tp"]
    if degree > 1:
        group, is_sp = run.meshes.group("tp"), run.plan.sequence_parallel
        for module in run.chunks.values():
            cut_parameters(run, module, ("tp", "etp"))
            border_regions(run.plan, module, group, is_sp)
    run.applied.append("tp")


def border_regions(plan: Plan, root: nn.Module, group: dist.ProcessGroup, is_sp: bool) -> None:
    """Sets `enter` and `leave` of the modules the plan lists."""
    modules = dict(root.named_modules())
    for entry in plan.modules:
        module = modules.get(entry["module"])
        if module is None:
            continue
        for place in entry["borders"]:
            if place == "across":
                module.across = c.SumSquares(group)
            elif place == "counts":
                module.counts = c.SumCounts(group)
            elif place == "rows":
                module.first = group.rank() * module.weight.shape[0]
            elif hasattr(module, place):
                setattr(module, place, (c.Enter if place == "enter" else c.Leave)(group, is_sp))
            else:
                raise PlanError(f"`{entry['module']}` has no `{place}` to put a collective at")


def cut_parameters(run: Parallel, root: nn.Module, axes: tuple[str, ...]) -> None:
    """Replaces each parameter cut over one of the axes by this rank's part, still on the meta device."""
    parts: dict[int, nn.Parameter] = {}
    for name, parameter in root.named_parameters():
        row = run.plan.rows.get(name.replace(WRAPPER, ""))
        cut = row and row.cut_over(*axes)
        if cut:
            shape = list(parameter.shape)
            shape[cut.dim] = len(cut.index(run.plan.degrees[cut.axis], 0))
            parts[id(parameter)] = nn.Parameter(torch.empty(shape, device="meta", dtype=parameter.dtype))
    # A tied parameter has two names and one row: both get the same part.
    for name, parameter in list(root.named_parameters(remove_duplicate=False)):
        if id(parameter) in parts:
            owner, _, leaf = name.rpartition(".")
            setattr(root.get_submodule(owner), leaf, parts[id(parameter)])


def apply_activation_checkpointing(run: Parallel) -> None:
    """Wraps layers, or the modules a selective policy names."""
    policy, modules = run.plan.recompute["policy"], run.plan.recompute["modules"]
    if policy not in ("none", "full", "selective"):
        raise PlanError(f"recompute policy `{policy}` is none of none, full, selective")
    if unknown := sorted(set(modules) - set(RECOMPUTABLE)):
        raise PlanError(f"recompute modules not found in this lane: {', '.join(unknown)}")
    for module in run.chunks.values():
        if policy == "full":
            for index, layer in module.layers.items():
                module.layers[index] = checkpoint_wrapper(layer)
        elif policy == "selective":
            wrap_selected(module, tuple(RECOMPUTABLE[name] for name in modules))
    run.applied.append("activation-checkpointing")


def wrap_selected(root: nn.Module, endings: tuple[str, ...]) -> None:
    for name, module in list(root.named_modules()):
        if name.startswith("layers.") and name.endswith(endings):
            owner, _, leaf = name.rpartition(".")
            setattr(root.get_submodule(owner), leaf, checkpoint_wrapper(module))


def apply_compile(run: Parallel) -> None:
    """Compiles the blocks of the stage that the plan names, inside what FSDP2 wraps afterwards."""
    blocks = "|".join(map(re.escape, run.plan.compile["blocks"]))
    for module in run.chunks.values() if blocks else ():
        for name, child in module.named_modules():
            if re.fullmatch(rf"layers\.\d+\.({blocks})(_\d+)?", name.replace(WRAPPER, "")):
                child.compile(backend=run.plan.compile["backend"])
    run.applied.append("compile")


def apply_fsdp(run: Parallel) -> None:
    """Shards layer by layer, blocks that layers share by themselves, then the rest with the root. Experts are left to the next
    step."""
    options = shard_options(run, run.meshes.mesh("dp"))
    for module in run.chunks.values():
        experts = {p for name, p in module.named_parameters() if is_expert(run, name)}
        # Inner modules first. A shared block is gathered and reduced at every use.
        units = [*getattr(module, "shared", {}).values(), *module.layers.values()]
        if not run.plan.model.get("tied", False):
            units += [edge for edge in (module.embedding, module.head) if edge is not None]
        for unit in units:
            fully_shard(unit, ignored_params=experts, **options)
        fully_shard(module, ignored_params=experts, **options)
    run.applied.append("fsdp")


def shard_options(run: Parallel, mesh: DeviceMesh) -> dict:
    precision = run.plan.precision
    params, reduce = DTYPES[precision["params"]], DTYPES[precision["reduce"]]
    if params == reduce == DTYPES[precision["main"]]:
        policy = MixedPrecisionPolicy()
    else:
        policy = MixedPrecisionPolicy(param_dtype=params, reduce_dtype=reduce)
    return {"mesh": mesh, "reshard_after_forward": run.plan.reshard_after_forward, "mp_policy": policy}


def is_expert(run: Parallel, name: str) -> bool:
    row = run.plan.rows.get(name.replace(WRAPPER, ""))
    return row is not None and row.expert


def apply_ep(run: Parallel) -> None:
    """Leaves each rank its experts, shards them over the ranks that hold the same ones, sets the exchange."""
    for module in run.chunks.values():
        cut_parameters(run, module, ("ep",) if run.plan.degrees["ep"] > 1 else ())
        for name, child in module.named_modules():
            if name.endswith("experts") and any(is_expert(run, f"{name}.{p}") for p, _ in child.named_parameters()):
                if run.plan.degrees["ep"] > 1:
                    child.dispatch = AllToAll(run.meshes.group("ep"))
                fully_shard(child, **shard_options(run, run.meshes.mesh("edp")))
        for child in module.modules():
            if isinstance(child, FSDPModule):
                sum_gradients(child)
    run.applied.append("ep")


def set_prefetch(run: Parallel) -> None:
    """Groups gathered ahead of the one that runs, where the plan asks for more than FSDP2 does by itself: none in
    forward, one in backward. Forward enters a layer before its experts; backward leaves the layer's group last."""
    ahead = run.plan.prefetch
    for module in run.chunks.values():
        entered = [m for m in module.modules() if isinstance(m, FSDPModule) and m is not module]
        for index, unit in enumerate(entered):
            if ahead["forward"] > 0:
                unit.set_modules_to_forward_prefetch(entered[index + 1 : index + 1 + ahead["forward"]])
        left = leaving(entered)
        for index, unit in enumerate(left):
            if ahead["backward"] > 1:
                unit.set_modules_to_backward_prefetch(left[max(0, index - ahead["backward"]) : index][::-1])


def leaving(entered: list[FSDPModule]) -> list[FSDPModule]:
    """The same modules in the order in which forward leaves them: what is inside a module before itself."""
    left: list[FSDPModule] = []
    for unit in entered:
        inside = [m for m in unit.modules() if m in entered and m is not unit]
        left += [m for m in [*inside, unit] if m not in left]
    return left


def sum_gradients(module: FSDPModule) -> None:
    """Gradients are summed over replicas: the loss has its global divisor already. Plain sums, since gloo
    has no scaled ones."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


class AllToAll:
    """Rows to the ranks that own their experts, and home again. Buffers are as long as the counts say."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group

    def __call__(self, run: Callable, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        ranks = self.group.size()
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        theirs = theirs.view(ranks, -1)
        send, receive = counts.view(ranks, -1).sum(1).tolist(), theirs.sum(1).tolist()
        arrived = c.exchange(rows, send, receive, self.group)
        # Rows arrive by sender, then by expert; experts want them by expert.
        expert = torch.arange(theirs.shape[1], device=rows.device).repeat(ranks).repeat_interleave(theirs.flatten())
        order = expert.argsort(stable=True)
        done = run(arrived.index_select(0, order), theirs.sum(0))
        home = torch.empty_like(order)
        home[order] = torch.arange(len(order), device=order.device)
        return c.exchange(done.index_select(0, home), receive, send, self.group)


def fill(run: Parallel) -> None:
    """Gives every parameter its weights: each rank its part of the same logical tensor."""
    for module in run.chunks.values():
        module.to_empty(device=run.device)
        module.to(DTYPES[run.plan.precision["main"]])
        for buffer in module.buffers():
            buffer.zero_()
    at = run.meshes.coordinates()
    for row, parameter in run.parameters():
        part = row.part(initial(row, run.plan.model.get("init_std")), run.plan.degrees, at)
        with torch.no_grad():
            local = parameter.to_local()
            local.copy_(own_rows(part, parameter).to(local))
    for module in (m for chunk in run.chunks.values() for m in chunk.modules() if isinstance(m, Quantised)):
        module.fill(initial(module.row, run.plan.model.get("init_std")), run.device)


def own_rows(part: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """The rows of a part that fully_shard leaves here: it chunks dim 0, the last ranks may hold none."""
    mesh = parameter.device_mesh
    chunks = part.chunk(mesh.size(), 0)
    return chunks[mesh.get_local_rank()] if mesh.get_local_rank() < len(chunks) else part[:0]


def initial(row: Row, deviation: float | None) -> torch.Tensor:
    """A tensor's first value, drawn from its path alone, so that no layout changes it. Matrices have the recipe's
    deviation, or one that keeps activations of any width in range."""
    leaf = row.path.rpartition(".")[2]
    generator = torch.Generator().manual_seed(zlib.crc32(row.path.encode()))
    if leaf in ("A_log", "dt_bias"):
        return torch.rand(row.shape, generator=generator) * 2 - 1
    if leaf == "D" or row.path.endswith("norm.weight"):
        return torch.ones(row.shape)
    if leaf == "bias":
        return torch.zeros(row.shape)
    if row.path.endswith("mhc.scale"):
        # Megatron-Core's `mhc_init_gating_factor`, and the paper's: streams start out nearly alike.
        return torch.full(row.shape, 0.01)
    fan_in = row.shape[-1] if len(row.shape) > 1 else 1
    return torch.randn(row.shape, generator=generator) * (deviation or min(0.02 * 4, fan_in**-0.5))
