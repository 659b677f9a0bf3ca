//! Parameters of one rank in Megatron's order: the order of `named_parameters`, which decides
//! where each lies in the gradient buffers.

use super::config::{AttentionSizes, Config, Feed};
use crate::line::Line;
use crate::tape::{Edge, Node, Storage, Tensor};
use recipe::Mixer;
use recipe::kinds::mla::Mla;
use std::cell::RefCell;
use std::rc::Rc;

/// How a parameter comes to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It is built there in bf16.
    Device,
    /// It is built on the host and moved once the chunk stands (`transformer/moe/router.py`).
    Host,
    /// It is built in fp32 and cast once the chunk stands (`ssm/mamba_mixer.py`).
    Fp32,
    /// It is built while a weight of so many elements that it replaces is still there.
    Replacing(u64),
}

/// One parameter of this rank.
pub(super) struct Param {
    pub elements: u64,
    pub line: Line,
    pub origin: Origin,
    /// Whether it lies in the experts' own buffers.
    pub is_expert: bool,
    /// Weight decay: matrices have it, vectors do not, and they are grouped apart.
    pub decays: bool,
    /// Whether it is the norm in front of a block.
    pub is_block_norm: bool,
    pub data: RefCell<Option<Rc<Storage>>>,
    /// Row and column copies that fp8 products keep.
    pub fp8: RefCell<Vec<Rc<Storage>>>,
    accumulator: Rc<Node>,
}

impl Param {
    fn new(line: Line, elements: u64) -> Param {
        Param {
            elements,
            line,
            origin: Origin::Device,
            is_expert: false,
            decays: true,
            is_block_norm: false,
            data: RefCell::default(),
            fp8: RefCell::default(),
            accumulator: Node::accumulator(None),
        }
    }

    /// Where its gradient goes.
    pub fn edge(&self) -> Option<Edge> {
        Some(Edge { node: self.accumulator.clone(), slot: 0 })
    }
}

/// Parameters in order.
#[derive(Default)]
pub(super) struct Params {
    pub all: Vec<Rc<Param>>,
}

impl Params {
    fn add(&mut self, param: Param) -> Rc<Param> {
        let param = Rc::new(param);
        self.all.push(param.clone());
        param
    }

    /// A matrix cut over tensor-parallel ranks.
    pub fn matrix(&mut self, elements: u64) -> Rc<Param> {
        self.add(Param::new(Line::TpParams, elements))
    }

    fn whole_matrix(&mut self, elements: u64) -> Rc<Param> {
        self.add(Param::new(Line::ReplicatedParams, elements))
    }

    /// A vector in front of a block.
    fn block_norm(&mut self, elements: u64) -> Rc<Param> {
        let param = Param::new(Line::ReplicatedParams, elements);
        self.add(Param { decays: false, is_block_norm: true, ..param })
    }

    /// A norm that stands elsewhere.
    pub fn norm(&mut self, elements: u64) -> Rc<Param> {
        self.add(Param { decays: false, ..Param::new(Line::ReplicatedParams, elements) })
    }

    fn vector(&mut self, elements: u64, origin: Origin) -> Rc<Param> {
        self.add(Param { decays: false, origin, ..Param::new(Line::TpParams, elements) })
    }
}

/// A norm and the projection behind it.
pub(super) struct NormLinear {
    pub norm: Rc<Param>,
    pub weight: Rc<Param>,
}

/// `transformer/attention.py`.
pub(super) struct AttentionParams {
    pub proj: Rc<Param>,
    pub qkv: NormLinear,
    pub head_norms: Option<(Rc<Param>, Rc<Param>)>,
}

/// An up-projection of a latent, with the latent's norm fused where there is one.
pub(super) struct UpProjection {
    pub norm: Option<Rc<Param>>,
    pub weight: Rc<Param>,
}

/// `transformer/multi_latent_attention.py`.
pub(super) struct MlaParams {
    pub norm: Rc<Param>,
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
    pub norm: Rc<Param>,
    pub router: Rc<Param>,
    pub fc1: Vec<Rc<Param>>,
    pub fc2: Vec<Rc<Param>>,
    pub shared: Option<(Rc<Param>, Rc<Param>)>,
    /// The layer, which the draw of a random router depends on.
    pub layer: u32,
    /// What the token dispatcher keeps as attributes until its next forward: scores, map and
    /// permutation. The scores keep their graph, and so the leaf behind it.
    pub dispatched: RefCell<Vec<Tensor>>,
}

/// `transformer/mlp.py`.
pub(super) struct MlpParams {
    pub fc1: NormLinear,
    pub fc2: Rc<Param>,
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
}

impl BlockParams {
    pub fn build(mixer: Mixer, layer: u32, c: &Config, params: &mut Params) -> BlockParams {
        match mixer {
            Mixer::Moe => BlockParams::Moe(Rc::new(moe(c, layer, params))),
            Mixer::Mlp => BlockParams::Mlp(Rc::new(mlp(c, params))),
            Mixer::Mamba => BlockParams::Mamba(mamba(c, params)),
            // The configuration has refused every mixer but attention that is left.
            Mixer::Attention | Mixer::Recurrent | Mixer::GatedDelta => match &c.attention().mla {
                Some(latent) => BlockParams::Mla(Rc::new(mla(c, c.attention(), latent, params))),
                None => BlockParams::Attention(attention(c, c.attention(), params)),
            },
        }
    }
}

fn attention(c: &Config, a: &AttentionSizes, params: &mut Params) -> AttentionParams {
    AttentionParams {
        proj: params.matrix(a.heads * a.head_dim / c.tp * c.hidden),
        qkv: NormLinear {
            norm: params.block_norm(c.hidden),
            weight: params.matrix((a.heads + 2 * a.kv_heads) * a.head_dim / c.tp * c.hidden),
        },
        head_norms: a.qk_norm.then(|| (params.block_norm(a.head_dim), params.block_norm(a.head_dim))),
    }
}

fn mla(c: &Config, a: &AttentionSizes, latent: &Mla, params: &mut Params) -> MlaParams {
    let query = a.heads * (latent.qk_dim + latent.rope_dim) / c.tp;
    let norm = params.block_norm(c.hidden);
    // `Attention.__init__` builds a projection that the latent one then replaces.
    let replaced = a.heads * a.head_dim / c.tp * c.hidden;
    let proj = Param::new(Line::TpParams, a.heads * latent.v_dim / c.tp * c.hidden);
    let proj = params.add(Param { origin: Origin::Replacing(replaced), ..proj });
    let up = |rows: u64, rank: u64, is_latent: bool, params: &mut Params| UpProjection {
        norm: (latent.latent_norm && is_latent).then(|| params.block_norm(rank)),
        weight: params.matrix(rows * rank),
    };
    let q_down = latent.q_rank.map(|rank| params.whole_matrix(rank * c.hidden));
    let q_up = up(query, latent.q_rank.unwrap_or(c.hidden), latent.q_rank.is_some(), params);
    let kv_down = params.whole_matrix((latent.kv_rank + latent.rope_dim) * c.hidden);
    let kv_up = up(a.heads * (latent.qk_dim + latent.v_dim) / c.tp, latent.kv_rank, true, params);
    MlaParams { norm, proj, q_down, q_up, kv_down, kv_up, latent: latent.clone(), rope: RefCell::default() }
}

/// Rows of the projection into a feed-forward block of this width.
pub(super) fn rows_in(feed: Feed) -> u64 {
    if feed.is_gated { 2 * feed.ffn } else { feed.ffn }
}

fn moe(c: &Config, layer: u32, params: &mut Params) -> MoeParams {
    let moe = c.moe();
    let norm = params.block_norm(c.hidden);
    let router = Param::new(Line::ReplicatedParams, moe.experts * c.hidden);
    let router = params.add(Param { origin: Origin::Host, ..router });
    let expert = |elements| Param { is_expert: moe.own_buffers, ..Param::new(Line::ExpertParams, elements) };
    let into = rows_in(moe.feed) / c.etp * c.hidden;
    let fc1 = (0..moe.local_experts).map(|_| params.add(expert(into))).collect();
    let out = moe.feed.ffn / c.etp * c.hidden;
    let fc2 = (0..moe.local_experts).map(|_| params.add(expert(out))).collect();
    let shared = moe
        .shared
        .map(|feed| (params.matrix(rows_in(feed) / c.tp * c.hidden), params.matrix(feed.ffn / c.tp * c.hidden)));
    MoeParams { norm, router, fc1, fc2, shared, layer, dispatched: RefCell::default() }
}

fn mlp(c: &Config, params: &mut Params) -> MlpParams {
    let feed = c.mlp();
    let fc1 = NormLinear { norm: params.block_norm(c.hidden), weight: params.matrix(rows_in(feed) / c.tp * c.hidden) };
    MlpParams { fc1, fc2: params.matrix(feed.ffn / c.tp * c.hidden) }
}

fn mamba(c: &Config, params: &mut Params) -> MambaParams {
    let sizes = MambaSizes::of(c);
    let conv_weight = params.matrix(sizes.conv * c.mamba().conv);
    let conv_bias = params.vector(sizes.conv, Origin::Device);
    let dt_bias = params.vector(sizes.heads, Origin::Device);
    let a_log = params.vector(sizes.heads, Origin::Fp32);
    let d = params.vector(sizes.heads, Origin::Fp32);
    let in_proj = NormLinear { norm: params.block_norm(c.hidden), weight: params.matrix(sizes.width * c.hidden) };
    let norm = params.vector(sizes.inner, Origin::Device);
    let out_proj = params.matrix(sizes.inner * c.hidden);
    MambaParams { conv_weight, conv_bias, dt_bias, a_log, d, in_proj, norm, out_proj }
}

/// Sizes of a Mamba mixer on one rank.
#[derive(Clone, Copy)]
pub(super) struct MambaSizes {
    pub heads: u64,
    pub state: u64,
    pub groups: u64,
    /// Width between the projections.
    pub inner: u64,
    /// Channels of the convolution.
    pub conv: u64,
    /// Width of the packed projection: z x B C dt.
    pub width: u64,
}

impl MambaSizes {
    pub fn of(c: &Config) -> MambaSizes {
        let mamba = c.mamba();
        let (heads, groups) = (mamba.heads / c.tp, mamba.groups / c.tp);
        let inner = heads * mamba.head_dim;
        let shared = 2 * groups * mamba.state;
        MambaSizes { heads, state: mamba.state, groups, inner, conv: inner + shared, width: 2 * inner + shared + heads }
    }
}
