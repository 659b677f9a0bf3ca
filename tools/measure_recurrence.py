"""Times the recurrence's kernels on a GPU, one line a variant, and holds each to loops in fp64 first.

    measure_recurrence.py [FOLDER] [BATCH TIME HEADS SHARED KEY VALUE]

FOLDER holds `recurrence.py` and `walk.py` (default: crates/launch/assets/fsdp2). The default sizes are NAM56R's: 8 sequences
of 4096, 44 heads of 64 by 16 that share one query and key. Columns: milliseconds forward and backward, GiB of kept states,
the furthest that an output or gradient is from fp64 on a short sequence. The last lines name the fastest of each pass.
"""

from __future__ import annotations

import itertools
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent.parent / "crates/launch/assets/fsdp2"
ROWS, WARPS, PRECISIONS, EVERY = (16, 32, 64), (1, 2, 4), ("tf32x3", "ieee"), (4, 8, 16)
# Further off than this is wrong, not rounded: inputs are bf16, sums fp32.
LIMIT = 2e-4


def drawn(batch, time, heads, shared, key, value):
    """Inputs as the Megatron mixer has them: time first, queries, keys and values columns of one tensor."""
    generator = torch.Generator("cuda").manual_seed(1)
    columns = 2 * shared * key + heads * value
    packed = torch.randn(time, batch, columns, device="cuda", generator=generator).bfloat16()
    q, k, v = packed.split([shared * key, shared * key, heads * value], -1)
    q, k, v = q.unflatten(-1, (shared, key)), k.unflatten(-1, (shared, key)), v.unflatten(-1, (heads, value))
    keep = torch.rand(time, batch, heads, device="cuda", generator=generator)
    weight = value**-0.5 * torch.randn(heads, value, value, device="cuda", generator=generator)
    grad = torch.randn(time, batch, heads, value, device="cuda", generator=generator)
    return (keep, q, k, v, weight), grad


def furthest(ours, theirs):
    return max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True))


def wrong(recurrence, walk, way, every, sizes):
    inputs, grad = drawn(2, 2 * every + 3, *sizes[2:])
    out, states = walk.forward(*inputs, 0, every, way)
    ours = [out, *walk.backward((*inputs, states), grad, 0, every, way=way)]
    wide = [t.double() for t in inputs]
    out, states = recurrence.forward(*wide, 0, every)
    theirs = [out, *recurrence.backward((*wide, states), grad.double(), 0, every)]
    # Gradients of bf16 inputs are rounded to bf16.
    exact = furthest([ours[0], ours[1], ours[5]], [theirs[0], theirs[1], theirs[5]])
    return max(exact, furthest(ours[2:5], theirs[2:5]) - 2**-8)


def milliseconds(run):
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[2]


def timed(recurrence, walk, way, every, sizes):
    """Off, forward, backward, states."""
    off = wrong(recurrence, walk, way, every, sizes)
    inputs, grad = drawn(*sizes)
    states = walk.forward(*inputs, 0, every, way)[1]
    forward = milliseconds(lambda: walk.forward(*inputs, 0, every, way))
    backward = milliseconds(lambda: walk.backward((*inputs, states), grad, 0, every, way=way))
    return off, forward, backward, states.numel() * 4 / 2**30


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else HERE
    sizes = tuple(int(size) for size in sys.argv[2:]) or (8, 4096, 44, 1, 64, 16)
    sys.path.insert(0, str(folder))
    import recurrence
    import walk

    print("rows warps product every  forward backward  states  off", flush=True)
    best = {}
    variants = [(64, 4, "ieee", 1), (64, 2, "ieee", 1), *itertools.product(ROWS, WARPS, PRECISIONS, EVERY)]
    for rows, warps, precision, every in variants:
        # A warp has sixteen rows at least; sixteen steps of more than that are more than its registers hold.
        if every > 1 and (warps * 16 > rows or rows // warps * every > 512):
            continue
        way, name = walk.Way(rows, warps, precision), f"{rows:4} {warps:5} {precision:7} {every:5}"
        try:
            off, forward, backward, kept = timed(recurrence, walk, way, every, sizes)
        except Exception as error:
            print(f"{name}  {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}", flush=True)
            continue
        verdict = "" if off < LIMIT else "  WRONG"
        print(f"{name}  {forward:7.3f} {backward:8.3f}  {kept:6.3f}  {off:.1e}{verdict}", flush=True)
        if not verdict:
            for which, took in (("forward", forward), ("backward", backward), ("both", forward + backward)):
                best[which] = min(best.get(which, (float("inf"), "")), (took, name))
    for which, (took, name) in best.items():
        print(f"fastest {which}: {took:.3f} ms with {' '.join(name.split())}")


if __name__ == "__main__":
    main()
