"""A shared expert with an activation of its own: Megatron has one for the whole model (`TransformerConfig`)."""

from __future__ import annotations

from copy import copy

import torch.nn.functional as F
from megatron.core.activations import squared_relu
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP

# Function, whether its input is a gate and a linear half, whether Megatron has it fused without a bias.
ACTIVATIONS = {
    "swiglu": (F.silu, True, True),
    "geglu": (F.gelu, True, True),
    "relu2": (squared_relu, False, False),
    "gelu": (F.gelu, False, False),
    "silu": (F.silu, False, False),
}


class SharedExpert(SharedExpertMLP):
    """`SharedExpertMLP` under a copy of the configuration that has the shared expert's activation. Its width is
    `--moe-shared-expert-intermediate-size`; a gated one's first projection has twice as many rows, and is saved as two
    halves, as `MLP.sharded_state_dict` does by the same configuration."""

    def __init__(self, config, submodules, gate: bool = False, pg_collection=None, name: str | None = None, *, sizes: dict):
        if config.moe_shared_expert_overlap:
            raise ValueError("--moe-shared-expert-overlap is for Megatron's own shared expert")
        width = config.moe_shared_expert_intermediate_size
        if width != sizes["ffn"]:
            raise ValueError(f"--moe-shared-expert-intermediate-size is {width}, and the recipe says {sizes['ffn']}")
        own = copy(config)
        own.activation_func, own.gated_linear_unit, own.bias_activation_fusion = ACTIVATIONS[sizes["activation"]]
        # Clamps and offsets are of the routed experts' activation.
        own.activation_func_clamp_value, own.glu_linear_offset = None, 0.0
        own.use_te_activation_func = False
        super().__init__(own, submodules, gate, pg_collection, name)
