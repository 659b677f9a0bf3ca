"""The recurrence of `recurrence.py` on a GPU, in Triton.

Rows of a state never meet but in what is read: state[i] ← keep·state[i] + (1 - keep)·tanh(state[i] @ weight + k[i]·v). So a
program walks some rows of one head of one sequence, in one warp that no other has to wait for, and what is read is summed
over programs. States are kept every so many steps. Backward loads one, walks to the next again with all states between in
registers, then goes back over them: behind one another are only the product with the weight and what it adds to.
Everything is fp32 inside, whatever the inputs are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Way:
    """How the kernels run: rows of a state a program walks, its warps, and how products are taken: fp32 by `ieee`, or
    three products of tf32, as exact to six digits, by `tf32x3`. `tools/measure_recurrence.py` times them."""

    rows: int = 16
    warps: int = 1
    precision: str = "tf32x3"


# Forward and backward where a few states are kept, and where every one is.
FEW, ALL = (Way(), Way()), (Way(64, 4, "ieee"), Way(64, 2, "ieee"))


@triton.jit
def rounded(state, square, key, value, PRECISION: tl.constexpr):
    """What a step adds to the state."""
    moved = tl.dot(state, square, input_precision=PRECISION) + key[:, None] * value[None, :]
    return 2.0 * tl.sigmoid(2.0 * moved) - 1.0


@triton.jit
def steps_forward(
    keep, q, k, v, weight, states, out, length, heads, shared, out_part,
    keep_b, keep_t, keep_h, q_b, q_t, q_h, q_one, k_b, k_t, k_h, k_one, v_b, v_t, v_h, v_one, out_b, out_t, out_h,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, PV: tl.constexpr, EVERY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # 64 bits from here on: offsets of a long sequence are beyond 32.
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = row // heads, row % heads
    i, j = part * ROWS + tl.arange(0, ROWS), tl.arange(0, PV)
    in_k, in_v = i < K, j < V
    square = tl.load(weight + head * V * V + j[:, None] * V + j[None, :], in_v[:, None] & in_v[None, :], 0.0)
    cells, in_cells = (row * K + i[:, None]) * V + j[None, :], in_k[:, None] & in_v[None, :]
    # One after the other, all programs' states of one step.
    kept, slot = states + cells, tl.num_programs(0).to(tl.int64) * K * V
    keep += batch * keep_b + head * keep_h
    q += batch * q_b + head // shared * q_h + i * q_one
    k += batch * k_b + head // shared * k_h + i * k_one
    v += batch * v_b + head * v_h + j * v_one
    out += part * out_part + batch * out_b + head * out_h + j
    state = tl.zeros((ROWS, PV), tl.float32)
    next_keep = tl.load(keep)
    next_q, next_k = tl.load(q, in_k, 0.0), tl.load(k, in_k, 0.0)
    next_v = tl.load(v, in_v, 0.0)
    for t in range(length):
        stay, asked, key, value = next_keep, next_q.to(tl.float32), next_k.to(tl.float32), next_v.to(tl.float32)
        # A step's inputs are asked for a step ahead.
        ahead = (row * 0 + tl.minimum(t + 1, length - 1)).to(tl.int64)
        next_keep = tl.load(keep + ahead * keep_t)
        next_q, next_k = tl.load(q + ahead * q_t, in_k, 0.0), tl.load(k + ahead * k_t, in_k, 0.0)
        next_v = tl.load(v + ahead * v_t, in_v, 0.0)
        if t % EVERY == 0:
            tl.store(kept, state, in_cells)
            kept += slot
        fresh = rounded(state, square, key, value, PRECISION)
        state = fresh + stay * (state - fresh)
        tl.store(out, tl.sum(state * asked[:, None], 0), in_v)
        out += out_t
    tl.store(kept, state, in_cells)


@triton.jit
def steps_backward(
    keep, q, k, v, weight, states, grad, to_keep, to_q, to_k, to_v, to_weight, clip, length, heads, shared, parts_keep, parts_v,
    keep_b, keep_t, keep_h, q_b, q_t, q_h, q_one, k_b, k_t, k_h, k_one, v_b, v_t, v_h, v_one, out_b, out_t, out_h,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, PV: tl.constexpr, EVERY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = row // heads, row % heads
    i, j = part * ROWS + tl.arange(0, ROWS), tl.arange(0, PV)
    in_k, in_v = i < K, j < V
    in_square = in_v[:, None] & in_v[None, :]
    square = tl.load(weight + head * V * V + j[:, None] * V + j[None, :], in_square, 0.0)
    across = tl.load(weight + head * V * V + j[None, :] * V + j[:, None], in_square, 0.0)
    cells, in_cells = (row * K + i[:, None]) * V + j[None, :], in_k[:, None] & in_v[None, :]
    kept, slot = states + cells, tl.num_programs(0).to(tl.int64) * K * V
    keep += batch * keep_b + head * keep_h
    q += batch * q_b + head // shared * q_h + i * q_one
    k += batch * k_b + head // shared * k_h + i * k_one
    v += batch * v_b + head * v_h + j * v_one
    # Gradients lie as what is read does, head by head.
    first = batch * out_b + head * out_h
    grad += first + j
    to_v += part * parts_v + first + j
    to_q, to_k = to_q + first // V * K + i, to_k + first // V * K + i
    to_keep += part * parts_keep + first // V
    step_one, step_k = out_t // V, out_t // V * K
    to_state, to_square = tl.zeros((ROWS, PV), tl.float32), tl.zeros((PV, PV), tl.float32)
    blocks = tl.cdiv(length, EVERY)
    for back in range(blocks):
        block = (row * 0 + blocks - 1 - back).to(tl.int64)
        start = block * EVERY
        state = tl.load(kept + block * slot, in_cells, 0.0)
        olds, added, stays = (), (), ()
        for s in tl.static_range(EVERY):
            at = tl.minimum(start + s, length - 1)
            # Behind the last step a column's number is beyond the last column.
            beyond = start + s - at
            stay = tl.load(keep + at * keep_t)
            key = tl.load(k + at * k_t, i + beyond * K < K, 0.0).to(tl.float32)
            value = tl.load(v + at * v_t, j + beyond * V < V, 0.0).to(tl.float32)
            fresh = rounded(state, square, key, value, PRECISION)
            olds, added, stays = olds + (state,), added + (fresh,), stays + (stay,)
            state = fresh + stay * (state - fresh)
        for turn in tl.static_range(EVERY - 1, -1, -1):
            at = tl.minimum(start + turn, length - 1)
            beyond = start + turn - at
            here_k, here_v = i + beyond * K < K, j + beyond * V < V
            asked = tl.load(q + at * q_t, here_k, 0.0).to(tl.float32)
            came = tl.load(grad + at * out_t, here_v, 0.0).to(tl.float32)
            # Asked for again, because registers are what is scarce.
            key = tl.load(k + at * k_t, here_k, 0.0).to(tl.float32)
            value = tl.load(v + at * v_t, here_v, 0.0).to(tl.float32)
            old, fresh, stay = olds[turn], added[turn], stays[turn]
            to_state += asked[:, None] * came[None, :]
            # What is no number stays none.
            to_state = tl.where(to_state > clip, clip, tl.where(to_state < -clip, -clip, to_state))
            inner = (1.0 - stay) * to_state * (1.0 - fresh * fresh)
            tl.store(to_q + at * step_k, tl.sum(state * came[None, :], 1), here_k)
            tl.store(to_keep + at * step_one + j, tl.sum(tl.sum(to_state * (old - fresh), 1), 0), j + beyond < 1)
            tl.store(to_k + at * step_k, tl.sum(inner * value[None, :], 1), here_k)
            tl.store(to_v + at * out_t, tl.sum(inner * key[:, None], 0), here_v)
            to_square = tl.dot(tl.trans(old), inner, to_square, input_precision=PRECISION)
            to_state = tl.dot(inner, across, stay * to_state, input_precision=PRECISION)
            state = old
    to_weight += (row * tl.num_programs(1) + part) * V * V
    tl.store(to_weight + j[:, None] * V + j[None, :], to_square, in_square)


def padded(width: int) -> int:
    """A width that a product takes."""
    return max(16, triton.next_power_of_2(width))


def in_order(time: int, *strides: int) -> tuple[int, ...]:
    """Strides of the batch first, then of time."""
    return strides if time == 1 else (strides[1], strides[0], *strides[2:])


def sizes(keep, q, k, v, out, time: int, every: int, way: Way) -> tuple[tuple, dict]:
    """Strides and widths, as both kernels take them."""
    key, value = k.shape[-1], v.shape[-1]
    strides = [step for t in (keep, q, k, v) for step in in_order(time, *t.stride())]
    widths = dict(K=key, V=value, ROWS=min(way.rows, padded(key)), PV=padded(value), EVERY=every, PRECISION=way.precision)
    return (*strides, *in_order(time, *out.stride())[:3]), widths


def grid_of(v: torch.Tensor, time: int, key: int, rows: int) -> tuple[int, int]:
    """Heads of all sequences, and programs a head."""
    return v.shape[1 - time] * v.shape[2], triton.cdiv(key, rows)


def empty(parts: int, like: torch.Tensor, *columns: int) -> torch.Tensor:
    """Room for what every program of a head gives, laid out head by head."""
    return torch.empty(parts, *like.shape[:3], *columns, device=like.device, dtype=torch.float32)


def joined(parts: torch.Tensor) -> torch.Tensor:
    """The sum over a head's programs."""
    return parts[0] if len(parts) == 1 else parts.sum(0)


def forward(keep, q, k, v, weight, time: int, every: int, way: Way | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """What is read, in fp32, and the states before steps 0, every, 2·every …, and behind the last one."""
    way = way or (ALL if every == 1 else FEW)[0]
    grid = grid_of(v, time, k.shape[-1], min(way.rows, padded(k.shape[-1])))
    out = empty(grid[1], v, v.shape[-1])
    slots = triton.cdiv(v.shape[time], every) + 1
    states = torch.empty(slots, grid[0], k.shape[-1], v.shape[-1], device=v.device, dtype=torch.float32)
    strides, widths = sizes(keep, q, k, v, out[0], time, every, way)
    numbers = (v.shape[time], v.shape[2], v.shape[2] // k.shape[2], out.stride(0))
    steps_forward[grid](keep, q, k, v, weight, states, out, *numbers, *strides, **widths, num_warps=way.warps)
    return joined(out), states


def backward(kept, grad, time: int, every: int, clip: float = math.inf, *, way: Way | None = None) -> tuple[torch.Tensor, ...]:
    """Gradients of the five inputs, of which `kept` has the states behind."""
    keep, q, k, v, weight, states = kept
    way, grad = way or (ALL if every == 1 else FEW)[1], grad.contiguous()
    grid = grid_of(v, time, k.shape[-1], min(way.rows, padded(k.shape[-1])))
    to_keep, to_v = empty(grid[1], v), empty(grid[1], v, v.shape[-1])
    to_q, to_k = (empty(1, v, k.shape[-1])[0] for _ in range(2))
    to_weight = torch.empty(v.shape[1 - time], v.shape[2], grid[1], *weight.shape[1:], device=v.device, dtype=torch.float32)
    strides, widths = sizes(keep, q, k, v, grad, time, every, way)
    numbers = (v.shape[time], v.shape[2], v.shape[2] // k.shape[2], to_keep.stride(0), to_v.stride(0))
    given = (keep, q, k, v, weight, states, grad, to_keep, to_q, to_k, to_v, to_weight)
    steps_backward[grid](*given, clip, *numbers, *strides, **widths, num_warps=way.warps)
    to_q, to_k = (shared(t, like).to(like.dtype) for t, like in ((to_q, q), (to_k, k)))
    return joined(to_keep), to_q, to_k, joined(to_v).to(v.dtype), to_weight.sum((0, 2))


def shared(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient of heads that others read, from those of the readers."""
    heads = like.shape[2]
    return grad if grad.shape[2] == heads else grad.unflatten(2, (heads, -1)).sum(3)
