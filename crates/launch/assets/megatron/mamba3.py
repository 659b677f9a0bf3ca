"""Mamba-3 for Megatron-Core 0.19 behind its `M` symbol: one input a head, tensor-parallel.

The definition is the published module's, mamba_ssm 2.3.2.post1 (`modules/mamba3.py`). The angle projection stands apart
from `in_proj`, because one set of angles turns every head: `in_proj` is cut by heads and groups, `angle_proj` and the
norms of B and C are whole on every rank. The norm before the mixer is `MambaLayer`'s own, not fused into `in_proj`,
because `angle_proj` reads it too. Context parallelism, packed sequences and inference are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.utils import _split_tensor_factory
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.utils import (
    ensure_metadata_has_dp_cp_group,
    make_sharded_tensors_for_checkpoint,
    sharded_state_dict_default,
)
from torch import nn

from . import mamba3_scan

SEGMENTS = ["z", "x", "B", "C", "dt", "A", "trap"]
"""What `in_proj` packs, in order: the published module's, without its angles."""
DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 0.1, 1e-4
"""Range of the first steps, log-uniform (`dt_min`, `dt_max`, `dt_init_floor`)."""
A_FLOOR = 1e-4
"""The slowest decay (`A_floor`)."""


@dataclass
class Mamba3Submodules:
    in_proj: ModuleSpec | type
    out_proj: ModuleSpec | type


def layer_spec(sizes: dict, use_te: bool = True) -> ModuleSpec:
    """A layer of this mixer, of Transformer Engine's modules or of Megatron's own."""
    if use_te:
        from megatron.core.extensions.transformer_engine import TEColumnParallelLinear as Column
        from megatron.core.extensions.transformer_engine import TENorm as Norm
        from megatron.core.extensions.transformer_engine import TERowParallelLinear as Row
    else:
        from megatron.core.tensor_parallel.layers import ColumnParallelLinear as Column
        from megatron.core.tensor_parallel.layers import RowParallelLinear as Row
        from megatron.core.transformer.torch_norm import WrappedTorchNorm as Norm
    mixer = ModuleSpec(module=Mamba3Mixer, params={"sizes": sizes}, submodules=Mamba3Submodules(in_proj=Column, out_proj=Row))
    return ModuleSpec(
        module=MambaLayer, submodules=MambaLayerSubmodules(norm=Norm, mixer=mixer, mamba_bda=get_bias_dropout_add)
    )


def parts(built_in: MambaLayerSubmodules, sizes: dict) -> MambaLayerSubmodules:
    """A layer's submodules, of Transformer Engine's modules where the built-in layer is."""
    return layer_spec(sizes, built_in.mixer.submodules.in_proj.__name__.startswith("TE")).submodules


class Replicated(nn.Module):
    """A weight that is whole on every rank, whose gradient is summed over ranks.

    Under sequence parallelism Megatron sums it once a step (`finalize_model_grads.py`), because of the mark; without,
    each backward does. `is_partial`: ranks compute parts of its gradient without sequence parallelism too."""

    def __init__(self, config: TransformerConfig, tp_group: torch.distributed.ProcessGroup, shape: tuple[int, ...], is_partial: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, device=device_of(config), dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel
        self.tp_group = tp_group
        self.is_summed_here = is_partial and not config.sequence_parallel and tp_group.size() > 1

    def forward(self) -> torch.Tensor:
        return copy_to_tensor_model_parallel_region(self.weight, self.tp_group) if self.is_summed_here else self.weight


class Mamba3Mixer(MegatronModule):
    """`sizes`: heads, head_dim, state, groups, angles, chunk and norm_eps of the whole model. [sequence, batch, hidden]
    in and out, normed, of this rank's tokens under sequence parallelism."""

    def __init__(
        self,
        config: TransformerConfig,
        submodules: Mamba3Submodules,
        d_model: int,
        layer_number: int | None = None,
        pg_collection=None,
        pp_layer_offset: int = 0,
        name: str | None = None,
        *,
        sizes: dict,
    ):
        super().__init__(config)
        self.layer_number, self.pp_layer_offset = layer_number, pp_layer_offset
        self.tp_group, tp = pg_collection.tp, pg_collection.tp.size()
        check(config, sizes, tp)
        self.width, self.state, self.chunk, self.eps = (sizes[key] for key in ("head_dim", "state", "chunk", "norm_eps"))
        self.heads, self.groups = sizes["heads"] // tp, sizes["groups"] // tp
        self.is_split = tp > 1
        inner, shared = sizes["heads"] * self.width, sizes["groups"] * self.state
        common = {"config": config, "bias": False, "is_expert": False, "tp_group": self.tp_group}
        self.in_proj = build_module(
            submodules.in_proj,
            d_model,
            2 * inner + 2 * shared + 3 * sizes["heads"],
            init_method=config.init_method,
            gather_output=False,
            skip_bias_add=False,
            tp_comm_buffer_name="fc1",
            name=f"{name}.in_proj" if name else None,
            **common,
        )
        # Rows of each segment on this rank, for those who put shards together.
        self.in_proj.weight.partition_sizes = self.segments()
        self.angle_proj = Replicated(config, self.tp_group, (sizes["angles"], d_model), is_partial=False)
        self.B_norm, self.C_norm = (Replicated(config, self.tp_group, (self.state,), is_partial=True) for _ in range(2))
        self.dt_bias = self.by_head(first_steps(config, self.heads, self.tp_group))
        ones = torch.ones(self.heads, device=self.dt_bias.device)
        self.D = self.by_head(ones)
        self.B_bias, self.C_bias = (self.by_head(ones[:, None, None].repeat(1, 1, self.state)) for _ in range(2))
        for vector in (self.dt_bias, self.D):
            vector._no_weight_decay = True
        if config.perform_initialization:
            # Whole on every rank: drawn outside the tensor-parallel generator.
            config.init_method(self.angle_proj.weight)
        self.out_proj = build_module(
            submodules.out_proj,
            inner,
            d_model,
            init_method=config.output_layer_init_method,
            input_is_parallel=True,
            skip_bias_add=True,
            tp_comm_buffer_name="fc2",
            name=f"{name}.out_proj" if name else None,
            **common,
        )

    def by_head(self, value: torch.Tensor) -> nn.Parameter:
        parameter = nn.Parameter(value)
        parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, 0, 1
        return parameter

    def segments(self) -> list[int]:
        """Rows of `in_proj` on this rank, by segment."""
        inner, shared = self.heads * self.width, self.groups * self.state
        return [inner, inner, shared, shared, self.heads, self.heads, self.heads]

    def forward(self, hidden_states: torch.Tensor, inference_context=None, packed_seq_params=None) -> tuple[torch.Tensor, None]:
        if inference_context is not None or packed_seq_params is not None:
            raise NotImplementedError("the Mamba-3 mixer trains on whole sequences: no inference, no packed sequences")
        angles = self.angles(hidden_states)
        packed, _ = self.in_proj(hidden_states)
        inner, shared = self.heads * self.width, self.groups * self.state
        z, x, b, c, rates, trap = packed.split([inner, inner, shared, shared, 2 * self.heads, self.heads], -1)
        # Copies, laid out as the kernels want them: a view would keep the whole projection for backward.
        z, x, b, c = (part.transpose(0, 1).contiguous() for part in (z, x, b, c))
        rates = rates.permute(1, 2, 0).to(torch.float32, memory_format=torch.contiguous_format)
        trap = trap.permute(1, 2, 0).contiguous()
        del packed
        dt, decay = self.steps(rates)
        y = mamba3_scan.scan(
            mamba3_scan.Inputs(
                c=self.normed(c, self.C_norm()),
                b=self.normed(b, self.B_norm()),
                x=x.unflatten(-1, (self.heads, self.width)),
                z=z.unflatten(-1, (self.heads, self.width)),
                decay=decay,
                dt=dt,
                trap=trap,
                c_bias=self.C_bias[:, 0].float(),
                b_bias=self.B_bias[:, 0].float(),
                d=self.D.float(),
                angles=angles,
            ),
            self.chunk,
        )
        out, _ = self.out_proj(y.flatten(2).transpose(0, 1).contiguous())
        return out, None

    def angles(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Raw angles of all tokens, [batch, sequence, angles]: each rank projects its own tokens. Heads of this rank
        give part of their gradient, so ranks sum it on the way back."""
        raw = F.linear(hidden_states, self.angle_proj())
        if self.is_split and self.config.sequence_parallel:
            raw = gather_from_sequence_parallel_region(raw, tensor_parallel_output_grad=True, group=self.tp_group)
        elif self.is_split:
            raw = copy_to_tensor_model_parallel_region(raw, self.tp_group)
        return raw.transpose(0, 1).contiguous()

    def steps(self, rates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Steps, and logarithms of decays over them, [batch, heads, sequence] in fp32."""
        dt, a = rates.chunk(2, 1)
        dt = F.softplus(dt + self.dt_bias.float()[:, None])
        return dt, (-F.softplus(a)).clamp(max=-A_FLOOR) * dt

    def normed(self, packed: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """B or C by group."""
        return F.rms_norm(packed.unflatten(-1, (self.groups, self.state)), (self.state,), weight, self.eps)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None) -> dict:
        """Keys of a distributed checkpoint. `in_proj` is saved segment by segment, so that another degree can load it."""
        metadata = ensure_metadata_has_dp_cp_group(metadata)
        own: dict = {}
        self._save_to_state_dict(own, "", keep_vars=True)
        sharded = make_sharded_tensors_for_checkpoint(
            own,
            prefix,
            tensor_parallel_layers_axis_map={"dt_bias": 0, "D": 0, "B_bias": 0, "C_bias": 0},
            sharded_offsets=sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )
        for name, module in self.named_children():
            sharded.update(
                sharded_state_dict_default(module, f"{prefix}{name}.", sharded_offsets, metadata, tp_group=self.tp_group)
            )
        key = f"{prefix}in_proj.weight"
        sharded[key] = _split_tensor_factory(sharded[key], self.segments(), SEGMENTS, 0)
        return sharded


def check(config: TransformerConfig, sizes: dict, tp: int) -> None:
    if config.context_parallel_size > 1:
        raise ValueError(
            f"the Mamba-3 mixer does not hand its state over context ranks, and context_parallel_size is {config.context_parallel_size}: set it to 1"
        )
    for key in ("heads", "groups"):
        if sizes[key] % tp:
            raise ValueError(f"{sizes[key]} Mamba-3 {key} are not a multiple of tensor_model_parallel_size {tp}")
    rows = 2 * sizes["heads"] * sizes["head_dim"] + 2 * sizes["groups"] * sizes["state"] + 3 * sizes["heads"]
    if config.fp8 and rows // tp % 16:
        raise ValueError(f"fp8 wants multiples of 16 rows, and Mamba-3's input projection has {rows // tp} on a rank")
    if sizes["heads"] % sizes["groups"]:
        raise ValueError(f"{sizes['heads']} Mamba-3 heads are not a multiple of {sizes['groups']} groups")


def device_of(config: TransformerConfig) -> torch.device | str | int:
    return "cpu" if config.use_cpu_initialization else torch.cuda.current_device()


def first_steps(config: TransformerConfig, heads: int, tp_group: torch.distributed.ProcessGroup) -> torch.Tensor:
    """Biases of this rank's heads that softplus takes to steps drawn log-uniformly."""
    if config.use_cpu_initialization:
        drawn = torch.rand(heads * tp_group.size())[heads * tp_group.rank() :][:heads]
    else:
        with get_cuda_rng_tracker().fork():
            drawn = torch.rand(heads, device=device_of(config))
    dt = torch.exp(drawn * math.log(DT_MAX / DT_MIN) + math.log(DT_MIN)).clamp(min=DT_FLOOR)
    return dt + torch.log(-torch.expm1(-dt))
