"""The recurrence of `scans.py` on a GPU. One program walks one head of one sequence, its state in registers, and asks
for a step's inputs a step ahead. What is kept for backward is what `scans.py` keeps: the state before every step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Of a program forward and backward, as an H200 is fastest over 44 heads of 64 by 16.
WARPS = (4, 2)


@triton.jit
def steps_forward(
    keep, q, k, v, weight, states, out, length, heads, rows, v_row, v_step, v_head, v_one,
    K: tl.constexpr, V: tl.constexpr, PK: tl.constexpr, PV: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = row % heads
    first = row // heads * length * heads + head
    i, j = tl.arange(0, PK), tl.arange(0, PV)
    values = v + row // heads * v_row + head * v_head + j * v_one
    in_k, in_v = i < K, j < V
    square = tl.load(weight + head * V * V + j[:, None] * V + j[None, :], in_v[:, None] & in_v[None, :], 0.0)
    # 64 bits from here on: offsets of a long sequence are beyond 32.
    none, step = row * 0, rows * tl.full((), K * V, tl.int64)
    cells, in_cells = row * K * V + i[:, None] * V + j[None, :], in_k[:, None] & in_v[None, :]
    state = tl.zeros((PK, PV), tl.float32)
    tl.store(states + cells, state, in_cells)
    next_keep = tl.load(keep + first)
    next_q, next_k = tl.load(q + first * K + i, in_k, 0.0), tl.load(k + first * K + i, in_k, 0.0)
    next_v = tl.load(values, in_v, 0.0)
    for t in range(length):
        at = first + (none + t) * heads
        stay, asked, key, value = next_keep, next_q, next_k, next_v
        after = none + tl.minimum(t + 1, length - 1)
        ahead = first + after * heads
        next_keep = tl.load(keep + ahead)
        next_q, next_k = tl.load(q + ahead * K + i, in_k, 0.0), tl.load(k + ahead * K + i, in_k, 0.0)
        next_v = tl.load(values + after * v_step, in_v, 0.0)
        moved = tl.dot(state, square, input_precision="ieee") + key[:, None] * value[None, :]
        fresh = 2.0 * tl.sigmoid(2.0 * moved) - 1.0
        state = fresh + stay * (state - fresh)
        tl.store(states + (t + 1) * step + cells, state, in_cells)
        tl.store(out + at * V + j, tl.sum(state * asked[:, None], 0), in_v)


@triton.jit
def steps_backward(
    keep, q, k, v, weight, states, grad, to_keep, to_q, to_k, to_v, to_weight,
    length, heads, rows, v_row, v_step, v_head, v_one,
    K: tl.constexpr, V: tl.constexpr, PK: tl.constexpr, PV: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = row % heads
    last = (row // heads * length + length - 1) * heads + head
    i, j = tl.arange(0, PK), tl.arange(0, PV)
    values = v + row // heads * v_row + (row * 0 + length - 1) * v_step + head * v_head + j * v_one
    in_k, in_v = i < K, j < V
    in_square = in_v[:, None] & in_v[None, :]
    square = tl.load(weight + head * V * V + j[:, None] * V + j[None, :], in_square, 0.0)
    across = tl.load(weight + head * V * V + j[None, :] * V + j[:, None], in_square, 0.0)
    # 64 bits from here on: offsets of a long sequence are beyond 32.
    none, step = row * 0, rows * tl.full((), K * V, tl.int64)
    cells, in_cells = row * K * V + i[:, None] * V + j[None, :], in_k[:, None] & in_v[None, :]
    state = tl.load(states + length * step + cells, in_cells, 0.0)
    to_state, to_square = tl.zeros((PK, PV), tl.float32), tl.zeros((PV, PV), tl.float32)
    next_old = tl.load(states + (length - 1) * step + cells, in_cells, 0.0)
    next_keep = tl.load(keep + last)
    next_q, next_k = tl.load(q + last * K + i, in_k, 0.0), tl.load(k + last * K + i, in_k, 0.0)
    next_v, next_grad = tl.load(values, in_v, 0.0), tl.load(grad + last * V + j, in_v, 0.0)
    for back in range(length):
        at = last - (none + back) * heads
        old, stay, asked, key, value, came = next_old, next_keep, next_q, next_k, next_v, next_grad
        before = none + tl.minimum(back + 1, length - 1)
        ahead = last - before * heads
        next_old = tl.load(states + (length - 1 - before) * step + cells, in_cells, 0.0)
        next_keep = tl.load(keep + ahead)
        next_q, next_k = tl.load(q + ahead * K + i, in_k, 0.0), tl.load(k + ahead * K + i, in_k, 0.0)
        next_v = tl.load(values - before * v_step, in_v, 0.0)
        next_grad = tl.load(grad + ahead * V + j, in_v, 0.0)
        to_state += asked[:, None] * came[None, :]
        tl.store(to_q + at * K + i, tl.sum(state * came[None, :], 1), in_k)
        moved = tl.dot(old, square, input_precision="ieee") + key[:, None] * value[None, :]
        fresh = 2.0 * tl.sigmoid(2.0 * moved) - 1.0
        tl.store(to_keep + at, tl.sum(tl.sum(to_state * (old - fresh), 1), 0))
        inner = (1.0 - stay) * to_state * (1.0 - fresh * fresh)
        tl.store(to_k + at * K + i, tl.sum(inner * value[None, :], 1), in_k)
        tl.store(to_v + at * V + j, tl.sum(inner * key[:, None], 0), in_v)
        to_square = tl.dot(tl.trans(old), inner, to_square, input_precision="ieee")
        to_state = stay * to_state + tl.dot(inner, across, input_precision="ieee")
        state = old
    tl.store(to_weight + row * V * V + j[:, None] * V + j[None, :], to_square, in_square)


def padded(width: int) -> int:
    """A width that a product takes."""
    return max(16, triton.next_power_of_2(width))


def sizes(k: torch.Tensor, v: torch.Tensor) -> tuple[int, ...]:
    """Of a kernel's walk. Values lie as the convolution leaves them, all else head by head."""
    batch, length, heads, key = k.shape
    return length, heads, batch * heads, *v.stride(), key, v.shape[-1], padded(key), padded(v.shape[-1])


def forward(
    keep: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `scans.Recurrence` gives out, and the states it keeps."""
    assert all(t.is_contiguous() for t in (keep, q, k, weight)) and v.dtype == torch.float32, "head by head, in fp32"
    batch, length, heads, key = k.shape
    states = v.new_empty(length + 1, batch, heads, key, v.shape[-1])
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    steps_forward[(batch * heads,)](keep, q, k, v, weight, states, out, *sizes(k, v), num_warps=WARPS[0])
    return out, states


def backward(kept: tuple[torch.Tensor, ...], grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients of the five inputs, of which `kept` has the states behind."""
    keep, q, k, v, weight, states = kept
    batch, _, heads, _ = k.shape
    made = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (keep, q, k, v)]
    to_weight = weight.new_empty(batch, *weight.shape)
    grid, inputs = (batch * heads,), (keep, q, k, v, weight, states, grad.contiguous())
    steps_backward[grid](*inputs, *made, to_weight, *sizes(k, v), num_warps=WARPS[1])
    return *made, to_weight.sum(0)
