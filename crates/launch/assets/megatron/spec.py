"""Megatron's built-in hybrid stack with our modules in the places that `blocks.json` names.

`--spec shardwright_megatron.spec hybrid_stack_spec` builds it. Layers count from zero over the pattern; those of a
prediction depth count from zero in that depth. A policy's own patch is `patch(spec, layers)` and returns a spec; it
runs after ours. The built-in spec holds functions that cannot be copied, so a patch makes a new one by
`dataclasses.replace`.
"""

from __future__ import annotations

import importlib
import json
import pathlib
from dataclasses import replace
from functools import partial

from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec as built_in
from megatron.core.transformer.spec_utils import ModuleSpec

from .chosen import ChosenLayer

BLOCKS = json.loads(pathlib.Path(__file__).with_name("blocks.json").read_text())

# Modules that run a kind of block, behind the pattern's `M`: each has `parts(built_in, sizes)`, a layer's submodules.
MIXERS = ("mamba3", "m2rnn")


def with_mixers(spec: ModuleSpec, blocks: dict) -> ModuleSpec:
    """`M` builds the mixer that its layer is listed under; the built-in one where no list has it."""
    kinds = {kind: blocks[kind] for kind in MIXERS if blocks.get(kind)}
    if not kinds:
        return spec
    layer = spec.submodules.mamba_layer
    choices = []
    for kind, sizes in kinds.items():
        parts = importlib.import_module(f".{kind}", __package__).parts(layer.submodules, sizes)
        where = {lists: frozenset(sizes[lists]) for lists in ("layers", "mtp_layers")}
        choices.append({**where, "parts": parts})
    chosen = replace(layer, module=ChosenLayer, params={**layer.params, "choices": tuple(choices)})
    return replace(spec, submodules=replace(spec.submodules, mamba_layer=chosen))


def with_shared_expert(spec: ModuleSpec, sizes: dict | None) -> ModuleSpec:
    """Shared experts with an activation of their own."""
    if not sizes:
        return spec
    from .shared_expert import SharedExpert

    layer = spec.submodules.moe_layer
    # `partial(MoELayer, submodules=…)`, and in it `partial(…, submodules=…)` that builds the shared expert.
    moe = layer.submodules.mlp
    parts = moe.keywords["submodules"]
    built = partial(SharedExpert, **parts.shared_experts.keywords, sizes=sizes)
    ours = partial(moe.func, *moe.args, **{**moe.keywords, "submodules": replace(parts, shared_experts=built)})
    layer = replace(layer, submodules=replace(layer.submodules, mlp=ours))
    return replace(spec, submodules=replace(spec.submodules, moe_layer=layer))


def with_sparse(spec: ModuleSpec, is_ours: bool) -> ModuleSpec:
    """Sparse layers in our kernels."""
    if not is_ours:
        return spec
    from .sparse import SparseAttention

    layer = spec.submodules.dsa_layer
    attention = layer.submodules.self_attention
    core = replace(attention.submodules.core_attention, module=SparseAttention)
    attention = replace(attention, submodules=replace(attention.submodules, core_attention=core))
    layer = replace(layer, submodules=replace(layer.submodules, self_attention=attention))
    return replace(spec, submodules=replace(spec.submodules, dsa_layer=layer))


def patched(spec: ModuleSpec, patches: list[dict]) -> ModuleSpec:
    """Patches that the policy names."""
    for patch in patches:
        module, _, function = patch["function"].partition(":")
        spec = getattr(importlib.import_module(module), function)(spec, tuple(patch["layers"]))
    return spec


def filled(spec: ModuleSpec, blocks: dict) -> ModuleSpec:
    """The stack of a launch. What nothing fills stops the run here, before any device is touched."""
    if blocks["unfilled"]:
        names = ", ".join(blocks["unfilled"])
        raise NotImplementedError(f"no module is named in the policy's [seams] for: {names}")
    spec = with_shared_expert(with_mixers(spec, blocks), blocks["shared_expert"])
    spec = with_sparse(spec, blocks["sparse"])
    return patched(spec, blocks["patches"])


hybrid_stack_spec = filled(built_in, BLOCKS)
