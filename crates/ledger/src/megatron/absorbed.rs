//! Latent attention with the keys' up-projection absorbed into queries, and the values' behind the core, as Megatron-Core
//! builds every sparse layer (`megatron/core/transformer/experimental_attention_variant/absorbed_mla.py`): one key of the
//! latent's width for all heads. Norms of latents stand by themselves, since the indexer reads what they make.

use super::blocks::{MlaParams, UpProjection};
use super::indexer::{self, Chosen};
use super::linear::{Keeps, Mode, linear};
use super::mla::{halves, kv_latent};
use super::ops::{self, copy, grad, makes, passes, weight_grad};
use super::rank::Rank;
use super::rope::{Storing, rotate};
use super::sparse;
use case::SparseKernels;
use layout::request::RecomputeModule;
use replay::tape::{BF16, Tensor, WithoutOutput, checkpoint};
use std::rc::Rc;

/// `y` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &Rc<MlaParams>, y: &Tensor) -> Tensor {
    let config = &c.config;
    let latent = &params.latent;
    let query = match (&params.q_down, latent.q_rank) {
        (Some(down), Some(rank)) => {
            let query = linear(c, y, Mode::Plain, (config.hidden, rank), down, Keeps::Quantized);
            normed(c, query, rank, &params.q_up)
        }
        _ => y.clone(),
    };
    let (compressed, position) = kv_latent(c, params, y);
    let compressed = gathered(c, normed(c, compressed, latent.kv_rank, &params.kv_up), latent.kv_rank);
    let inputs = [&query, &compressed, &position];
    let (rank, of) = (c.clone(), params.clone());
    let up = move |inputs: &[Tensor]| absorb(&rank, &of, inputs);
    let (kept, heads) = if config.recomputes(RecomputeModule::MlaUpProj) {
        let (kept, heads) = WithoutOutput::new(&c.tape, &inputs, up);
        (Some(kept), heads)
    } else {
        (None, up(&inputs.map(Tensor::clone)))
    };
    drop((compressed, position));
    let out = core(c, params, [&heads[0], &heads[1], y, &query]);
    drop(heads);
    if let Some(kept) = kept {
        kept.discard_until(&out);
    }
    let count = config.attention().heads / config.tp;
    linear(c, &out, Mode::Row, (count * latent.v_dim, config.hidden), &params.proj, Keeps::Original)
}

/// A latent's own norm, which makes a slice contiguous first (`transformer_engine/pytorch/ops/basic/rmsnorm.py`).
fn normed(c: &Rank, x: Tensor, width: u64, up: &UpProjection) -> Tensor {
    let Some(norm) = &up.norm else { return x };
    let rows = if x.is_dense() { x } else { copy(c, &x, c.config.local_tokens * width, "latent rows") };
    ops::norm(c, &rows, width, norm)
}

/// Tokens of all tensor-parallel ranks, where each has its own.
pub(super) fn gathered(c: &Rank, x: Tensor, width: u64) -> Tensor {
    if !c.config.sp {
        return x;
    }
    let all = c.comm(c.config.tokens * width, "gathered latents");
    makes(c, &x, &all, Vec::new(), c.config.local_tokens * width, BF16);
    all
}

/// From latents to queries of the latent's width by head, and one key.
fn absorb(c: &Rank, params: &MlaParams, inputs: &[Tensor]) -> Vec<Tensor> {
    let config = &c.config;
    let latent = &params.latent;
    let heads = config.attention().heads / config.tp;
    let [plain, rope, wide] = [latent.qk_dim, latent.rope_dim, latent.kv_rank].map(|w| config.tokens * heads * w);
    let sizes = (latent.q_rank.unwrap_or(config.hidden), heads * (latent.qk_dim + latent.rope_dim));
    let query = linear(c, &inputs[0], Mode::Column, sizes, &params.q_up.weight, Keeps::Quantized);
    let (query_plain, query_rope) = halves(c, &query, plain, rope);
    drop(query);
    // The product keeps its slice of the projection, which so stays whole, and a slice of the weight.
    let product = c.act(wide, "absorbed query by head");
    c.torch_product();
    let flops = 2.0 * plain as f64 * latent.kv_rank as f64;
    c.tape.work(flops);
    let weight = params.kv_up.weight.elements;
    let edges = vec![query_plain.edge(), params.kv_up.weight.edge()];
    c.tape.record(edges, &[&product], vec![query_plain.clone()], move |t, _, _saved| {
        t.work(2.0 * flops);
        vec![Some(grad(t, plain, "query gradient")), Some(weight_grad(t, weight))]
    });
    drop(query_plain);
    let absorbed = copy(c, &product, wide, "absorbed query");
    drop(product);
    let query_rope = rotate(c, &query_rope, heads, latent.rope_dim, Storing::Pairs);
    let key_rope = rotate(c, &inputs[2], 1, latent.rope_dim, Storing::Pairs);
    let query = joined(c, [&absorbed, &query_rope], "query");
    drop((absorbed, query_rope));
    vec![query, joined(c, [&inputs[1], &key_rope], "key")]
}

/// `torch.cat` along columns; backward hands out slices.
fn joined(c: &Rank, parts: [&Tensor; 2], name: &'static str) -> Tensor {
    let [first, second] = parts.map(Tensor::elements);
    let out = c.act(first + second, name);
    c.tape.record(parts.map(Tensor::edge).to_vec(), &[&out], Vec::new(), move |_, grads, _| {
        let whole = grads[0].as_ref();
        vec![whole.map(|g| g.part(first)), whole.map(|g| g.part(second))]
    });
    out
}

/// Choice, attention over it and the values' up-projection, or all of it again in backward under `core_attn`. Without
/// gradients nothing is learned by the indexer: where it is computed again, its loss is of that pass alone.
fn core(c: &Rc<Rank>, params: &Rc<MlaParams>, inputs: [&Tensor; 4]) -> Tensor {
    let (rank, of) = (c.clone(), params.clone());
    let run = move |inputs: &[Tensor]| attend(&rank, &of, inputs);
    if c.config.recomputes(RecomputeModule::CoreAttn) {
        return checkpoint(&c.tape, &inputs, run);
    }
    run(&inputs.map(Tensor::clone))
}

fn attend(c: &Rank, params: &MlaParams, inputs: &[Tensor]) -> Tensor {
    let [query, key, hidden, latent] = inputs else { unreachable!("the core has four inputs") };
    let key = sparse::over_cp(c, key, params.latent.kv_rank + params.latent.rope_dim);
    let s = sparse::Sizes::of(&c.config, &params.latent);
    let Chosen { tokens, loss, best } = indexer::choose(c, params, s, [query, &key], [hidden, latent]);
    let (out, shares) = match c.config.told.sparse {
        SparseKernels::Eager => (sparse::eager(c, s, [query, &key]), None),
        SparseKernels::Tilelang => (sparse::fused(c, s, [query, &key]), None),
        SparseKernels::Ours => {
            let (out, shares) = sparse::ours(c, s, [query, &key], tokens.clone(), best.is_some());
            (out, Some(shares))
        }
    };
    let out = values(c, params, s, out);
    let learned = best.zip(shares).map(|(best, shares)| indexer::learns(c, s, &best, shares));
    let Some(loss) = loss.or(learned) else { return out };
    // `DSAIndexerLossAutoScaler`: the output carries the loss with it.
    let carrying = out.alias();
    c.tape.record(vec![out.edge(), loss.edge()], &[&carrying], vec![loss.clone()], |_, grads, saved| {
        vec![grads[0].clone(), saved.first().cloned()]
    });
    carrying
}

/// `torch.einsum("sbhc,hdc->sbhd", …)` with a contiguous copy of the values' rows of the weight, made contiguous.
fn values(c: &Rank, params: &MlaParams, s: sparse::Sizes, latent: Tensor) -> Tensor {
    let (v_dim, rank) = (params.latent.v_dim, params.latent.kv_rank);
    let weight = c.act(s.heads * v_dim * rank, "value rows of the up-projection");
    let product = c.act(s.rows() * v_dim, "values by head");
    c.torch_product();
    let flops = 2.0 * (s.rows() * v_dim) as f64 * rank as f64;
    c.tape.work(flops);
    let (elements, whole) = (s.rows() * rank, params.kv_up.weight.elements);
    let edges = vec![params.kv_up.weight.edge(), latent.edge()];
    c.tape.record(edges, &[&product], vec![latent, weight], move |t, _, _saved| {
        t.work(2.0 * flops);
        let weight = weight_grad(t, whole);
        vec![Some(weight), Some(grad(t, elements, "latent output gradient"))]
    });
    let out = c.act(s.rows() * v_dim, "attention output");
    passes(c, &[&product], &out);
    out
}
