"""A small reference hybrid in plain torch: attention (A), routed experts (E), Mamba-2 and Mamba-3 style
scans (M), a matrix-state recurrence (R), a dense MLP (F) and transformer blocks that layers share (S), sized by the plan's `model`.

Parameters carry the paths of the plan's tensors, so that the plan can be applied by name. Where a
tensor-parallel region begins and ends stand `enter` and `leave`, which are the identity until somebody
puts a collective there; widths inside a region are read off the local weights. It is a reference:
scans are plain torch, products of chunks, and recurrences step by step, on a GPU in one kernel; no token is dropped, and what it does
not have (latent or sparse attention, side embeddings, prediction heads, biases) is refused by name.
Experts are in `moe.py`. What all of it allocates on a GPU is replayed by `shardwright fit --engine fsdp2`:
an operation changed here is to be changed there.
"""

from __future__ import annotations

import math
from itertools import cycle
from typing import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from basics import Norm, Weight, activate, rows_of, times, wide
from depths import Depth
from engram import Engram
from mhc import Around, Collapse, spread
from moe import Moe
from recurrence import Recurrence
from scans import scan


class GateNorm(nn.Module):
    """RMS norm over groups of heads, or over all heads: then `across` sums squares over ranks."""

    def __init__(self, width: int, group: int | None, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps
        self.width, self.group, self.across = width, group, nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.across, nn.Identity):
            groups = x.unflatten(-1, (-1, self.group or self.width))
            return F.rms_norm(groups, groups.shape[-1:], None, self.eps).flatten(-2) * self.weight
        x, dtype = wide(x), x.dtype
        total = self.across(x.square().sum(-1, keepdim=True))
        return (x * torch.rsqrt(total / self.width + self.eps)).to(dtype) * self.weight


class Block(nn.Module):
    """What every mixer has: its norm, and the borders of its tensor-parallel region."""

    def __init__(self, m: dict):
        super().__init__()
        self.norm, self.multipliers = Norm(m["hidden"], m["norm_eps"], m["norm"]), m["multipliers"]
        self.enter, self.leave = nn.Identity(), nn.Identity()


class Conv(nn.Module):
    """A short causal depthwise convolution and SiLU."""

    def __init__(self, channels: int, taps: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taps = self.weight.shape[-1]
        x = F.pad(x.transpose(1, 2), (taps - 1, 0))
        return F.silu(F.conv1d(x, self.weight, self.bias, groups=self.weight.shape[0])).transpose(1, 2)


class _Rotate(torch.autograd.Function):
    """Turns pairs of the last dim. Keeps nothing but the table: backward turns back."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return turned(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return turned(grad, cos, -sin), None, None


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns the pairs (i, n + i) of the last dim's first 2·n entries, n the length of the table."""
    n = cos.shape[-1]
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, *([rest] if rest.shape[-1] else [])], -1)


def rotary(x: torch.Tensor, rope: dict, at: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines for [batch, sequence, heads, columns]: one rate a pair of columns that turn. Tokens stand one
    behind the other, or [batch, sequence] `at` some places."""
    rates = torch.tensor(rope["rates"], device=x.device, dtype=torch.float32)
    at = torch.arange(x.shape[1], device=x.device) if at is None else at
    angle = at.float()[..., None, None] * rates
    angle = angle.to(wide(x).dtype)
    return tuple(times(side, rope["amplitude"]).to(x.dtype) for side in (angle.cos(), angle.sin()))


def turn(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Turns neighbouring entries (2i, 2i + 1) of the last dim's first 2·angles by angles that are learned."""
    n, cos, sin = 2 * angle.shape[-1], angle.cos(), angle.sin()
    a, b, rest = x[..., 0:n:2], x[..., 1:n:2], x[..., n:]
    pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([pairs, rest], -1) if rest.shape[-1] else pairs


class Attention(Block):
    """Grouped-query attention with rotary positions."""

    def __init__(self, m: dict):
        super().__init__(m)
        a = m["attention"]
        self.width, self.rope = a["head_dim"], m["rope"]
        self.ratio = a["heads"] // a["kv_heads"]
        self.qkv = Weight((a["heads"] + 2 * a["kv_heads"]) * self.width, m["hidden"])
        self.out = Weight(m["hidden"], a["heads"] * self.width)
        self.core = AttentionCore(m["multipliers"]["attention"])
        # Positions of the tokens, where the layer takes some only.
        self.at: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        by = self.multipliers
        packed = self.qkv(self.enter(times(self.norm(x), by["attention_in"]))).unflatten(-1, (-1, self.width))
        kv = packed.shape[2] // (self.ratio + 2)
        q, k, v = packed.split([kv * self.ratio, kv, kv], 2)
        k = times(k, by["key"])
        if self.rope is not None:
            table = rotary(packed, self.rope, self.at)
            q, k = _Rotate.apply(q, *table), _Rotate.apply(k, *table)
        # A copy, because attention keeps its values and a view would keep the whole projection.
        return times(self.leave(self.out(self.core(q, k, v.contiguous()))), by["attention_out"])


class AttentionCore(nn.Module):
    """Softmax attention; a module of its own, so that it can be recomputed by itself. Scores are divided by the
    root of a head's width where the recipe gives no scale."""

    def __init__(self, scale: float | None):
        super().__init__()
        self.scale = scale
        # `documents.Borders`, where a row is packed of several.
        self.borders = None

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.borders is not None:
            return self.borders.attend(q, k, v, self.scale)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        is_grouped = q.shape[1] != k.shape[1]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=is_grouped)
        return y.transpose(1, 2).flatten(2)


class Mlp(Block):
    """A dense feed-forward block."""

    def __init__(self, m: dict):
        super().__init__(m)
        ffn, self.activation = m["mlp"]["ffn"], m["mlp"]["activation"]
        self.fc1, self.fc2 = Weight(rows_of(self.activation, ffn), m["hidden"]), Weight(m["hidden"], ffn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, out = self.multipliers["mlp"]
        hidden = activate(self.activation, self.fc1(self.enter(self.norm(x))), gate)
        return times(self.leave(self.fc2(hidden)), out)


class Mamba2(Block):
    """A Mamba-2 style selective scan."""

    def __init__(self, m: dict):
        super().__init__(m)
        s = m["mamba"]
        self.width, self.state, inner = s["head_dim"], s["state"], s["heads"] * s["head_dim"]
        bc = s["groups"] * s["state"]
        self.ratio = s["heads"] // s["groups"]
        self.in_proj = Weight(2 * inner + 2 * bc + s["heads"], m["hidden"])
        self.conv = Conv(inner + 2 * bc, s["conv"], s["conv_bias"])
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(s["heads"])) for _ in range(3))
        self.gate_norm = GateNorm(inner, inner // s["groups"], m["norm_eps"]) if s["gated_norm"] else None
        self.out_proj = Weight(m["hidden"], inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.dt_bias.shape[0]
        inner, bc = heads * self.width, heads // self.ratio * self.state
        by = self.multipliers
        packed = self.in_proj(self.enter(times(self.norm(x), by["ssm_in"])))
        if any(factor != 1.0 for factor in by["ssm"]):
            widths = torch.tensor([inner, inner, bc, bc, heads], device=x.device)
            packed = packed * torch.tensor(by["ssm"], device=x.device, dtype=x.dtype).repeat_interleave(widths)
        z, xbc, dt = packed.split([inner, inner + 2 * bc, heads], -1)
        u, b, c = self.conv(xbc).split([inner, bc, bc], -1)
        u = wide(u).unflatten(-1, (heads, self.width))
        b, c = (wide(t).unflatten(-1, (-1, self.state)).repeat_interleave(self.ratio, 2) for t in (b, c))
        dt = F.softplus(wide(dt) + self.dt_bias)
        y = scan(-dt * wide(self.A_log).exp(), dt.unsqueeze(-1) * u, b, c) + wide(self.D)[:, None] * u
        y = y.flatten(2).to(x.dtype) * F.silu(z)
        y = self.out_proj(y if self.gate_norm is None else self.gate_norm(y))
        return times(self.leave(y), by["ssm_out"])


# The slowest decay of Mamba-3 (`A_floor` of the published module).
A_FLOOR = 1e-4


class Mamba3(Block):
    """Mamba-3 as published (mamba_ssm 2.3.2.post1, `modules/mamba3.py`, one input a head): trapezoidal steps, rotated and
    normalised B and C, no convolution."""

    def __init__(self, m: dict):
        super().__init__(m)
        s = m["mamba"]
        self.width, self.state, inner = s["head_dim"], s["state"], s["heads"] * s["head_dim"]
        self.ratio = s["heads"] // s["groups"]
        self.in_proj = Weight(2 * inner + 2 * s["groups"] * s["state"] + 3 * s["heads"], m["hidden"])
        self.angle_proj = Weight(s["angles"], m["hidden"])
        self.dt_bias, self.D = (nn.Parameter(torch.empty(s["heads"])) for _ in range(2))
        self.B_bias, self.C_bias = (nn.Parameter(torch.empty(s["heads"], 1, s["state"])) for _ in range(2))
        self.B_norm, self.C_norm = (Norm(s["state"], m["norm_eps"]) for _ in range(2))
        self.out_proj = Weight(m["hidden"], inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.dt_bias.shape[0]
        inner, bc = heads * self.width, heads // self.ratio * self.state
        h = self.enter(times(self.norm(x), self.multipliers["ssm_in"]))
        z, u, b, c, dt, a, trap = self.in_proj(h).split([inner, inner, bc, bc, heads, heads, heads], -1)
        u = wide(u).unflatten(-1, (heads, self.width))
        dt, trap = F.softplus(wide(dt) + self.dt_bias), wide(trap).sigmoid()
        decay = -dt * F.softplus(wide(a)).clamp(min=A_FLOOR)
        angle = ((wide(self.angle_proj(h)).tanh() * math.pi).unsqueeze(2) * dt.unsqueeze(-1)).cumsum(1)
        b = turn(self.heads_of(b, self.B_norm, self.B_bias), angle)
        c = turn(self.heads_of(c, self.C_norm, self.C_bias), angle)
        # The trapezoid weighs this step's input and the last one's.
        now = (trap * dt).unsqueeze(-1) * u
        before = ((1 - trap) * dt * decay.exp()).unsqueeze(-1) * F.pad(u, (0, 0, 0, 0, 1, -1))
        y = scan(decay, now, b, c) + scan(decay, before, F.pad(b, (0, 0, 0, 0, 1, -1)), c)
        y = (y + wide(self.D)[:, None] * u).flatten(2).to(x.dtype)
        return times(self.leave(self.out_proj(y * F.silu(z))), self.multipliers["ssm_out"])

    def heads_of(self, packed: torch.Tensor, norm: Norm, bias: torch.Tensor) -> torch.Tensor:
        """B or C of every head: normalised by group, biased by head."""
        groups = norm(packed.unflatten(-1, (-1, self.state)))
        return wide(groups).repeat_interleave(self.ratio, 2) + wide(bias)[:, 0]


class Recurrent(Block):
    """A matrix state that a tanh passes through at every step: it cannot be cut in time."""

    def __init__(self, m: dict):
        super().__init__(m)
        r = m["recurrent"]
        self.key, self.value, qk = r["key_dim"], r["value_dim"], r["qk_heads"] * r["key_dim"]
        self.clip = r["gradient_clip"]
        heads, inner, self.ratio = r["heads"], r["heads"] * r["value_dim"], r["heads"] // r["qk_heads"]
        self.in_proj = Weight(2 * qk + 2 * inner + heads, m["hidden"])
        self.conv = Conv(2 * qk + inner, r["conv"], r["conv_bias"])
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(heads)) for _ in range(2))
        self.state_weight = nn.Parameter(torch.empty(heads, self.value, self.value))
        self.D = nn.Parameter(torch.empty(heads, self.value))
        self.gate_norm = GateNorm(inner, None, m["norm_eps"])
        self.out_proj = Weight(m["hidden"], inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.A_log.shape[0]
        packed = self.in_proj(self.enter(self.norm(x)))
        inner = heads * self.value
        qk = (packed.shape[-1] - 2 * inner - heads) // 2
        qkv, forget, gate = packed.split([2 * qk + inner, heads, inner], -1)
        q, k, v = wide(self.conv(qkv)).split([qk, qk, inner], -1)
        q, k = (t.unflatten(-1, (-1, self.key)) for t in (q, k))
        q, k = (t.repeat_interleave(heads // t.shape[2], 2) for t in (q, k))
        v = v.unflatten(-1, (heads, self.value))
        keep = torch.exp(-F.softplus(wide(forget) + self.dt_bias) * wide(self.A_log).exp())
        y = Recurrence.apply(keep, q, k, v, wide(self.state_weight), 1, 1, self.clip) + wide(self.D) * v
        y = y.flatten(2).to(x.dtype)
        return self.leave(self.out_proj(self.gate_norm(y * F.silu(gate))))


class Tokens(nn.Module):
    """The token table; a rank that holds some rows answers zero for the others."""

    def __init__(self, rows: int, hidden: int):
        super().__init__()
        self.weight, self.first, self.leave = nn.Parameter(torch.empty(rows, hidden)), 0, nn.Identity()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if isinstance(self.leave, nn.Identity):
            return F.embedding(ids, self.weight)
        local = (ids >= self.first) & (ids < self.first + self.weight.shape[0])
        found = F.embedding(torch.where(local, ids - self.first, torch.zeros_like(ids)), self.weight)
        return self.leave(found * local.unsqueeze(-1).to(found.dtype))


class Embedding(nn.Module):
    """What stands before the first layer."""

    def __init__(self, m: dict):
        super().__init__()
        self.tokens, self.factor = Tokens(m["vocab"], m["hidden"]), m["multipliers"]["embedding"]
        self.model = m

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return spread(times(self.tokens(ids), self.factor), self.model)


class Final(nn.Module):
    """The norm after the last layer, behind what makes one residual stream of several."""

    def __init__(self, m: dict):
        super().__init__()
        self.norm = Norm(m["hidden"], m["norm_eps"], m["norm"])
        self.mhc = Collapse(m) if m["mhc"] else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.mhc(x))


class Head(Weight):
    """The projection onto the vocabulary rows held here."""

    def __init__(self, m: dict):
        super().__init__(m["vocab"], m["hidden"])
        self.enter, self.factor, self.fused = nn.Identity(), m["multipliers"]["logits"], "liger"

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        if targets is None:
            return times(F.linear(self.enter(x), self.weight), self.factor)
        # The sum of the losses: logits are never there as a whole.
        if self.fused == "cce":
            from cut_cross_entropy import linear_cross_entropy

            # Its kernels are of a GPU; elsewhere the same loss, compiled.
            impl = "cce" if x.is_cuda else "torch_compile"
            return linear_cross_entropy(times(x, self.factor), self.weight, targets, reduction="sum", impl=impl)
        from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction as Fused

        chosen = (None, None, -100, 0.0, 0.0, "sum")
        return Fused.apply(times(x, self.factor).flatten(0, 1), self.weight, targets.flatten(), *chosen)[0]


class SharedBlock(nn.Module):
    """Attention and a feed-forward part over the residual stream beside the token embeddings, with no residual of its own.
    Several layers run it, each with `own` factors beside some of its projections. Scores are divided by the root of half a
    head's width."""

    def __init__(self, m: dict):
        super().__init__()
        s, hidden = m["shared"], m["hidden"]
        self.width, self.rope, self.activation = s["head_dim"], s["rope"], s["activation"]
        inner, kv = s["heads"] * self.width, s["kv_heads"] * self.width
        self.norm = Norm(2 * hidden, m["norm_eps"], m["norm"])
        self.q, self.k, self.v = Weight(inner, 2 * hidden), Weight(kv, 2 * hidden), Weight(kv, 2 * hidden)
        self.out = Weight(hidden, inner)
        self.mlp_norm = Norm(hidden, m["norm_eps"], m["norm"])
        self.fc1, self.fc2 = Weight(rows_of(self.activation, s["ffn"]), hidden), Weight(hidden, s["ffn"])
        self.core = AttentionCore((self.width / 2) ** -0.5)

    def forward(self, x: torch.Tensor, first: torch.Tensor, own: Shared) -> torch.Tensor:
        x = self.norm(torch.cat([x, first], -1))
        q, k, v = (own.changed(name, part(x), x) for name, part in (("q", self.q), ("k", self.k), ("v", self.v)))
        q, k, v = (t.unflatten(-1, (-1, self.width)) for t in (q, k, v))
        if self.rope is not None:
            table = rotary(q, self.rope, None)
            q, k = _Rotate.apply(q, *table), _Rotate.apply(k, *table)
        x = self.mlp_norm(self.out(self.core(q, k, v)))
        return self.fc2(activate(self.activation, own.changed("fc1", self.fc1(x), x)))


class Shared(nn.Module):
    """A layer's use of a shared block: its own factors, and the projection of what the block gives."""

    def __init__(self, m: dict, block: SharedBlock):
        super().__init__()
        s, self.adapted = m["shared"], m["shared"]["adapted"]
        # In a list, so that the block's weights are not this layer's.
        self.block = [block]
        for name in self.adapted:
            weight = getattr(block, name).weight
            # DeepSpeed's ZeRO 3 leaves the shape of a tensor that is shared out here.
            rows, columns = getattr(weight, "ds_shape", weight.shape)
            self.add_module(f"{name}_down", Weight(s["rank"], columns))
            self.add_module(f"{name}_up", Weight(rows, s["rank"]))
        self.join = Weight(m["hidden"], m["hidden"])

    def changed(self, name: str, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """A shared projection's output, and what this layer's factors add to it."""
        if name not in self.adapted:
            return out
        return out + self.get_submodule(f"{name}_up")(self.get_submodule(f"{name}_down")(x))

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return self.join(self.block[0](x, first, self))


class Layer(nn.Module):
    """Blocks in order, each added to the residual stream, or to all streams by the weights around it; what a shared block
    gives is added to the input of the next."""

    def __init__(self, m: dict, index: int, turns: Iterator[SharedBlock]):
        super().__init__()
        self.factor, self.names = m["multipliers"]["residual"], m["layers"][index]
        for name in self.names:
            kind = mixer_of(m, name)
            block = Shared(m, next(turns)) if kind == "shared" else MIXERS[kind](m)
            block.mhc = Around(m) if m["mhc"] else None
            self.add_module(name, block)
        self.engram = Engram(m, index) if m["engram"] and index in m["engram"]["layers"] else None
        self.mod = Depth(m) if m["mod"] and index in m["mod"]["layers"] else None

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor | None = None, first: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`ids`: the tokens, which a layer with a branch looks up; `first`: their embeddings, which shared blocks read."""
        if self.engram is not None:
            x = self.engram(x, ids)
        return self.blocks(x, first=first) if self.mod is None else self.mod(x, self.blocks)

    def blocks(self, x: torch.Tensor, at: torch.Tensor | None = None, first: torch.Tensor | None = None) -> torch.Tensor:
        """`at`: positions of the tokens, where they are some only."""
        aside = None
        for name in self.names:
            block = getattr(self, name)
            if isinstance(block, Shared):
                aside = block(x, first)
                continue
            if isinstance(block, Attention):
                block.at = at
            fed, aside = (x if aside is None else x + aside), None
            if block.mhc is None:
                x = x + times(block(fed), self.factor)
            else:
                x = block.mhc(fed, lambda one: times(block(one), self.factor))
        return x


MIXERS = {
    "attention": Attention, "moe": Moe, "mamba2": Mamba2, "mamba3": Mamba3, "recurrent": Recurrent, "mlp": Mlp,
}  # fmt: skip


def mixer_of(m: dict, name: str) -> str:
    """The class of a block by its name, which may end in `_2` for a second of its kind in a layer."""
    kind = name.split("_")[0] if name.split("_")[-1].isdigit() else name
    kind = m["mamba"]["kind"] if kind == "mamba" else kind
    if kind not in MIXERS and kind != "shared":
        raise ValueError(f"the reference model has no `{kind}` block; bring a model whose parameters carry the plan's paths")
    return kind


class Hybrid(nn.Module):
    """The layers of one pipeline chunk, with the edges where the chunk has them."""

    def __init__(self, m: dict, layers: list[int], first: bool, last: bool):
        super().__init__()
        for name in m["unsupported"]:
            raise ValueError(f"the reference model has no {name}; bring a model whose parameters carry the plan's paths")
        self.embedding = Embedding(m) if first else None
        shared = m["shared"]["blocks"] if m["shared"] is not None else 0
        if shared and not (first and last):
            raise ValueError("blocks that layers share, over pipeline stages, are not in the reference model")
        self.shared = nn.ModuleDict({str(i): SharedBlock(m) for i in range(shared)})
        turns = cycle(self.shared.values())
        self.layers = nn.ModuleDict({str(i): Layer(m, i, turns) for i in layers})
        # Layers that read the token embeddings besides.
        self.reading = {str(i) for i in layers if any(mixer_of(m, name) == "shared" for name in m["layers"][i])}
        self.final, self.head = (Final(m), Head(m)) if last else (None, None)
        if m["tied"] and last:
            if not first:
                raise ValueError("tied embeddings over pipeline stages are not in the reference model")
            self.head.weight = self.embedding.tokens.weight

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states, logits, or with targets the sum of their losses."""
        ids = x
        if self.embedding is not None:
            x = self.embedding(ids)
        embedded = x if self.reading else None
        for index, layer in self.layers.items():
            if index in self.reading:
                x = layer(x, first=embedded)
            else:
                x = layer(x) if layer.engram is None else layer(x, ids)
        if self.head is None:
            return x
        return self.head(self.final(x)) if targets is None else self.head(self.final(x), targets)
