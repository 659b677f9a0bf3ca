"""The emitted scan and recurrence against loops that say what they mean.

    check_walk.py FOLDER

FOLDER holds `scans.py`, `recurrence.py` and `walk.py`. A scan over few chunks, and over chunks of chunks, is held to one position after the
other in fp64; the recurrence's kernels, which only a GPU runs, to the loops of `recurrence.py` under Triton's interpreter.
"""

import math
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


# One that clips steps, and none.
CLIP, CLIPS = 0.5, (0.5, math.inf)


def walked(batch, length, heads, shared, key, value, time, every, way, clip):
    import recurrence
    import walk

    # Values are columns of what a convolution leaves: time lies innermost, or the batch does.
    v = torch.randn(batch, heads * value + 5, length).transpose(1, 2)[..., : heads * value].unflatten(-1, (heads, value))
    keep, weight = torch.rand(batch, length, heads), 0.3 * torch.randn(heads, value, value)
    q, k = (torch.randn(batch, length, shared, key) for _ in range(2))
    if time == 0:
        keep, q, k, v = (t.transpose(0, 1) for t in (keep, q, k, v))
    bare = [t.detach() for t in (keep, q, k, v, weight)]
    theirs, theirs_kept = recurrence.forward(*bare, time, every)
    grad = torch.randn_like(theirs)
    ours, kept = walk.forward(*bare, time, every, way)
    made = walk.backward((*bare, kept), grad, time, every, clip, way=way)
    return furthest([ours, *made], [theirs, *recurrence.backward((*bare, theirs_kept), grad, time, every, clip)])


def differentiated(time, every):
    """The loops themselves, held to torch's own gradient in fp64."""
    import recurrence

    wide = {"dtype": torch.float64}
    shape = (2, 7) if time == 1 else (7, 2)
    keep, weight = torch.rand(*shape, 4, **wide), 0.3 * torch.randn(4, 3, 3, **wide)
    q, k, v = (torch.randn(*shape, heads, columns, **wide) for heads, columns in ((2, 5), (2, 5), (4, 3)))
    inputs = [t.requires_grad_() for t in (keep, q, k, v, weight)]
    return torch.autograd.gradcheck(lambda *given: recurrence.Recurrence.apply(*given, time, every), inputs)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, state):
        return state.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-CLIP, CLIP)


def clipped():
    """Clipped loops against torch's own gradient of the published block's, which clips a state as it is made."""
    import recurrence

    wide = {"dtype": torch.float64}
    keep, weight = torch.rand(2, 9, 4, **wide), torch.randn(4, 3, 3, **wide)
    inputs = [keep, *(torch.randn(2, 9, 4, n, **wide) for n in (5, 5, 3)), weight]
    ours = [t.clone().requires_grad_() for t in inputs]
    theirs = [t.clone().requires_grad_() for t in inputs]
    grad = torch.randn(2, 9, 4, 3, **wide)
    out = recurrence.Recurrence.apply(*ours, 1, 2, CLIP)
    state, read = torch.zeros(2, 4, 5, 3, **wide), []
    for t in range(9):
        keep, q, k, v, weight = (x if x.dim() == 3 and x.shape[0] == 4 else x[:, t] for x in theirs)
        fresh = torch.tanh(state @ weight + k[..., :, None] * v[..., None, :])
        state = Clipped.apply(keep[..., None, None] * state + (1 - keep[..., None, None]) * fresh)
        read.append((q[..., :, None] * state).sum(-2))
    whole = torch.autograd.grad(torch.stack(read, 1), theirs, grad)
    free = torch.autograd.grad(recurrence.Recurrence.apply(*ours, 1, 2), ours, grad)
    made = torch.autograd.grad(out, ours, grad)
    return furthest(made, whole), furthest(free, whole)


def main():
    torch.manual_seed(0)
    off = {f"scan of {length} in {chunk}": scanned(length, chunk) for length, chunk in ((7, 64), (200, 8), (640, 8), (600, 4))}
    wrong = [name for name, by in off.items() if by > 1e-11]
    import walk

    sizes = (
        (2, 9, 3, 3, 16, 16, 1, 1, walk.Way(64, 1, "ieee")),
        (1, 5, 2, 1, 24, 8, 0, 2, walk.Way(16, 1, "ieee")),
        (2, 6, 4, 2, 64, 16, 0, 4, walk.Way(32, 1, "ieee")),
        (2, 11, 2, 1, 40, 16, 1, 8, None),
        (2, 6, 1, 1, 64, 16, 1, 1, None),
    )
    steps = {f"walk of {size}, clip {clip}": walked(*size, clip) for size in sizes for clip in CLIPS}
    wrong += [f"loops of {way}" for way in ((0, 1), (0, 3), (1, 1), (1, 4)) if not differentiated(*way)]
    wrong += [name for name, by in steps.items() if by > 1e-4]
    off["clipped loops"], apart = clipped()
    if off["clipped loops"] > 1e-11 or apart < 1e-2:
        wrong.append("clipped loops")
    for name, by in {**off, **steps}.items():
        print(f"{name}: {by:.1e}")
    if wrong:
        sys.exit(f"off: {', '.join(wrong)}")


main()
