//! The parameters of each kind of block, in the order in which Megatron's modules make them.

pub(super) use super::custom::{GatedDeltaParams, M2rnnParams, Mamba3Params};

use super::config::{AttentionSizes, Config, Feed};
use super::custom;
use super::indexer::IndexerParams;
use super::params::{Linear, Norm, NormLinear, Origin, Param, Params};
use crate::mamba_scan::MambaSizes;
use recipe::kinds::mla::Mla;
use recipe::{Mixer, Role};
use replay::tape::{Storage, Tensor};
use std::cell::RefCell;
use std::rc::Rc;

/// `transformer/attention.py`.
pub(super) struct AttentionParams {
    /// One learned logit a head (`softmax_offset` of Transformer Engine's `DotProductAttention`).
    pub sinks: Option<Rc<Param>>,
    pub proj: Linear,
    pub qkv: NormLinear,
    pub head_norms: Option<(Rc<Param>, Rc<Param>)>,
}

/// An up-projection of a latent, with the latent's norm fused where there is one.
pub(super) struct UpProjection {
    pub norm: Option<Norm>,
    pub weight: Rc<Param>,
}

/// `transformer/multi_latent_attention.py`.
pub(super) struct MlaParams {
    pub norm: Rc<Norm>,
    /// Whether it attends to chosen tokens, by its own indexer or another layer's.
    pub is_sparse: bool,
    pub indexer: Option<IndexerParams>,
    pub proj: Rc<Param>,
    /// The query latent's down-projection, when there is a latent.
    pub q_down: Option<Rc<Param>>,
    pub q_up: UpProjection,
    pub kv_down: Rc<Param>,
    pub kv_up: UpProjection,
    pub latent: Mla,
    /// Each layer has a rotary table of its own, made at first use.
    pub rope: RefCell<Option<Rc<Storage>>>,
}

/// `transformer/moe/moe_layer.py`.
pub(super) struct MoeParams {
    pub norm: Rc<Norm>,
    pub router: Rc<Param>,
    pub router_bias: Option<Rc<Param>>,
    /// Projections into and out of the width experts work in, when it is not the hidden width.
    pub latent: Option<(Rc<Param>, Rc<Param>)>,
    pub fc1: Vec<Rc<Param>>,
    /// Added by the product.
    pub fc1_biases: Vec<Rc<Param>>,
    pub fc2: Vec<Rc<Param>>,
    /// Weighed by a token's score and added behind the product.
    pub fc2_biases: Vec<Rc<Param>>,
    pub shared: Option<Rc<SharedParams>>,
    /// The layer, which the draw of a random router depends on.
    pub layer: u32,
    /// What the token dispatcher keeps as attributes until its next forward: scores, map and
    /// permutation. The scores keep their graph, and so the leaf behind it.
    pub dispatched: RefCell<Vec<Tensor>>,
}

/// `transformer/moe/shared_experts.py`.
pub(super) struct SharedParams {
    pub gate: Option<Rc<Param>>,
    pub fc1: Rc<Param>,
    pub fc2: Rc<Param>,
}

/// `transformer/mlp.py`.
pub(super) struct MlpParams {
    pub fc1: NormLinear,
    /// Added with the activation, not by the product.
    pub fc1_bias: Option<Rc<Param>>,
    pub fc2: Linear,
}

/// `ssm/mamba_mixer.py`.
pub(super) struct MambaParams {
    pub conv_weight: Rc<Param>,
    pub conv_bias: Rc<Param>,
    pub dt_bias: Rc<Param>,
    pub a_log: Rc<Param>,
    pub d: Rc<Param>,
    pub in_proj: NormLinear,
    pub norm: Rc<Param>,
    pub out_proj: Rc<Param>,
}

/// The parameters of a block.
pub(super) enum BlockParams {
    Attention(AttentionParams),
    Mla(Rc<MlaParams>),
    Moe(Rc<MoeParams>),
    Mlp(Rc<MlpParams>),
    Mamba(MambaParams),
    Mamba3(Mamba3Params),
    M2rnn(M2rnnParams),
    GatedDelta(GatedDeltaParams),
}

impl BlockParams {
    pub fn build(mixer: Mixer, layer: u32, c: &Config, params: &mut Params) -> BlockParams {
        match mixer {
            Mixer::Moe => BlockParams::Moe(Rc::new(moe(c, layer, params))),
            Mixer::Mlp => BlockParams::Mlp(Rc::new(mlp(c, params))),
            Mixer::Mamba => match &c.mamba3 {
                Some(mixer) => BlockParams::Mamba3(custom::mamba3(c, mixer, params)),
                None => BlockParams::Mamba(mamba(c, params)),
            },
            Mixer::Recurrent => BlockParams::M2rnn(custom::m2rnn(c, params)),
            Mixer::GatedDelta => BlockParams::GatedDelta(custom::gated_delta(c, params)),
            Mixer::Linear | Mixer::Shared => unreachable!("these are refused (`supported.rs`)"),
            Mixer::Attention => match &c.attention().mla {
                Some(latent) => BlockParams::Mla(Rc::new(mla(c, layer, latent, params))),
                None => BlockParams::Attention(attention(c, c.attention(), params)),
            },
        }
    }
}

impl BlockParams {
    /// The bias that is added together with the residual, not by the product.
    pub fn late_bias(&self) -> Option<&Rc<Param>> {
        match self {
            BlockParams::Attention(params) => params.proj.bias.as_ref(),
            BlockParams::Mlp(params) => params.fc2.bias.as_ref(),
            _ => None,
        }
    }
}

fn attention(c: &Config, a: &AttentionSizes, params: &mut Params) -> AttentionParams {
    let sinks = a.has_sinks.then(|| params.vector(a.heads / c.tp, Origin::Device));
    let proj = Linear {
        weight: params.matrix(Role::Matrix, c.hidden, a.heads * a.head_dim / c.tp),
        bias: a.has_out_bias.then(|| params.whole_vector(c.hidden)),
    };
    let norm = params.block_norm(c.hidden);
    let gates = if a.has_gate { 2 } else { 1 };
    let (query, kv) = (gates * a.heads * a.head_dim / c.tp, a.kv_heads * a.head_dim);
    // Fewer KV heads than ranks: their rows are cut all the same, and gathered after the product.
    let parts = if kv.is_multiple_of(c.tp) { [query, kv / c.tp, kv / c.tp] } else { [query, 0, 2 * kv / c.tp] };
    let weight = params.qkv(parts, c.hidden);
    let bias = a.has_in_bias.then(|| params.vector(parts.iter().sum(), Origin::Device));
    let head_norms = a.qk_norm.then(|| (params.head_norm(a.head_dim), params.head_norm(a.head_dim)));
    AttentionParams { sinks, proj, qkv: NormLinear { norm, weight, bias }, head_norms }
}

fn mla(c: &Config, layer: u32, latent: &Mla, params: &mut Params) -> MlaParams {
    let a = c.attention();
    let query = a.heads * (latent.qk_dim + latent.rope_dim) / c.tp;
    let norm = Rc::new(params.block_norm(c.hidden));
    let is_sparse = c.indexer.as_ref().is_some_and(|indexer| indexer.sparse.contains(&layer));
    let indexer = IndexerParams::build(c, layer, latent.q_rank.unwrap_or(c.hidden), params);
    // `Attention.__init__` builds a projection that the latent one then replaces.
    let replaced = a.heads * a.head_dim / c.tp * c.hidden;
    let proj = params.matrix_from(Origin::Replacing(replaced), c.hidden, a.heads * latent.v_dim / c.tp);
    let up = |rows: u64, rank: u64, is_latent: bool, params: &mut Params| UpProjection {
        norm: (latent.latent_norm && is_latent).then(|| Norm { weight: params.head_norm(rank), bias: None }),
        weight: params.matrix(Role::Matrix, rows, rank),
    };
    let q_down = latent.q_rank.map(|rank| params.whole_matrix(Role::Matrix, rank, c.hidden));
    let q_up = up(query, latent.q_rank.unwrap_or(c.hidden), latent.q_rank.is_some(), params);
    let kv_down = params.whole_matrix(Role::Matrix, latent.kv_rank + latent.rope_dim, c.hidden);
    let kv_up = up(a.heads * (latent.qk_dim + latent.v_dim) / c.tp, latent.kv_rank, true, params);
    MlaParams {
        norm,
        is_sparse,
        indexer,
        proj,
        q_down,
        q_up,
        kv_down,
        kv_up,
        latent: latent.clone(),
        rope: RefCell::default(),
    }
}

/// Rows of the projection into a feed-forward block of this width.
pub(super) fn rows_in(feed: Feed) -> u64 {
    if feed.activation.is_gated() { 2 * feed.ffn } else { feed.ffn }
}

fn moe(c: &Config, layer: u32, params: &mut Params) -> MoeParams {
    let moe = c.moe();
    let norm = Rc::new(params.block_norm(c.hidden));
    let router = params.whole_matrix(Role::Router, moe.experts, c.hidden);
    let router_bias = moe.has_router_bias.then(|| params.whole_vector(moe.experts));
    let latent = moe.latent.map(|width| {
        let into = params.whole_matrix(Role::Matrix, width, c.hidden);
        (into, params.whole_matrix(Role::Matrix, c.hidden, width))
    });
    let (width, ffn) = (c.expert_hidden(), moe.feed.ffn / c.etp);
    let into = rows_in(moe.feed) / c.etp;
    let biased = if moe.feed.has_bias { moe.local_experts } else { 0 };
    let fc1 = (0..moe.local_experts).map(|_| params.expert(moe.own_buffers, into, width)).collect();
    let fc1_biases = (0..biased).map(|_| params.expert_vector(moe.own_buffers, into)).collect();
    let fc2 = (0..moe.local_experts).map(|_| params.expert(moe.own_buffers, width, ffn)).collect();
    let fc2_biases = (0..biased).map(|_| params.expert_vector(moe.own_buffers, width)).collect();
    let shared = moe.shared.map(|feed| {
        let gate = moe.gates_shared.then(|| params.whole_matrix(Role::Router, 1, c.hidden));
        let fc1 = params.matrix(Role::Matrix, rows_in(feed) / c.tp, c.hidden);
        Rc::new(SharedParams { gate, fc1, fc2: params.matrix(Role::Matrix, c.hidden, feed.ffn / c.tp) })
    });
    let dispatched = RefCell::default();
    MoeParams { norm, router, router_bias, latent, fc1, fc1_biases, fc2, fc2_biases, shared, layer, dispatched }
}

fn mlp(c: &Config, params: &mut Params) -> MlpParams {
    let feed = c.mlp();
    let (rows, ffn) = (rows_in(feed) / c.tp, feed.ffn / c.tp);
    let norm = params.block_norm(c.hidden);
    let fc1 = NormLinear { norm, weight: params.matrix(Role::Matrix, rows, c.hidden), bias: None };
    let fc1_bias = feed.has_bias.then(|| params.vector(rows, Origin::Device));
    let weight = params.matrix(Role::Matrix, c.hidden, ffn);
    let bias = feed.has_bias.then(|| params.whole_vector(c.hidden));
    MlpParams { fc1, fc1_bias, fc2: Linear { weight, bias } }
}

fn mamba(c: &Config, params: &mut Params) -> MambaParams {
    let sizes = MambaSizes::of(c.mamba(), c.tp);
    let conv_weight = params.bank(sizes.conv * c.mamba().conv, Origin::Device);
    let conv_bias = params.vector(sizes.conv, Origin::Device);
    let dt_bias = params.vector(sizes.heads, Origin::Device);
    let a_log = params.vector(sizes.heads, Origin::Fp32);
    let d = params.vector(sizes.heads, Origin::Fp32);
    let norm = params.block_norm(c.hidden);
    let weight = params.matrix(Role::Matrix, sizes.width, c.hidden);
    let in_proj = NormLinear { norm, weight, bias: None };
    let norm = params.vector(sizes.inner, Origin::Device);
    let out_proj = params.matrix(Role::Matrix, c.hidden, sizes.inner);
    MambaParams { conv_weight, conv_bias, dt_bias, a_log, d, in_proj, norm, out_proj }
}
