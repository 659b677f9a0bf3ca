"""The scan of Mamba-3: mamba_ssm's Triton kernels where they run, else products of matrices chunk by chunk in fp32.

With steps dt, decays a·dt, t = sigmoid(trap), and B and C biased by head and turned by the running sum of
tanh(angle)·π·dt, neighbouring columns (2i, 2i + 1) by one angle:
  state = exp(a·dt)·state + (1 - t)·dt·exp(a·dt)·(x ⊗ B of the token before) + t·dt·(x ⊗ B)
  y = (state·C + D·x)·silu(z)
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

logger = logging.getLogger(__name__)


@dataclass
class Inputs:
    """b, c: [batch, sequence, groups, state]; x, z: [batch, sequence, heads, width]; dt, decay (a·dt), trap (before its
    sigmoid): [batch, heads, sequence]; biases: [heads, state]; d: [heads]; angles, before tanh: [batch, sequence, angles]."""

    c: torch.Tensor
    b: torch.Tensor
    x: torch.Tensor
    z: torch.Tensor
    decay: torch.Tensor
    dt: torch.Tensor
    trap: torch.Tensor
    c_bias: torch.Tensor
    b_bias: torch.Tensor
    d: torch.Tensor
    angles: torch.Tensor


def scan(t: Inputs, chunk: int) -> torch.Tensor:
    """[batch, sequence, heads, width], in the format of x."""
    reason = refused(t, chunk)
    if reason is None:
        heads = t.x.shape[2]
        # Every head reads the same angles: a view, so that one copy of them is kept.
        angles = t.angles.unsqueeze(2).expand(-1, -1, heads, -1)
        return kernel()[0](
            Q=t.c, K=t.b, V=t.x, ADT=t.decay, DT=t.dt, Trap=t.trap, Q_bias=t.c_bias, K_bias=t.b_bias,
            Angles=angles, D=t.d, Z=t.z, chunk_size=chunk,
        )  # fmt: skip
    if t.x.is_cuda:
        say_once(f"Mamba-3 runs in torch, several times slower than mamba_ssm's kernels: {reason}")
    inputs = (t.c, t.b, t.x, t.z, t.decay, t.dt, t.trap, t.c_bias, t.b_bias, t.d, t.angles)
    return checkpoint(chunked, *inputs, chunk, use_reentrant=False, preserve_rng_state=False)


def refused(t: Inputs, chunk: int) -> str | None:
    """Why the kernels cannot run this."""
    if not t.x.is_cuda:
        return "tensors are not on a GPU"
    if kernel()[0] is None:
        return f"mamba_ssm 2.3.2.post1 does not import ({kernel()[1]})"
    if t.x.dtype != torch.bfloat16:
        return f"they compute in bf16, and activations are {t.x.dtype}"
    sizes = {"head_dim": t.x.shape[-1], "state": t.c.shape[-1], "chunk": chunk}
    odd = [f"{name} {size}" for name, size in sizes.items() if size < 16 or size & (size - 1)]
    if odd:
        return f"they want powers of two from 16, and have {', '.join(odd)}"
    if t.angles.shape[-1] % 2:
        return f"they want an even number of angles, and have {t.angles.shape[-1]}"
    return None


@lru_cache(maxsize=1)
def kernel() -> tuple[Callable | None, str]:
    """The published kernels' autograd function, or what stops their import."""
    try:
        from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined
    except Exception as error:  # a missing package, or one of another version
        return None, f"{type(error).__name__}: {error}"
    narrow()
    return mamba3_siso_combined, ""


# Triton's pipelining of these kernels' loops is not to be trusted: results are wrong on Blackwell (state-spaces/mamba, pull
# request 997), and on an H200 under Triton 3.6 two of five runs of twelve layers ended in a failed launch, and the
# gradient's norm at one step differed by 5% between two runs.
STAGES = 1
# Of each published kernel, the warps, registers and other sizes that were fastest on an H200 with pipelining (56 heads of 64,
# state 64); without it nobody has timed them. Tuning compiles every configuration, one after another: minutes over all, and
# seconds over these.
FASTEST = {
    "angle_dt_fwd_kernel": {"num_warps": 8},
    "mamba3_siso_fwd_kernel": {"num_warps": 4, "maxnreg": 256},
    "mamba3_siso_bwd_kernel_dzdo": {"num_warps": 2, "CHUNK_SIZE": 32},
    "mamba3_siso_bwd_kernel_dqkv": {"num_warps": 4},
    "mamba3_siso_bwd_kernel_rotary_bias_angles": {"num_warps": 4},
}
# Kernels without a measured best tune over those of four warps.
USUAL = {"num_warps": 4}


def narrow() -> None:
    """Leaves Mamba-3's kernels configurations without pipelining, and on Hopper those that were measured."""
    from mamba_ssm.ops.triton.mamba3 import angle_dt, mamba3_siso_bwd, mamba3_siso_fwd

    is_hopper = torch.cuda.get_device_capability()[0] == 9
    for module in (angle_dt, mamba3_siso_bwd, mamba3_siso_fwd):
        for name, kernel in vars(module).items():
            if hasattr(kernel, "configs") and hasattr(kernel, "cache"):
                safe = [one for one in kernel.configs if one.num_stages == STAGES]
                if not safe:
                    raise RuntimeError(f"mamba_ssm's {name} has no configuration of {STAGES} stage")
                wanted = FASTEST.get(name, USUAL) if is_hopper else {}
                kernel.configs = [one for one in safe if has(one, wanted)] or safe


def has(config, wanted: dict) -> bool:
    """Whether a configuration is one of these, with registers as the compiler has them unless a number is wanted."""
    sizes = {**config.kwargs, "num_warps": config.num_warps, "maxnreg": getattr(config, "maxnreg", None)}
    return all(sizes.get(key) == value for key, value in {"maxnreg": None, **wanted}.items())


@lru_cache(maxsize=None)
def say_once(message: str) -> None:
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        logger.warning(message)


def chunked(c, b, x, z, decay, dt, trap, c_bias, b_bias, d, angles, chunk: int) -> torch.Tensor:
    """The same in torch. A token's input enters with the weight of its own step and, from the next token on, with that of
    the next step besides, so that one scan does for both; only a token's own output takes the first alone."""
    heads, dtype, length = x.shape[2], x.dtype, x.shape[1]
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    c, b, x, z, decay, dt, trap, c_bias, b_bias, d, angles = (
        t.to(precise) for t in (c, b, x, z, decay, dt, trap, c_bias, b_bias, d, angles)
    )
    dt, decay, trap = (t.transpose(1, 2) for t in (dt, decay, trap.sigmoid()))
    angle = (angles.tanh().unsqueeze(2) * (math.pi * dt).unsqueeze(-1)).cumsum(1)
    b, c = (
        turned(t.repeat_interleave(heads // t.shape[2], 2) + bias, angle) for t, bias in ((b, b_bias), (c, c_bias))
    )
    this = trap * dt
    both = this + F.pad(((1 - trap) * dt)[:, 1:], (0, 0, 0, 1))
    size = min(chunk, length)
    u, b, c, decay, this, both = (laid(t, size) for t in (x, b, c, decay, this, both))
    total = decay.cumsum(-1)
    gaps = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril(-1).exp().tril(-1)
    y = ((c @ b.mT) * (gaps * both.unsqueeze(-2) + torch.diag_embed(this))) @ u
    fresh = (((total[..., -1:] - total).exp() * both).unsqueeze(-1) * b).mT @ u
    y = y + (total.exp().unsqueeze(-1) * c) @ handed(total[..., -1], fresh)
    y = y.movedim(1, 3).flatten(1, 2)[:, :length] + d[:, None] * x
    return (y * F.silu(z)).to(dtype)


def laid(t: torch.Tensor, size: int) -> torch.Tensor:
    """[batch, sequence, heads, ...] as [batch, heads, chunks, size, ...], with zeros behind the last token."""
    pad = -t.shape[1] % size
    t = F.pad(t, (0, 0) * (t.dim() - 2) + (0, pad)) if pad else t
    return t.unflatten(1, (-1, size)).movedim(3, 1)


def handed(decay: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """States before each chunk: they decay over a chunk, and take in what it adds."""
    state, before = torch.zeros_like(fresh[:, :, 0]), []
    for at in range(fresh.shape[2]):
        before.append(state)
        state = decay[:, :, at, None, None].exp() * state + fresh[:, :, at]
    return torch.stack(before, 2)


def turned(t: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Turns neighbouring columns of the first 2·angles."""
    count = angle.shape[-1]
    pairs, rest = t[..., : 2 * count].unflatten(-1, (count, 2)), t[..., 2 * count :]
    (even, odd), cos, sin = pairs.unbind(-1), angle.cos(), angle.sin()
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([pairs, rest], -1)
