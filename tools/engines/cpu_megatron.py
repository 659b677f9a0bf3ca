"""Starts Megatron-LM's own trainer on a machine without a GPU or Transformer Engine.

    cpu_megatron.py LM/pretrain_hybrid.py ARGUMENTS...      with torchrun's variables

Every cuda device becomes the CPU, every Transformer Engine block of the hybrid stack a local one. It takes small sizes and
`--transformer-impl local --no-gradient-accumulation-fusion --no-persist-layer-norm --no-rope-fusion --num-workers 0
--distributed-backend gloo`. What it shows is that a job starts, steps and saves, not what a GPU computes.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import types

import torch
from torch.overrides import TorchFunctionMode

GIB = 1 << 30


def on_cpu(device):
    if isinstance(device, int) and not isinstance(device, bool):
        return "cpu"
    return "cpu" if device is not None and str(device).startswith("cuda") else device


class ToCpu(TorchFunctionMode):
    """Calls that name a cuda device name the CPU; every tensor says that it is on cuda."""

    def __torch_function__(self, function, types_, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        if "pin_memory" in kwargs:
            kwargs["pin_memory"] = False
        if name in ("cuda", "pin_memory"):
            return args[0]
        if name == "record_stream":
            return None
        if name == "type" and len(args) == 1:
            return function(*args).replace("torch.", "torch.cuda.")
        if name == "to":
            args = tuple(on_cpu(a) if isinstance(a, (str, torch.device)) else a for a in args)
        return function(*args, **kwargs)


class Nothing:
    """A stream or an event."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: {"elapsed_time": 0.0, "query": True}.get(name, self)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False


class Generators:
    def __getitem__(self, index):
        return torch.default_generator

    def __len__(self):
        return 1


def pretend():
    """Puts a device that is the CPU in cuda's place."""
    # It lists what it finds in torch when it is imported, and one stand-in for two functions confuses it.
    import torch._dynamo

    cuda, none = torch.cuda, lambda *args, **kwargs: None
    for name in ("set_device", "set_stream", "synchronize", "empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"):
        setattr(cuda, name, none)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *args, **kwargs: 0)
    cuda.is_available, cuda._lazy_init, cuda.is_bf16_supported = lambda: True, none, lambda *a, **k: True
    cuda.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cuda.current_device = lambda: torch.device("cpu")
    shape = types.SimpleNamespace(major=9, minor=0, total_memory=141 * GIB, multi_processor_count=132, name="cpu", gcnArchName="")
    cuda.get_device_properties, cuda.get_device_capability = lambda *a, **k: shape, lambda *a, **k: (9, 0)
    cuda.get_device_name, cuda.mem_get_info = lambda *a, **k: "cpu", lambda *a, **k: (141 * GIB, 141 * GIB)
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *a, **k: torch.get_rng_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    cuda.default_generators, cuda.initial_seed = Generators(), torch.initial_seed
    cuda.memory_stats = lambda *a, **k: __import__("collections").defaultdict(int)
    cuda.Stream = cuda.Event = Nothing
    cuda.current_stream = cuda.default_stream = lambda *a, **k: Nothing()
    cuda.stream = cuda.device = lambda *a, **k: contextlib.nullcontext()
    cuda._lazy_call = lambda function, **k: function()
    cuda.nvtx.range_push = cuda.nvtx.range_pop = none
    cuda.is_current_stream_capturing = lambda: False
    torch.accelerator.is_available, torch.accelerator.current_device_index = lambda: False, lambda: 0
    torch.nn.Module.cuda = torch.Tensor.cuda = lambda self, *a, **k: self
    torch.Tensor.record_stream = none
    torch.compile = lambda function=None, *a, **k: function if function is not None else (lambda inner: inner)
    for name in ("Float", "Int", "Long", "BFloat16", "Half", "Double", "Byte"):
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))


def norms():
    """Torch's norm refuses sequence parallelism; Transformer Engine's does not."""
    import megatron.core.transformer.torch_norm as torch_norm

    make = torch_norm.WrappedTorchNorm.__new__

    def norm(cls, config, *args, **kwargs):
        parallel, config.sequence_parallel = config.sequence_parallel, False
        try:
            module = make(cls, config, *args, **kwargs)
        finally:
            config.sequence_parallel = parallel
        for parameter in module.parameters():
            parameter.sequence_parallel = parallel
        return module

    torch_norm.WrappedTorchNorm.__new__ = norm
    return torch_norm.WrappedTorchNorm


def local_stack():
    """The hybrid stack of local blocks, in the built-in one's place: norms apart, torch's attention, experts one by one."""
    from dataclasses import replace
    from functools import partial

    import megatron.core.models.hybrid.hybrid_block as block
    import megatron.core.models.hybrid.hybrid_layer_specs as specs
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.mlp import MLP, MLPSubmodules

    norm = norms()
    parts = specs.hybrid_stack_spec.submodules
    mixer = replace(parts.mamba_layer.submodules.mixer.submodules, in_proj=ColumnParallelLinear, out_proj=RowParallelLinear)
    mamba = replace(parts.mamba_layer.submodules, norm=norm, mixer=replace(parts.mamba_layer.submodules.mixer, submodules=mixer))
    attention = parts.attention_layer.submodules.self_attention
    inside = replace(
        attention.submodules,
        linear_qkv=ColumnParallelLinear,
        core_attention=DotProductAttention,
        linear_proj=RowParallelLinear,
    )
    attention = replace(
        parts.attention_layer.submodules, input_layernorm=norm, self_attention=replace(attention, submodules=inside)
    )
    dense = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    dense = replace(
        parts.mlp_layer.submodules, pre_mlp_layernorm=norm, mlp=partial(MLP.as_mlp_submodule, submodules=dense)
    )
    experts = get_moe_module_spec(use_te=False, num_experts=8, moe_grouped_gemm=False)
    moe = replace(parts.moe_layer.submodules, pre_mlp_layernorm=norm, mlp=experts)
    depth = parts.mtp_block_spec.submodules.layer_specs[0]
    depth = replace(
        depth,
        submodules=replace(depth.submodules, enorm=norm, hnorm=norm, eh_proj=ColumnParallelLinear, layer_norm=norm),
    )
    depths = replace(parts.mtp_block_spec, submodules=replace(parts.mtp_block_spec.submodules, layer_specs=[depth]))
    parts = replace(
        parts,
        mamba_layer=replace(parts.mamba_layer, submodules=mamba),
        attention_layer=replace(parts.attention_layer, submodules=attention),
        mlp_layer=replace(parts.mlp_layer, submodules=dense),
        moe_layer=replace(parts.moe_layer, submodules=moe),
        mtp_block_spec=depths,
    )
    block.TENorm = norm
    specs.hybrid_stack_spec = replace(specs.hybrid_stack_spec, submodules=parts)
    return specs.hybrid_stack_spec


def ready():
    """Everything a Megatron program needs before it is imported."""
    pretend()
    import megatron.core.datasets.utils as datasets

    datasets.compile_helpers = lambda: None
    local_stack()


def main():
    program, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    ready()
    with ToCpu():
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
