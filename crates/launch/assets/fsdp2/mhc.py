"""Several residual streams instead of one, mixed by learned weights around every block: hyper-connections
(arXiv 2409.19606) whose mixing is doubly stochastic (arXiv 2512.24880), as DeepSeek-V4 has them.

Streams are [batch, sequence, streams, hidden]. The norm in front of the projection divides what the product gives
(section 4.3 of the second paper), so that nothing as wide as all streams is kept beside them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from basics import wide

# Added to what is divided by, and to weights that may not vanish: DeepSeek-V4's `hc_eps`.
EPS = 1e-6


def balanced(logits: torch.Tensor, iterations: int) -> torch.Tensor:
    """Matrices whose rows and columns sum to one, nearly."""
    mix = logits.softmax(-1) + EPS
    mix = mix / (mix.sum(-2, keepdim=True) + EPS)
    for _ in range(iterations - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + EPS)
        mix = mix / (mix.sum(-2, keepdim=True) + EPS)
    return mix


class _Balanced(torch.autograd.Function):
    """The same. Keeps the logits alone: backward goes through the iterations once more."""

    @staticmethod
    def forward(ctx, logits, iterations):
        ctx.save_for_backward(logits)
        ctx.iterations = iterations
        return balanced(logits, iterations)

    @staticmethod
    def backward(ctx, grad):
        (logits,) = ctx.saved_tensors
        with torch.enable_grad():
            again = logits.detach().requires_grad_()
            (grad,) = torch.autograd.grad(balanced(again, ctx.iterations), again, grad)
        return grad, None


class Weights(nn.Module):
    """A projection of all streams onto a few numbers a token, each set of them with a scale of its own."""

    def __init__(self, m: dict, sets: list[int]):
        super().__init__()
        width = m["mhc"]["streams"] * m["hidden"]
        self.weight, self.bias = nn.Parameter(torch.empty(sum(sets), width)), nn.Parameter(torch.empty(sum(sets)))
        self.scale, self.sets, self.eps = nn.Parameter(torch.empty(len(sets))), sets, m["norm_eps"]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(2)
        root = flat.norm(dim=-1, keepdim=True) / flat.shape[-1] ** 0.5 + self.eps
        projected = wide(F.linear(flat, self.weight)) / wide(root)
        scale = torch.cat([one.expand(size) for one, size in zip(wide(self.scale).split(1), self.sets)])
        return projected * scale + wide(self.bias)

    @staticmethod
    def collapse(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """One stream of several, by a weight each."""
        pre = (weights.sigmoid() + EPS).to(x.dtype)
        return torch.matmul(pre.unsqueeze(-2), x).squeeze(-2)


class Around(Weights):
    """What stands around a block: streams in, streams out."""

    def __init__(self, m: dict):
        streams = m["mhc"]["streams"]
        super().__init__(m, [streams, streams, streams * streams])
        self.streams, self.iterations = streams, m["mhc"]["sinkhorn"]

    def forward(self, x: torch.Tensor, block: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        pre, post, mix = self.logits(x).split(self.sets, -1)
        mix = _Balanced.apply(mix.unflatten(-1, (self.streams, self.streams)), self.iterations).to(x.dtype)
        post = (post.sigmoid() * 2).to(x.dtype)
        added = block(self.collapse(pre, x))
        return torch.addcmul(torch.matmul(mix.mT, x), post.unsqueeze(-1), added.unsqueeze(-2))


class Collapse(Weights):
    """What makes one stream of all behind the last layer."""

    def __init__(self, m: dict):
        super().__init__(m, [m["mhc"]["streams"]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.collapse(self.logits(x), x)


def spread(x: torch.Tensor, m: dict) -> torch.Tensor:
    """A copy of token embeddings for every stream, where there are several."""
    if m["mhc"] is None:
        return x
    return x.unsqueeze(2).expand(-1, -1, m["mhc"]["streams"], -1).contiguous()
