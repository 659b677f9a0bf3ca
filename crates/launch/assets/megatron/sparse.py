"""Sparse attention over latent keys in kernels of our own (`sparse_kernels.py`), where those of Megatron are for other
widths and numbers of heads.

An indexer scores every earlier token, the best are kept, and attention reads those alone. The indexer learns from a loss of
its own, the divergence of its softmax from what all heads give the chosen tokens. Its weights, its projections and the sums
are Megatron's (`dsa.py`), so checkpoints are. A device without Triton's kernels runs the same sums in torch.
"""

from __future__ import annotations

from importlib import import_module

import torch
from megatron.core.transformer.experimental_attention_variant import dsa, dsa_indexer_loss


def kernels():
    return import_module(".sparse_kernels", __package__)


class Chosen(torch.autograd.Function):
    """The best scores of each query and the keys they are of, -1 where a query has fewer keys than it may choose."""

    @staticmethod
    def forward(ctx, q, k, w, top, relu):
        every = kernels().scores(q, k, w, relu) if q.is_cuda else scores(q, k, w, relu)
        best, places = every.topk(min(top, every.shape[-1]), dim=-1, sorted=False)
        del every
        places = places.to(torch.int32).masked_fill_(best == float("-inf"), -1)
        ctx.save_for_backward(q, k, w, places)
        ctx.relu = relu
        ctx.mark_non_differentiable(places)
        return best, places

    @staticmethod
    def backward(ctx, grad, _):
        run = kernels().scores_backward if grad.is_cuda else scores_backward
        return *run(*ctx.saved_tensors, grad.contiguous(), ctx.relu), None, None


class Attention(torch.autograd.Function):
    """What heads read of chosen keys, and each chosen key's weight summed over heads, which has no gradient."""

    @staticmethod
    def forward(ctx, query, key, chosen, scale, latent, shares):
        run = kernels().forward if query.is_cuda else forward
        out, sums, shares = run(query, key, chosen, scale, latent, shares)
        ctx.save_for_backward(query, key, chosen, out, sums)
        ctx.scale, ctx.latent = scale, latent
        ctx.mark_non_differentiable(shares)
        return out, shares

    @staticmethod
    def backward(ctx, grad, _):
        run = kernels().backward if grad.is_cuda else backward
        return *run(*ctx.saved_tensors, grad.contiguous(), ctx.scale, ctx.latent), None, None, None, None


def scores(q, k, w, relu):
    score = torch.einsum("sbhd,tbd->bsht", q.float(), k.float())
    score = torch.einsum("bsht,sbh->bst", score.relu() if relu else score, w.float())
    return score.masked_fill(torch.ones_like(score[0], dtype=torch.bool).triu(1), float("-inf"))


def scores_backward(q, k, w, chosen, grad, relu):
    inputs = [t.detach().requires_grad_() for t in (q, k, w)]
    with torch.enable_grad():
        taken = scores(*inputs, relu).gather(-1, chosen.clamp(min=0).long())
    return torch.autograd.grad(taken, inputs, grad.masked_fill(chosen < 0, 0.0))


def read(query, key, chosen, scale, latent):
    """What heads read, the logarithms of sums, and weights by head."""
    score = torch.einsum("sbhd,tbd->bhst", query.float(), key[:, :, 0].float()) * scale
    unseen = torch.ones(score.shape[0], *score.shape[2:], dtype=torch.bool, device=score.device)
    # Unfilled places (-1) are scattered into a column behind the last key, which is cut off.
    unseen = torch.cat([unseen, unseen[..., :1]], -1).scatter(-1, chosen.long() % (len(key) + 1), False)[..., :-1]
    score = score.masked_fill(unseen[:, None], float("-inf"))
    weights = score.softmax(-1)
    out = torch.einsum("bhst,tbc->sbhc", weights, key[:, :, 0, :latent].float())
    return out.to(query.dtype), score.logsumexp(-1).permute(2, 0, 1), weights


def forward(query, key, chosen, scale, latent, shares):
    out, sums, weights = read(query, key, chosen, scale, latent)
    shares = weights.sum(1).gather(-1, chosen.clamp(min=0).long()).masked_fill(chosen < 0, 0.0) if shares else sums.new_empty(0)
    return out, sums, shares


def backward(query, key, chosen, _out, _sums, grad, scale, latent):
    inputs = [t.detach().requires_grad_() for t in (query, key)]
    with torch.enable_grad():
        out = read(*inputs, chosen, scale, latent)[0]
    return torch.autograd.grad(out, inputs, grad)


class SparseAttention(dsa.DSAttention):
    def forward(
        self,
        query,
        key,
        value,
        attention_mask,
        x,
        qr,
        position_ids=None,
        attn_mask_type=None,
        attention_bias=None,
        packed_seq_params=None,
        up_v_weight=None,
    ):
        if packed_seq_params is not None or self.pg_collection.cp.size() > 1 or key.shape[2] != 1 or value is not None:
            raise NotImplementedError("sparse attention of ours reads latent keys, without packed documents or a cp ring")
        coefficient = self.config.dsa_indexer_loss_coeff or 0.0
        if coefficient > 0 and not self.config.dsa_indexer_use_sparse_loss:
            raise NotImplementedError("sparse attention of ours takes the indexer's loss over chosen tokens alone")
        learns = self.training and torch.is_grad_enabled() and coefficient > 0 and not self.skip_topk
        best, chosen = self.choice(x.detach(), qr.detach(), attention_mask, learns)
        latent = self.config.kv_lora_rank
        out, shares = Attention.apply(query.contiguous(), key.contiguous(), chosen, self.softmax_scale, latent, learns)
        up = up_v_weight.to(out.dtype).contiguous()
        out = torch.einsum("sbhc,hdc->sbhd", out, up).contiguous().flatten(2)
        return self.with_loss(out, best, chosen, shares, coefficient) if learns else out

    def choice(self, x, qr, attention_mask, learns):
        """Scores of chosen keys, where this layer has an indexer, and the keys."""
        held = self._get_index_share_topk_holder(None, attention_mask) if self.index_share else {}
        if self.skip_topk:
            return None, held[self.source_layer]
        with torch.set_grad_enabled(learns):
            q, k, w = self.indexer.forward_before_topk(x, qr, None)
            best, chosen = Chosen.apply(
                q.contiguous(), k.contiguous(), w.contiguous(), self.index_topk, self.config.dsa_indexer_scoring_relu
            )
        held[self.layer_number] = chosen
        return best, chosen

    def with_loss(self, out, best, chosen, shares, coefficient):
        if self.pg_collection.tp.size() > 1:
            torch.distributed.all_reduce(shares, group=self.pg_collection.tp)
        unfilled = chosen < 0
        # Their score is minus infinity, and their target 0: the product would be NaN.
        guess = best.log_softmax(-1).masked_fill(unfilled, 0.0)
        loss = dsa_indexer_loss.indexer_loss_from_target(
            dsa_indexer_loss.normalize_indexer_target(shares),
            guess,
            coefficient,
            calculate_per_token_loss=self.config.calculate_per_token_loss,
        )
        dsa.DSAIndexerLossLoggingHelper.save_loss_to_tracker(
            loss=loss, layer_number=self.layer_number, num_layers=self.config.num_layers
        )
        return dsa.DSAIndexerLossAutoScaler.apply(out, loss)
