"""The emitted scan and recurrence against loops that say what they mean.

    check_walk.py FOLDER

FOLDER holds `scans.py` and `walk.py`. A scan over few chunks, and over chunks of chunks, is held to one position after the
other in fp64; the recurrence's kernels, which only a GPU runs, to the loops of `scans.py` under Triton's interpreter.
"""

import os
import pathlib
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

sys.path.insert(0, str(pathlib.Path(sys.argv[1]).absolute()))
import scans


def one_by_one(log_decay, u, b, c):
    state, read = u.new_zeros(u.shape[0], u.shape[2], b.shape[-1], u.shape[-1]), []
    for t in range(u.shape[1]):
        state = log_decay[:, t].exp()[..., None, None] * state + b[:, t, :, :, None] * u[:, t, :, None, :]
        read.append((c[:, t, :, :, None] * state).sum(-2))
    return torch.stack(read, 1)


def furthest(ours, theirs):
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item() for a, b in zip(ours, theirs))


def scanned(length, chunk):
    scans.CHUNK, wide = chunk, {"dtype": torch.float64}
    inputs = [-torch.rand(2, length, 3, **wide), torch.randn(2, length, 3, 4, **wide)]
    inputs = [t.requires_grad_() for t in inputs + [torch.randn(2, length, 3, 5, **wide) for _ in range(2)]]
    ours, theirs = scans.scan(*inputs), one_by_one(*inputs)
    grad = torch.randn_like(ours)
    return furthest([ours, *torch.autograd.grad(ours, inputs, grad)], [theirs, *torch.autograd.grad(theirs, inputs, grad)])


def walked(batch, length, heads, key, value):
    import walk

    # Values are columns of what a convolution leaves: time lies innermost.
    v = torch.randn(batch, heads * value + 5, length).transpose(1, 2)[..., : heads * value].unflatten(-1, (heads, value))
    keep, weight = torch.rand(batch, length, heads), 0.3 * torch.randn(heads, value, value)
    q, k = (torch.randn(batch, length, heads, key) for _ in range(2))
    inputs = [t.requires_grad_() for t in (keep, q, k, v, weight)]
    theirs = scans.Recurrence.apply(*inputs)
    grad = torch.randn_like(theirs)
    bare = [t.detach() for t in inputs]
    ours, states = walk.forward(*bare)
    return furthest([ours, *walk.backward((*bare, states), grad)], [theirs, *torch.autograd.grad(theirs, inputs, grad)])


def main():
    torch.manual_seed(0)
    off = {f"scan of {length} in {chunk}": scanned(length, chunk) for length, chunk in ((7, 64), (200, 8), (640, 8), (600, 4))}
    wrong = [name for name, by in off.items() if by > 1e-11]
    sizes = ((2, 9, 3, 16, 16), (1, 5, 2, 24, 8), (2, 6, 1, 64, 16))
    steps = {f"walk of {size}": walked(*size) for size in sizes}
    wrong += [name for name, by in steps.items() if by > 1e-4]
    for name, by in {**off, **steps}.items():
        print(f"{name}: {by:.1e}")
    if wrong:
        sys.exit(f"off: {', '.join(wrong)}")


main()
