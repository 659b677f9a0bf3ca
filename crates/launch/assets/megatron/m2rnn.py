"""M2RNN as a mixer behind Megatron's `M`: a recurrence with a matrix-valued state and a tanh in every step
(open-lm-engine/lm-engine, `sequence_mixer_blocks/m2rnn`).

Heads are split over the tensor-parallel ranks: values, gates and scalars by head; queries and keys by head where there
are enough, else by column, gathered behind the convolution as Megatron gathers KV heads below tp. The gated norm runs
over all heads, so its sums of squares cross ranks. Time is not cut: context parallelism is refused, and packed
documents are not kept apart.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from megatron.core.ssm.mamba_layer import MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixerSubmodules
from megatron.core.ssm.utils import _split_tensor_factory
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.mappings import all_gather_last_dim_from_tensor_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.utils import (
    ensure_metadata_has_dp_cp_group,
    make_sharded_tensors_for_checkpoint,
    sharded_state_dict_default,
)
from torch import nn

from .recurrence import Recurrence

# Steps from one kept state to the next. Backward holds all between in registers: of sixteen rows in a warp those of eight
# steps spill 1.7 KiB a thread (compiled for sm_90a), those of four 0.3.
EVERY = 4

# Dimension of every parameter that ranks split.
SPLIT = {name: 0 for name in ("conv_weight", "conv_bias", "A_log", "dt_bias", "state_weight", "D", "gate_norm_weight")}

# Ranges of initial decay rates and steps, as state-spaces/mamba draws them (`modules/mamba2.py`).
RATES, STEPS = (1.0, 16.0), (1e-3, 1e-1)


class Again(torch.autograd.Function):
    """Keeps a function's inputs and runs it again in backward, for what is cheap to compute and wide to keep. A tuple of
    the function's own constants comes first."""

    @staticmethod
    def forward(ctx, function, constants, *inputs):
        ctx.function, ctx.constants = function, constants
        ctx.save_for_backward(*inputs)
        return function(*constants, *inputs)

    @staticmethod
    def backward(ctx, grad):
        needs = ctx.needs_input_grad[2:]
        inputs = [t.detach().requires_grad_(need) for t, need in zip(ctx.saved_tensors, needs)]
        with torch.enable_grad():
            out = ctx.function(*ctx.constants, *inputs)
        made = iter(torch.autograd.grad(out, [t for t in inputs if t.requires_grad], grad))
        return None, None, *(next(made) if need else None for need in needs)


class AcrossRanks(torch.autograd.Function):
    """A sum over ranks of what every rank has a part of and goes on to use: backward sums too."""

    @staticmethod
    def forward(ctx, part, group):
        ctx.group = group
        return summed(part, group)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad, ctx.group), None


def summed(part: torch.Tensor, group) -> torch.Tensor:
    if group.size() == 1:
        return part
    total = part.clone()
    torch.distributed.all_reduce(total, group=group)
    return total


def convolved(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """A short causal depthwise convolution over [time, batch, channels], and SiLU."""
    taps = weight.shape[-1]
    x = F.pad(x.permute(1, 2, 0), (taps - 1, 0))
    return F.silu(F.conv1d(x, weight, *bias, groups=weight.shape[0])).permute(2, 0, 1).contiguous()


def kept(forget: torch.Tensor, dt_bias: torch.Tensor, rate_log: torch.Tensor) -> torch.Tensor:
    """The share of a state that stays, in fp32."""
    return torch.exp(-F.softplus(forget.float() + dt_bias.float()) * rate_log.float().exp()).contiguous()


def gated(group, width, eps, read, v, gate, skip, weight) -> torch.Tensor:
    """RMS norm, over `width` columns of all ranks, of what is read of the state and the skip, gated."""
    y = (read + skip.float().view(v.shape[2:]) * v.float()).flatten(2) * F.silu(gate.float())
    squares = AcrossRanks.apply(y.square().sum(-1, keepdim=True), group)
    return (y * torch.rsqrt(squares / width + eps) * weight.float()).to(gate.dtype)


def parts(built_in: MambaLayerSubmodules, sizes: dict) -> MambaLayerSubmodules:
    """A layer's submodules: the built-in ones around this mixer."""
    mixer = ModuleSpec(module=M2rnnMixer, params={"sizes": sizes}, submodules=built_in.mixer.submodules)
    return replace(built_in, mixer=mixer)


class M2rnnMixer(MegatronModule):
    """Built as Megatron's `MambaLayer` builds its mixer; `sizes` are the recipe's. With Transformer Engine the layer's norm
    is in `in_proj`, as `MambaMixer` has it."""

    def __init__(
        self,
        config,
        submodules: MambaMixerSubmodules,
        d_model: int,
        layer_number: int | None = None,
        pg_collection=None,
        pp_layer_offset: int = 0,
        name: str | None = None,
        *,
        sizes: dict,
    ):
        super().__init__(config)
        self.tp_group, self.layer_number, self.eps = pg_collection.tp, layer_number, sizes["norm_eps"]
        self.clip = sizes["gradient_clip"]
        if pg_collection.cp.size() > 1:
            raise ValueError("M2RNN walks the whole sequence on one rank: --context-parallel-size 1")
        ranks = self.tp_group.size()
        self.key, self.value, self.width = sizes["key_dim"], sizes["value_dim"], sizes["heads"] * sizes["value_dim"]
        queries = sizes["qk_heads"] * self.key
        if sizes["heads"] % ranks or queries % ranks:
            raise ValueError(f"{sizes['heads']} heads and {queries} columns of queries do not split over tp={ranks}")
        self.heads, queries = sizes["heads"] // ranks, queries // ranks
        self.is_gathered = sizes["qk_heads"] % ranks != 0
        inner = self.heads * self.value
        # Rows of this rank: queries, keys, values, forget gates, output gates.
        self.parts = [queries, queries, inner, self.heads, inner]
        named = (lambda part: f"{name}.{part}") if name is not None else (lambda part: None)
        common = dict(config=config, bias=False, is_expert=False, tp_group=self.tp_group)
        self.in_proj = build_module(
            submodules.in_proj,
            d_model,
            sum(self.parts) * ranks,
            init_method=config.init_method,
            gather_output=False,
            skip_bias_add=False,
            tp_comm_buffer_name="fc1",
            name=named("in_proj"),
            **common,
        )
        self.in_proj.weight.partition_sizes = self.parts
        self.out_proj = build_module(
            submodules.out_proj,
            self.width,
            d_model,
            init_method=config.output_layer_init_method,
            input_is_parallel=True,
            skip_bias_add=True,
            tp_comm_buffer_name="fc2",
            name=named("out_proj"),
            **common,
        )
        self.own_parameters(sizes)

    def own_parameters(self, sizes: dict):
        """Scalars, the convolution and the state's weight. `D` is one vector, so that Megatron's Muon leaves it to AdamW
        (`emerging_optimizers.py` takes every tensor of two dimensions)."""
        channels, heads, value = sum(self.parts[:3]), self.heads, self.value
        shapes = {
            "conv_weight": (channels, 1, sizes["conv"]),
            **({"conv_bias": (channels,)} if sizes["conv_bias"] else {}),
            "A_log": (heads,),
            "dt_bias": (heads,),
            "state_weight": (heads, value, value),
            "D": (heads * value,),
            "gate_norm_weight": (heads * value,),
        }
        device, dtype = torch.cuda.current_device(), self.config.params_dtype
        if self.config.init_model_with_meta_device:
            device = "meta"
        for name, shape in shapes.items():
            parameter = nn.Parameter(torch.ones(shape, device=device, dtype=dtype))
            parameter.tensor_model_parallel, parameter.partition_dim = True, 0
            setattr(self, name, parameter)
        for name in ("conv_weight", "conv_bias"):
            if hasattr(self, name):
                getattr(self, name).partition_sizes = self.parts[:3]
        if self.config.perform_initialization:
            with get_cuda_rng_tracker().fork():
                self.draw()

    @torch.no_grad()
    def draw(self):
        """First values, the published block's: the state's weight is the identity."""
        bound = self.conv_weight.shape[-1] ** -0.5
        self.conv_weight.uniform_(-bound, bound)
        if hasattr(self, "conv_bias"):
            self.conv_bias.uniform_(-bound, bound)
        self.A_log.copy_(torch.empty_like(self.A_log, dtype=torch.float32).uniform_(*RATES).log())
        low, high = (math.log(step) for step in STEPS)
        step = torch.empty_like(self.dt_bias, dtype=torch.float32).uniform_(low, high).exp()
        self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
        self.state_weight.copy_(torch.eye(self.value).expand_as(self.state_weight))

    def forward(self, hidden_states, inference_context=None, *, inference_params=None, packed_seq_params=None):
        """[time, batch, hidden] in and out; time is cut where sequence parallelism cuts it, and whole between."""
        if inference_context is not None or inference_params is not None or packed_seq_params is not None:
            raise NotImplementedError("M2RNN trains over whole rows: no inference, no packed sequences")
        packed, _ = self.in_proj(hidden_states)
        qkv, forget, gate = packed.split([sum(self.parts[:3]), *self.parts[3:]], -1)
        bias = (self.conv_bias,) if hasattr(self, "conv_bias") else ()
        qkv = Again.apply(convolved, (), qkv, self.conv_weight, *bias)
        queries, v = qkv.split([2 * self.parts[0], self.parts[2]], -1)
        queries = queries.unflatten(-1, (2, -1))
        if self.is_gathered:
            queries = all_gather_last_dim_from_tensor_parallel_region(queries, group=self.tp_group)
        q, k = (t.unflatten(-1, (-1, self.key)) for t in queries.unbind(-2))
        v = v.unflatten(-1, (-1, self.value))
        q, k = self.of_this_rank(q), self.of_this_rank(k)
        keep = Again.apply(kept, (), forget, self.dt_bias, self.A_log)
        read = Recurrence.apply(keep, q, k, v, self.state_weight.float(), 0, EVERY, self.clip)
        constants = (self.tp_group, self.width, self.eps)
        y = Again.apply(gated, constants, read, v, gate, self.D, self.gate_norm_weight)
        return self.out_proj(y)

    def of_this_rank(self, gathered: torch.Tensor) -> torch.Tensor:
        """Of all query or key heads those that this rank's heads read, one for each where they are not shared evenly."""
        if not self.is_gathered:
            return gathered
        shared = gathered.shape[2]
        readers = self.heads * self.tp_group.size() // shared
        first = self.heads * self.tp_group.rank()
        read = [head // readers for head in range(first, first + self.heads)]
        return gathered[:, :, read[:1]] if read[0] == read[-1] else gathered[:, :, read]

    def mamba_state_shapes_per_request(self):
        raise NotImplementedError("M2RNN has no inference under Megatron")

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        """Every packed part is a tensor of its own in a checkpoint, so that any tp reads it."""
        metadata = ensure_metadata_has_dp_cp_group(metadata)
        own = {}
        self._save_to_state_dict(own, "", keep_vars=True)
        groups = {"tp_group": self.tp_group, "dp_cp_group": metadata["dp_cp_group"]}
        sharded = make_sharded_tensors_for_checkpoint(own, prefix, SPLIT, sharded_offsets, **groups)
        for name, module in self.named_children():
            at = f"{prefix}{name}."
            sharded.update(sharded_state_dict_default(module, at, sharded_offsets, metadata, tp_group=self.tp_group))
        packed = {"in_proj.weight": "qkvfg", "conv_weight": "qkv", "conv_bias": "qkv"}
        for name, letters in packed.items():
            if (key := f"{prefix}{name}") in sharded:
                sharded[key] = _split_tensor_factory(sharded[key], self.parts[: len(letters)], list(letters), 0)
        return sharded
