"""cpu_megatron.py with local blocks for latent and sparse attention as well.

    latent_megatron.py LM/pretrain_hybrid.py ARGUMENTS...      with torchrun's variables
"""

from __future__ import annotations

import os
import runpy
import sys
import types
from typing import Any

import cpu_megatron
import torch
import torch._dynamo  # before cuda's functions are replaced: it keeps a table of them
from torch import Tensor, nn


def hadamard(x: Tensor, scale: float = 1.0) -> Tensor:
    """What `fast_hadamard_transform` computes."""
    out, half = x.reshape(-1, x.shape[-1]), 1
    while half < x.shape[-1]:
        pairs = out.view(len(out), -1, 2, half)
        out = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2)
        half *= 2
    return out.reshape(x.shape) * scale


def places() -> dict[str, type]:
    """Local classes in the place of Transformer Engine's."""
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    class Whole(nn.Linear):
        def __init__(self, inner: int, outer: int, *, config: Any, init_method: Any, bias: bool, **_: Any) -> None:
            super().__init__(inner, outer, bias=bias, dtype=config.params_dtype)
            init_method(self.weight)

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return super().forward(x), None

    class Normed(ColumnParallelLinear):
        def __init__(self, inner: int, *args: Any, config: Any, **kwargs: Any) -> None:
            super().__init__(inner, *args, config=config, **kwargs)
            self.norm = WrappedTorchNorm(config=config, hidden_size=inner, eps=config.layernorm_epsilon)

        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
            return super().forward(self.norm(x), *args, **kwargs)

    class Core(DotProductAttention):
        def __init__(self, *args: Any, k_channels: Any = None, v_channels: Any = None, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if v_channels is not None:
                self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    return {
        "TENorm": WrappedTorchNorm,
        "TELinear": Whole,
        "TEColumnParallelLinear": ColumnParallelLinear,
        "TELayerNormColumnParallelLinear": Normed,
        "TERowParallelLinear": RowParallelLinear,
        "TEDotProductAttention": Core,
    }


def ready() -> None:
    """Puts them where Megatron's modules look, before its stack is built."""
    sys.modules["fast_hadamard_transform"] = types.ModuleType("fast_hadamard_transform")
    sys.modules["fast_hadamard_transform"].hadamard_transform = hadamard
    cpu_megatron.pretend()
    import megatron.core.extensions.transformer_engine as extension

    local = places()
    for name, one in local.items():
        setattr(extension, name, one)
    import megatron.core.transformer.experimental_attention_variant.absorbed_mla as absorbed
    import megatron.core.transformer.experimental_attention_variant.dsa as sparse
    import megatron.core.transformer.multi_latent_attention as latent

    for module in (absorbed, sparse, latent):
        for name, one in local.items():
            if hasattr(module, name):
                setattr(module, name, one)
    from megatron.core.models.backends import LocalSpecProvider

    LocalSpecProvider.column_parallel_layer_norm_linear = lambda self: local["TELayerNormColumnParallelLinear"]
    LocalSpecProvider.core_attention = lambda self: local["TEDotProductAttention"]
    cpu_megatron.ready()


def main() -> None:
    program, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    ready()
    with cpu_megatron.ToCpu():
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
