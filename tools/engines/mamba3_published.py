"""The published Mamba-3 module on a CPU: mamba_ssm's own Python and Triton kernels under Triton's interpreter, in fp32.

Three things of a GPU are stood in for: PTX approximations (by exact functions), autotuning (by the first configuration),
and bf16, which the kernels' wrapper and their kept states are rounded to.
"""

from __future__ import annotations

import os
import sys
import types

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton
import triton.language as tl


@triton.jit
def cos_approx(x):
    return tl.cos(x)


@triton.jit
def sin_approx(x):
    return tl.sin(x)


@triton.jit
def tanh_approx(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def sech2_approx(x):
    tanh_x = 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return 1.0 - tanh_x * tanh_x


@triton.jit
def sigmoid_approx(x):
    return tl.sigmoid(x)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


class Wide:
    """torch, where bf16 is fp32."""

    bfloat16 = torch.float32

    def __getattr__(self, name: str):
        return getattr(torch, name)


class First:
    """An autotuned kernel with its first configuration."""

    def __init__(self, tuned):
        self.kernel, self.chosen = tuned.fn, tuned.configs[0].kwargs
        # What the package narrows, and all of it.
        self.configs, self.cache, self.whole = tuned.configs, {}, tuned.configs

    def __getitem__(self, grid):
        return lambda *args, **named: self.kernel[grid](*args, **{**self.chosen, **named})


def module(folder: str) -> type:
    """The class `Mamba3` of the sources in `folder`, which asserts that tensors are on a GPU: run Python with -O."""
    sys.path.insert(0, folder)
    # A compiled extension of Mamba-1, which the package imports first.
    sys.modules["selective_scan_cuda"] = types.ModuleType("selective_scan_cuda")
    exact = types.ModuleType("exact")
    for function in (cos_approx, sin_approx, tanh_approx, sech2_approx, sigmoid_approx, silu):
        setattr(exact, function.fn.__name__, function)
    sys.modules["mamba_ssm.ops.triton.mamba3.utils"] = exact
    from mamba_ssm.modules import mamba3
    from mamba_ssm.ops.triton.mamba3 import angle_dt, mamba3_siso_bwd, mamba3_siso_combined, mamba3_siso_fwd

    for file in (angle_dt, mamba3_siso_bwd, mamba3_siso_combined, mamba3_siso_fwd):
        file.torch = Wide()
        for name, value in list(vars(file).items()):
            if hasattr(value, "configs"):
                setattr(file, name, First(value))
    # The same without a gate; its own is a kernel for GPUs alone.
    mamba3.RMSNormGated = lambda width, eps, **_: torch.nn.RMSNorm(width, eps)
    return mamba3.Mamba3
