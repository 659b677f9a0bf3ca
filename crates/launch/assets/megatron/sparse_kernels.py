"""Kernels of sparse attention over latent keys, in Triton.

Heads share one key: its first columns are the value, the rest turn with position. So the heads of a query are the rows of
one product, and a program reads the keys that its query chose and no other. Gradients of keys are summed by atomics, in an
order that differs from run to run. Products take the inputs' format and sum in fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Keys that a program reads at once, in attention's backward and elsewhere, and its warps.
BACK, KEYS, WARPS = 64, 32, 4

# Rows of a block: a product takes 16 at least, and more than 64 heads are several programs.
LEAST, MOST = 16, 64

# Queries and keys of a block of scores.
QUERIES, COLUMNS = 128, 128


def block(width: int) -> int:
    return max(LEAST, triton.next_power_of_2(width))


@triton.jit
def index_scores(
    q, k, w, out, batch, length, heads, width,
    RELU: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Σ over index heads of w·relu(q·k), minus infinity where the key comes after the query."""
    row, column, sequence = tl.program_id(1), tl.program_id(0), tl.program_id(2).to(tl.int64)
    s, t = row * QUERIES + tl.arange(0, QUERIES), column * COLUMNS + tl.arange(0, COLUMNS)
    place = out + sequence * length * length + s.to(tl.int64)[:, None] * length + t[None, :]
    inside = (s < length)[:, None] & (t < length)[None, :]
    total = tl.zeros([QUERIES, COLUMNS], tl.float32)
    if column * COLUMNS < (row + 1) * QUERIES:
        d = tl.arange(0, D)
        at_k = k + (t * batch + sequence)[:, None] * width + d[None, :]
        keys = tl.load(at_k, (t < length)[:, None] & (d < width)[None, :], 0.0)
        first = (s * batch + sequence) * heads
        for head in range(0, heads):
            at_q = q + (first + head)[:, None] * width + d[None, :]
            queries = tl.load(at_q, (s < length)[:, None] & (d < width)[None, :], 0.0)
            score = tl.dot(queries, tl.trans(keys), input_precision="ieee")
            if RELU:
                score = tl.maximum(score, 0.0)
            weight = tl.load(w + first + head, s < length, 0.0).to(tl.float32)
            total += score * weight[:, None]
    tl.store(place, tl.where(t[None, :] <= s[:, None], total, float("-inf")), inside)


@triton.jit
def index_scores_backward(
    q, k, w, chosen, grad, of_q, of_k, of_w, batch, length, heads, width, top,
    RELU: tl.constexpr, H: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Of one query, from the gradients of the scores it chose."""
    row = tl.program_id(0).to(tl.int64)
    s, sequence = row // batch, row % batch
    h, d = tl.program_id(1) * H + tl.arange(0, H), tl.arange(0, D)
    in_q = (h < heads)[:, None] & (d < width)[None, :]
    at_q = (row * heads + h)[:, None] * width + d[None, :]
    queries = tl.load(q + at_q, in_q, 0.0)
    weight = tl.load(w + row * heads + h, h < heads, 0.0).to(tl.float32)
    sum_q, sum_w = tl.zeros([H, D], tl.float32), tl.zeros([H], tl.float32)
    list_of = (sequence * length + s) * top
    for first in range(0, top, KEYS):
        j = first + tl.arange(0, KEYS)
        key = tl.load(chosen + list_of + j, j < top, -1).to(tl.int64)
        counts = key >= 0
        at_k = (key * batch + sequence)[:, None] * width + d[None, :]
        in_k = counts[:, None] & (d < width)[None, :]
        keys = tl.load(k + at_k, in_k, 0.0)
        of_score = tl.where(counts, tl.load(grad + list_of + j, j < top, 0.0), 0.0)
        score = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        part = weight[:, None] * of_score[None, :]
        if RELU:
            part = tl.where(score > 0.0, part, 0.0)
            score = tl.maximum(score, 0.0)
        sum_w += tl.sum(score * of_score[None, :], 1)
        part = part.to(queries.dtype)
        sum_q += tl.dot(part, keys, input_precision="ieee")
        tl.atomic_add(of_k + at_k, tl.dot(tl.trans(part), queries, input_precision="ieee"), in_k)
    tl.store(of_q + at_q, sum_q, in_q)
    tl.store(of_w + row * heads + h, sum_w, h < heads)


@triton.jit
def keys_of(key, chosen, list_of, j, top, batch, sequence, l, r, LATENT: tl.constexpr, TURNED: tl.constexpr):
    """Chosen keys in two parts, where their columns stand, and which count."""
    at = tl.load(chosen + list_of + j, j < top, -1).to(tl.int64)
    counts, base = at >= 0, (at * batch + sequence)[:, None] * (LATENT + TURNED)
    at_l, at_r = base + l[None, :], base + LATENT + r[None, :]
    in_l, in_r = counts[:, None] & (l < LATENT)[None, :], counts[:, None] & (r < TURNED)[None, :]
    return tl.load(key + at_l, in_l, 0.0), tl.load(key + at_r, in_r, 0.0), counts, at_l, at_r, in_l, in_r


@triton.jit
def scored(latent, turned, k_l, k_r):
    score = tl.dot(latent, tl.trans(k_l), input_precision="ieee")
    return score + tl.dot(turned, tl.trans(k_r), input_precision="ieee")


@triton.jit
def attend(
    query, key, chosen, out, sums, shares, scale, batch, length, heads, top,
    SHARES: tl.constexpr, LATENT: tl.constexpr, TURNED: tl.constexpr,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """What the heads of one query read, the logarithm of their sums and, summed over heads, what each key gets."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, sequence = row // batch, row % batch
    h, l, r = part * H + tl.arange(0, H), tl.arange(0, L), tl.arange(0, R)
    at_q = query + (row * heads + h)[:, None] * (LATENT + TURNED)
    latent = tl.load(at_q + l[None, :], (h < heads)[:, None] & (l < LATENT)[None, :], 0.0)
    turned = tl.load(at_q + LATENT + r[None, :], (h < heads)[:, None] & (r < TURNED)[None, :], 0.0)
    most, sum_of = tl.full([H], float("-inf"), tl.float32), tl.zeros([H], tl.float32)
    read = tl.zeros([H, L], tl.float32)
    list_of = (sequence * length + s) * top
    for first in range(0, top, KEYS):
        j = first + tl.arange(0, KEYS)
        k_l, k_r, counts, _, _, _, _ = keys_of(key, chosen, list_of, j, top, batch, sequence, l, r, LATENT, TURNED)
        score = scored(latent, turned, k_l, k_r)
        score = tl.where(counts[None, :], score * scale, float("-inf"))
        above = tl.maximum(most, tl.max(score, 1))
        # A block without a key that counts leaves minus infinity.
        safe = tl.where(above == float("-inf"), 0.0, above)
        weight, fade = tl.exp(score - safe[:, None]), tl.exp(most - safe)
        sum_of = sum_of * fade + tl.sum(weight, 1)
        read = read * fade[:, None] + tl.dot(weight.to(k_l.dtype), k_l, input_precision="ieee")
        most = above
    log_sum = most + tl.log(sum_of)
    at_out = out + (row * heads + h)[:, None] * LATENT + l[None, :]
    tl.store(at_out, read / sum_of[:, None], (h < heads)[:, None] & (l < LATENT)[None, :])
    tl.store(sums + row * heads + h, log_sum, h < heads)
    if SHARES:
        place = shares + (part * batch * length).to(tl.int64) * top + list_of
        for first in range(0, top, KEYS):
            j = first + tl.arange(0, KEYS)
            k_l, k_r, counts, _, _, _, _ = keys_of(key, chosen, list_of, j, top, batch, sequence, l, r, LATENT, TURNED)
            score = scored(latent, turned, k_l, k_r)
            weight = tl.exp(score * scale - log_sum[:, None])
            weight = tl.where((h < heads)[:, None] & counts[None, :], weight, 0.0)
            tl.store(place + j, tl.sum(weight, 0), j < top)


@triton.jit
def attend_backward(
    query, key, chosen, out, sums, grad, of_query, of_key, scale, batch, length, heads, top,
    LATENT: tl.constexpr, TURNED: tl.constexpr, H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, sequence = row // batch, row % batch
    h, l, r = part * H + tl.arange(0, H), tl.arange(0, L), tl.arange(0, R)
    in_l, in_r = (h < heads)[:, None] & (l < LATENT)[None, :], (h < heads)[:, None] & (r < TURNED)[None, :]
    at_q = (row * heads + h)[:, None] * (LATENT + TURNED)
    latent = tl.load(query + at_q + l[None, :], in_l, 0.0)
    turned = tl.load(query + at_q + LATENT + r[None, :], in_r, 0.0)
    at_out = (row * heads + h)[:, None] * LATENT + l[None, :]
    of_read = tl.load(grad + at_out, in_l, 0.0)
    level = tl.sum(of_read.to(tl.float32) * tl.load(out + at_out, in_l, 0.0).to(tl.float32), 1)
    log_sum = tl.load(sums + row * heads + h, h < heads, 0.0)
    sum_l, sum_r = tl.zeros([H, L], tl.float32), tl.zeros([H, R], tl.float32)
    list_of = (sequence * length + s) * top
    for first in range(0, top, KEYS):
        j = first + tl.arange(0, KEYS)
        k_l, k_r, counts, at_l, at_r, in_kl, in_kr = keys_of(
            key, chosen, list_of, j, top, batch, sequence, l, r, LATENT, TURNED
        )
        score = scored(latent, turned, k_l, k_r)
        weight = tl.exp(score * scale - log_sum[:, None])
        weight = tl.where((h < heads)[:, None] & counts[None, :], weight, 0.0)
        of_weight = tl.dot(of_read, tl.trans(k_l), input_precision="ieee")
        of_score = (weight * (of_weight - level[:, None]) * scale).to(k_l.dtype)
        sum_l += tl.dot(of_score, k_l, input_precision="ieee")
        sum_r += tl.dot(of_score, k_r, input_precision="ieee")
        back = tl.trans(of_score)
        of_l = tl.dot(back, latent, input_precision="ieee")
        of_l += tl.dot(tl.trans(weight.to(k_l.dtype)), of_read, input_precision="ieee")
        tl.atomic_add(of_key + at_l, of_l, in_kl)
        tl.atomic_add(of_key + at_r, tl.dot(back, turned, input_precision="ieee"), in_kr)
    tl.store(of_query + at_q + l[None, :], sum_l, in_l)
    tl.store(of_query + at_q + LATENT + r[None, :], sum_r, in_r)


def scores(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, relu: bool) -> torch.Tensor:
    """Scores of every pair, [batch, query, key]; q is [query, batch, head, column], k lacks heads and w columns."""
    length, batch, heads, width = q.shape
    out = torch.empty(batch, length, length, dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(length, COLUMNS), triton.cdiv(length, QUERIES), batch)
    index_scores[grid](q, k, w, out, batch, length, heads, width, relu, block(width), QUERIES, COLUMNS, num_warps=8)
    return out


def scores_backward(q, k, w, chosen, grad, relu: bool) -> tuple[torch.Tensor, ...]:
    length, batch, heads, width = q.shape
    rows = min(MOST, block(heads))
    parts = triton.cdiv(heads, rows)
    of_q, of_w, of_k = torch.empty_like(q), torch.empty_like(w), torch.zeros_like(k, dtype=torch.float32)
    sizes = (batch, length, heads, width, chosen.shape[-1], relu, rows, block(width), KEYS)
    index_scores_backward[(length * batch, parts)](q, k, w, chosen, grad, of_q, of_k, of_w, *sizes, num_warps=WARPS)
    return of_q, of_k.to(k.dtype), of_w


def blocks(query: torch.Tensor, latent: int, chosen: torch.Tensor, keys: int) -> tuple[tuple[int, int], tuple, tuple]:
    """A grid over queries and blocks of heads, sizes, and widths with their blocks."""
    length, batch, heads, width = query.shape
    rows, turned = min(MOST, block(heads)), width - latent
    sizes = (batch, length, heads, chosen.shape[-1])
    return (length * batch, triton.cdiv(heads, rows)), sizes, (latent, turned, rows, block(latent), block(turned), keys)


def forward(query, key, chosen, scale: float, latent: int, shares: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is read, the logarithms of sums, and each chosen key's weight summed over heads (empty without `shares`)."""
    grid, sizes, widths = blocks(query, latent, chosen, KEYS)
    wide = {"dtype": torch.float32, "device": query.device}
    out, sums = query.new_empty(*query.shape[:-1], latent), torch.empty(query.shape[:-1], **wide)
    parts = torch.empty(grid[1], *chosen.shape, **wide) if shares else sums.new_empty(0)
    attend[grid](query, key, chosen, out, sums, parts, scale, *sizes, shares, *widths, num_warps=WARPS)
    return out, sums, parts.sum(0) if len(parts) > 1 else parts.squeeze(0)


def backward(query, key, chosen, out, sums, grad, scale: float, latent: int) -> tuple[torch.Tensor, torch.Tensor]:
    grid, sizes, widths = blocks(query, latent, chosen, BACK)
    of_query, of_key = torch.empty_like(query), torch.zeros_like(key, dtype=torch.float32)
    attend_backward[grid](query, key, chosen, out, sums, grad, of_query, of_key, scale, *sizes, *widths, num_warps=WARPS)
    return of_query, of_key.to(key.dtype)
