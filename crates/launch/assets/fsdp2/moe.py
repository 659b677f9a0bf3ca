"""Routed experts: the router with its balancing, the bank, and the expert that every token visits.

Balancing is Megatron-Core's (`core/transformer/moe/moe_utils.py`), of whole sequences: the loss that it calls
`seq_aux_loss`, which with one sequence a microbatch is its `aux_loss` too. No layout changes a sequence, so
none changes the loss. A balancing bias moves after each step by the counts of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import nn

from basics import Norm, Weight, activate, rows_of, wide


class _WithLoss(torch.autograd.Function):
    """Hands its input on and lets a loss take part in backward, on whichever stage it arises."""

    @staticmethod
    def forward(ctx, x, loss):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad, grad.new_ones(())


class Router(Weight):
    """Scores, the choice of experts by score and balancing bias, and the losses that keep routing even."""

    def __init__(self, hidden: int, moe: dict):
        super().__init__(moe["experts"], hidden)
        self.top_k, self.score = moe["top_k"], moe["score"]
        self.aux_loss, self.bias_rate = moe["aux_loss"], moe["expert_bias"]
        if self.bias_rate is not None:
            self.register_buffer("expert_bias", torch.zeros(moe["experts"]))
            self.register_buffer("tokens_per_expert", torch.zeros(moe["experts"]), persistent=False)
        # Sums counts over the ranks that hold parts of the same sequences.
        self.counts: Callable[[torch.Tensor], torch.Tensor] = nn.Identity()
        # Sequences of a step and tokens of each; those of one call until somebody says more.
        self.batch: tuple[int, int] | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts of each token and their shares, both [b, s, top_k]."""
        logits = wide(super().forward(x))
        scores = logits.sigmoid() if self.score == "sigmoid" else logits.softmax(-1)
        if self.bias_rate is None:
            best, chosen = scores.topk(self.top_k, -1)
        else:
            chosen = (scores + self.expert_bias).topk(self.top_k, -1)[1]
            best = scores.gather(-1, chosen)
            with torch.no_grad():
                # Counted again when a layer is recomputed: only the sign of a difference is used.
                self.tokens_per_expert += counted(chosen.flatten(0, 1).unsqueeze(0), scores)[0]
        share = best / best.sum(-1, keepdim=True)
        if self.aux_loss is not None:
            share = _WithLoss.apply(share, self.balance(scores, chosen))
        return chosen, share

    def balance(self, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """This rank's part of the balancing loss: experts / top_k times each expert's share of choices times its
        mean score, sequence by sequence; choices are those by score alone."""
        sequences, length = self.batch or scores.shape[:2]
        with torch.no_grad():
            by_score = chosen if self.bias_rate is None else scores.topk(self.top_k, -1)[1]
            counts = self.counts(counted(by_score, scores))
        shares = scores / scores.sum(-1, keepdim=True) if self.score == "sigmoid" else scores
        factor = self.aux_loss * scores.shape[-1] / (self.top_k * length**2 * sequences)
        return (shares.sum(1) * counts).sum() * factor


def counted(chosen: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """How often each expert was chosen, by the first dim of [b, s, top_k]."""
    counts = scores.new_zeros(chosen.shape[0], scores.shape[-1])
    return counts.scatter_add_(1, chosen.flatten(1), scores.new_ones(()).expand(chosen.flatten(1).shape))


def move_expert_biases(modules: Iterable[nn.Module], summed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Moves every balancing bias a step towards even counts, by the counts that `summed` adds up over ranks
    (arXiv 2408.15664; `get_updated_expert_bias` of Megatron-Core)."""
    routers = [m for m in modules if getattr(m, "bias_rate", None) is not None]
    if not routers:
        return
    with torch.no_grad():
        counts = summed(torch.stack([router.tokens_per_expert for router in routers]))
        for router, row in zip(routers, counts):
            router.expert_bias += router.bias_rate * (row.mean() - row).sign()
            router.tokens_per_expert.zero_()


class SharedExpert(nn.Module):
    """The expert every token visits."""

    def __init__(self, hidden: int, ffn: int, activation: str):
        super().__init__()
        self.activation, self.enter, self.leave = activation, nn.Identity(), nn.Identity()
        self.fc1, self.fc2 = Weight(rows_of(activation, ffn), hidden), Weight(hidden, ffn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.fc2(activate(self.activation, self.fc1(self.enter(x)))))


class Experts(nn.Module):
    """A bank of routed experts; `dispatch` brings rows to the experts held here and takes them home."""

    def __init__(self, hidden: int, moe: dict):
        super().__init__()
        self.activation, self.num_experts = moe["activation"], moe["experts"]
        self.fc1 = Weight(moe["experts"], rows_of(self.activation, moe["ffn"]), hidden)
        self.fc2 = Weight(moe["experts"], hidden, moe["ffn"])
        self.enter, self.leave, self.dispatch = nn.Identity(), nn.Identity(), None

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Sums each token's experts by their share. x is [b, s, h]; the others [b, s, top_k]."""
        x, chosen, share = self.enter(x), self.enter(chosen), self.enter(share)
        flat, top_k = x.flatten(0, 1), chosen.shape[-1]
        order = chosen.flatten().argsort(stable=True)
        token = order // top_k
        rows = flat.index_select(0, token)
        counts = chosen.flatten().bincount(minlength=self.num_experts)
        done = self.run(rows, counts) if self.dispatch is None else self.dispatch(self.run, rows, counts)
        done = done * share.flatten().index_select(0, order).unsqueeze(-1).to(done.dtype)
        out = torch.zeros_like(flat).scatter_add_(0, token.unsqueeze(-1).expand_as(done), done)
        # A copy, because fully_shard hooks what a module returns and a view would lose the hook.
        return self.leave(out.view_as(x).clone())

    def run(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Rows sorted by local expert."""
        ends = counts.cumsum(0).to(torch.int32)
        return grouped(activate(self.activation, grouped(rows, self.fc1.weight, ends)), self.fc2.weight, ends)


def grouped(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Each expert's rows, up to its end, times its own matrix: one kernel where torch has one (bf16 on a GPU).
    An expert without rows still takes part, so that it has a gradient."""
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        return torch._grouped_mm(rows, weights.transpose(-2, -1), offs=ends)
    parts = rows.tensor_split(ends[:-1].cpu().long())
    return torch.cat([F.linear(part, weight) for part, weight in zip(parts, weights.unbind(0))])


class Moe(nn.Module):
    """Top-k routing without capacity, and a shared expert where the recipe has one."""

    def __init__(self, m: dict):
        super().__init__()
        moe, shared = m["moe"], m["moe"]["shared"]
        self.norm, self.router = Norm(m["hidden"], m["norm"]), Router(m["hidden"], moe)
        self.experts = Experts(m["hidden"], moe)
        self.shared = SharedExpert(m["hidden"], shared["ffn"], shared["activation"]) if shared else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        chosen, share = self.router(x)
        out = self.experts(x, chosen, share)
        return out if self.shared is None else out + self.shared(x)
