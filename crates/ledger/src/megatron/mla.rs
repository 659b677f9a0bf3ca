//! Multi-latent attention (`megatron/core/transformer/multi_latent_attention.py`).

use super::attention::{Heads, fused, run_core};
use super::blocks::{MlaParams, UpProjection};
use super::linear::{Fused, Keeps, Mode, linear, norm_linear_of};
use super::ops::{copy, grad, makes};
use super::rank::Rank;
use super::rope::{Storing, rotate};
use layout::request::RecomputeModule;
use replay::tape::{BF16, Tensor, WithoutOutput};
use std::rc::Rc;

/// `y` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &Rc<MlaParams>, y: &Tensor) -> Tensor {
    let config = &c.config;
    let latent = &params.latent;
    let query = match (&params.q_down, latent.q_rank) {
        (Some(down), Some(rank)) => linear(c, y, Mode::Plain, (config.hidden, rank), down, Keeps::Quantized),
        _ => y.clone(),
    };
    let (compressed, position) = kv_latent(c, params, y);
    let inputs = [&query, &compressed, &position];
    let (rank, up) = (c.clone(), params.clone());
    let up = move |inputs: &[Tensor]| up_projections(&rank, &up, inputs);
    let (kept, heads) = if config.recomputes(RecomputeModule::MlaUpProj) {
        let (kept, heads) = WithoutOutput::new(&c.tape, &inputs, up);
        (Some(kept), heads)
    } else {
        (None, up(&inputs.map(Tensor::clone)))
    };
    let width = latent.qk_dim + latent.rope_dim;
    let count = config.attention().heads / config.tp;
    let sizes = Heads { query: count, kv: count, qk_dim: width, v_dim: latent.v_dim };
    let rank = c.clone();
    let core = move |inputs: &[Tensor]| fused(&rank, [&inputs[0], &inputs[1], &inputs[2]], sizes);
    let out = run_core(c, [&heads[0], &heads[1], &heads[2]], core);
    if let Some(kept) = kept {
        kept.discard_until(&out);
    }
    linear(c, &out, Mode::Row, (count * latent.v_dim, config.hidden), &params.proj, Keeps::Original)
}

/// The compressed keys and values, and the slice that carries position, gathered under sequence
/// parallelism.
pub(super) fn kv_latent(c: &Rank, params: &MlaParams, y: &Tensor) -> (Tensor, Tensor) {
    let config = &c.config;
    let (rank, rope) = (params.latent.kv_rank, params.latent.rope_dim);
    let latent = linear(c, y, Mode::Plain, (config.hidden, rank + rope), &params.kv_down, Keeps::Quantized);
    let compressed = latent.part(config.local_tokens * rank);
    let position = latent.part(config.local_tokens * rope);
    let elements = latent.elements();
    c.tape.record(vec![latent.edge()], &[&compressed, &position], Vec::new(), move |t, _, _| {
        vec![Some(grad(t, elements, "latent gradient"))]
    });
    drop(latent);
    if !config.sp {
        return (compressed, position);
    }
    let gathered = c.comm(config.tokens * rope, "gathered position slice");
    makes(c, &position, &gathered, Vec::new(), config.local_tokens * rope, BF16);
    (compressed, gathered)
}

/// From latents to queries, keys and values by head. The projections' outputs die once their
/// parts have been put together with the rotated slices.
fn up_projections(c: &Rank, params: &MlaParams, inputs: &[Tensor]) -> Vec<Tensor> {
    let config = &c.config;
    let latent = &params.latent;
    let heads = config.attention().heads / config.tp;
    let [plain, rope, value] = [latent.qk_dim, latent.rope_dim, latent.v_dim].map(|w| config.tokens * heads * w);
    let query_input = latent.q_rank.unwrap_or(config.hidden);
    let query = up(c, &inputs[0], query_input, heads * (latent.qk_dim + latent.rope_dim), &params.q_up);
    // Transformer Engine makes the slice contiguous, and keeps that copy.
    let compressed = copy(c, &inputs[1], config.local_tokens * latent.kv_rank, "compressed kv");
    let kv = up(c, &compressed, latent.kv_rank, heads * (latent.qk_dim + latent.v_dim), &params.kv_up);
    drop(compressed);
    let (query_plain, query_rope) = halves(c, &query, plain, rope);
    let (key_plain, values) = halves(c, &kv, plain, value);
    let query_rope = rotate(c, &query_rope, heads, latent.rope_dim, Storing::Pairs);
    let key_rope = rotate(c, &inputs[2], 1, latent.rope_dim, Storing::Pairs);
    let joined = c.act(plain + rope, "query");
    let edges = vec![query_plain.edge(), query_rope.edge()];
    c.tape.record(edges, &[&joined], Vec::new(), move |_, grads, _| {
        let whole = grads[0].as_ref();
        vec![whole.map(|g| g.part(plain)), whole.map(|g| g.part(rope))]
    });
    drop((query_plain, query_rope));
    let key = join_key(c, &key_plain, &key_rope, (plain, rope));
    drop(key_rope);
    let contiguous = copy(c, &values, value, "value");
    vec![joined, key, contiguous]
}

fn up(c: &Rank, x: &Tensor, input: u64, output: u64, params: &UpProjection) -> Tensor {
    match &params.norm {
        // `TELayerNormColumnParallelLinear` under `qk_layernorm`. Modelled from source.
        Some(norm) => {
            let fused = Fused { norm, weight: &params.weight, bias: None };
            norm_linear_of(c, x, input, output, fused)
        }
        None => linear(c, x, Mode::Column, (input, output), &params.weight, Keeps::Quantized),
    }
}

/// Splits into two strided parts; backward concatenates.
pub(super) fn halves(c: &Rank, x: &Tensor, first: u64, second: u64) -> (Tensor, Tensor) {
    let parts = (x.part(first), x.part(second));
    let elements = x.elements();
    c.tape.record(vec![x.edge()], &[&parts.0, &parts.1], Vec::new(), move |t, _, _| {
        vec![Some(grad(t, elements, "up-projection gradient"))]
    });
    parts
}

/// Every head's key ends in the one rotated slice; its gradient is summed over heads.
fn join_key(c: &Rank, plain: &Tensor, rope: &Tensor, sizes: (u64, u64)) -> Tensor {
    let key = c.act(sizes.0 + sizes.1, "key");
    let slice = c.config.tokens * c.config.attention().mla.as_ref().map_or(0, |mla| mla.rope_dim);
    c.tape.record(vec![plain.edge(), rope.edge()], &[&key], Vec::new(), move |t, grads, _| {
        let part = grads[0].as_ref().map(|g| g.part(sizes.0));
        vec![part, Some(grad(t, slice, "position slice gradient"))]
    });
    key
}
