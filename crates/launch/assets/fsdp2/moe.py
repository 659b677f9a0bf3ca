"""Routed experts: the router with its balancing, the bank, and the expert that every token visits.

Choices and losses are Megatron-Core's (`core/transformer/moe/{router,moe_utils}.py`). The balancing loss counts
over each sequence, which no layout changes, or over a microbatch of one replica, as the recipe says. A balancing
bias moves after each step by the counts of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import nn

from basics import Norm, Weight, activate, rows_of, times, wide


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
        self.top_k, self.options, self.bias_rate = moe["top_k"], moe["router"], moe["router"]["bias_rate"]
        if self.bias_rate is not None:
            self.register_buffer("expert_bias", torch.zeros(moe["experts"]))
            self.register_buffer("tokens_per_expert", torch.zeros(moe["experts"]), persistent=False)
        # Sums counts over the ranks that hold parts of the same sequences.
        self.counts = nn.Identity()
        # Sequences of a step and tokens of each; those of one call until somebody says more.
        self.batch: tuple[int, int] | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts of each token and their shares, both [b, s, top_k]."""
        options = self.options
        logits = wide(super().forward(x))
        scores = logits.sigmoid() if options["score"] == "sigmoid" else logits.softmax(-1)
        if self.is_tilted():
            chosen = self.choose(scores.detach())
            share = scores.gather(-1, chosen)
        else:
            share, chosen = scores.topk(self.top_k, -1)
        if options["normalize"]:
            share = share / share.sum(-1, keepdim=True)
        share = times(share, options["scaling"])
        if options["aux_loss"] is not None:
            share = _WithLoss.apply(share, self.balance(scores, chosen))
        if options["z_loss"] is not None:
            share = _WithLoss.apply(share, self.smallness(logits))
        return chosen, share

    def choose(self, scores: torch.Tensor) -> torch.Tensor:
        """The best experts by score and balancing bias, of the best groups where experts stand in some."""
        if self.bias_rate is not None:
            scores = scores + self.expert_bias
        if self.options["groups"] > 1:
            grouped = scores.unflatten(-1, (self.options["groups"], -1))
            best = grouped.topk({"max": 1, "top2": 2}[self.options["group_score"]], -1)[0].sum(-1)
            allowed = torch.zeros_like(best).scatter_(-1, best.topk(self.options["group_top_k"], -1)[1], 1.0)
            scores = grouped.masked_fill(allowed.unsqueeze(-1) == 0, float("-inf")).flatten(-2)
        chosen = scores.topk(self.top_k, -1)[1]
        if self.bias_rate is not None:
            # Counted again when a layer is recomputed: only the sign of a difference is used.
            self.tokens_per_expert += counted(chosen.flatten(0, 1).unsqueeze(0), scores)[0]
        return chosen

    def balance(self, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """This rank's part of the balancing loss: experts / top_k times each expert's share of choices times its
        mean score, over sequences or microbatches; choices are those by score alone."""
        options = self.options
        size, (sequences, length) = scores.shape[0], self.batch or scores.shape[:2]
        with torch.no_grad():
            by_score = scores.topk(self.top_k, -1)[1] if self.is_tilted() else chosen
            counts = self.counts(counted(by_score, scores))
        shares = scores / scores.sum(-1, keepdim=True) if options["score"] == "sigmoid" else scores
        shares, number = shares.sum(1), sequences
        if options["aux_loss_over"] == "batch":
            # The microbatch is one long sequence.
            counts, shares, number, length = counts.sum(0), shares.sum(0), sequences // size, length * size
        return (shares * counts).sum() * (options["aux_loss"] * scores.shape[-1] / (self.top_k * length**2 * number))

    def is_tilted(self) -> bool:
        """Whether anything but scores decides the choice."""
        return self.bias_rate is not None or self.options["groups"] > 1

    def smallness(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's part of the z loss: the mean over tokens of the squared log of summed exponentials."""
        sequences, length = self.batch or logits.shape[:2]
        return logits.logsumexp(-1).square().sum() * (self.options["z_loss"] / (sequences * length))


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


class Bank(Weight):
    """One matrix an expert, and each expert's rows times its own when called."""

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return grouped(rows, self.weight, ends)


class Experts(nn.Module):
    """A bank of routed experts; `dispatch` brings rows to the experts held here and takes them home."""

    def __init__(self, hidden: int, moe: dict):
        super().__init__()
        self.activation, self.num_experts = moe["activation"], moe["experts"]
        self.fc1 = Bank(moe["experts"], rows_of(self.activation, moe["ffn"]), hidden)
        self.fc2 = Bank(moe["experts"], hidden, moe["ffn"])
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
        return self.fc2(activate(self.activation, self.fc1(rows, ends)), ends)


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
        self.norm, self.router = Norm(m["hidden"], m["norm_eps"], m["norm"]), Router(m["hidden"], moe)
        self.experts = Experts(m["hidden"], moe)
        self.shared = SharedExpert(m["hidden"], shared["ffn"], shared["activation"]) if shared else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        chosen, share = self.router(x)
        out = self.experts(x, chosen, share)
        return out if self.shared is None else out + self.shared(x)
