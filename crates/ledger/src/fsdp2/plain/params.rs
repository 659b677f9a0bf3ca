//! Parameters of one rank in the order of `named_parameters`, and the units an engine wraps.

use super::config::{Blocks, Config, Feed, NormOver, Scan};
use super::shared::Turns;
use crate::delta_scan::Widths;
use crate::grads::weight_grad;
use crate::mamba_scan::MambaSizes;
use case::ways::BaseFormat;
use recipe::kinds::NormPlace;
use recipe::kinds::mamba1::Mamba1;
use recipe::kinds::mla::Mla;
use recipe::{Mixer, Optimizer};
use replay::line::{Line, Origin};
use replay::tape::{Edge, Tape, Tensor};
use std::rc::Rc;

/// One parameter of this rank, after tensor and expert parallelism.
pub(crate) struct Param {
    /// Size of the first dimension, which engines of the native lane shard.
    pub rows: u64,
    /// Elements of a row.
    pub columns: u64,
    pub line: Line,
    /// Whether its replicas lie on the expert mesh.
    pub is_expert: bool,
    /// The leaf autograd gives its gradient to.
    pub leaf: Tensor,
    pub step: Step,
    /// How it is kept: none but frozen projections are quantised, whole and outside of every unit.
    pub format: BaseFormat,
}

/// How an optimizer steps a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Each element by itself.
    Elements,
    /// Whole matrices of so many rows and columns, orthogonalised.
    Matrices { count: u64, rows: u64, columns: u64 },
}

impl Step {
    /// The step of some matrices.
    pub fn of(optimizer: Optimizer, (count, rows, columns): (u64, u64, u64)) -> Step {
        match optimizer {
            Optimizer::Muon => Step::Matrices { count, rows, columns },
            _ => Step::Elements,
        }
    }
}

impl Param {
    /// Elements before an engine shards it.
    pub fn elements(&self) -> u64 {
        self.rows * self.columns
    }

    /// Where its gradient goes.
    pub fn edge(&self) -> Option<Edge> {
        self.leaf.edge()
    }

    /// Its gradient, unless it is frozen.
    pub fn gradient(&self, t: &Tape) -> Option<Tensor> {
        self.leaf.asks_for_grad().then(|| weight_grad(t, self.elements()))
    }
}

/// Parameters that are wrapped together, in order.
#[derive(Default)]
pub(crate) struct Unit {
    pub params: Vec<Rc<Param>>,
    /// Where it stands, when it is not the root.
    pub origin: Option<Origin>,
    /// Factors of adapters beside its weights: added once the unit is wrapped, so that no engine knows them.
    pub adapters: Vec<Rc<Param>>,
    /// Projections that are kept quantised.
    pub quantised: Vec<Rc<Param>>,
}

impl Unit {
    pub(super) fn at(origin: Origin) -> Unit {
        Unit { origin: Some(origin), ..Unit::default() }
    }

    pub(super) fn add(&mut self, line: Line, rows: u64, columns: u64) -> Rc<Param> {
        self.add_stepped(line, (rows, columns), Step::Elements)
    }

    pub(super) fn add_stepped(&mut self, line: Line, (rows, columns): (u64, u64), step: Step) -> Rc<Param> {
        let leaf = Tensor::empty().requiring_grad();
        let (is_expert, format) = (line == Line::ExpertParams, BaseFormat::Main);
        let param = Rc::new(Param { rows, columns, line, is_expert, leaf, step, format });
        self.params.push(param.clone());
        param
    }

    /// A frozen projection in another format, which no engine knows.
    pub(super) fn add_quantised(&mut self, (rows, columns): (u64, u64), format: BaseFormat) -> Rc<Param> {
        let leaf = Tensor::empty().requiring_grad();
        let (line, step, is_expert) = (Line::TpParams, Step::Elements, false);
        let param = Rc::new(Param { rows, columns, line, is_expert, leaf, step, format });
        self.quantised.push(param.clone());
        param
    }

    pub(super) fn linear(&mut self, line: Line, (rows, columns): (u64, u64), has_bias: bool) -> Linear {
        let weight = self.add(line, rows, columns);
        Linear { weight, bias: has_bias.then(|| self.add(line, rows, 1)), adapter: None }
    }

    /// A projection cut by rows over tensor-parallel ranks.
    pub(super) fn column(&mut self, rows: u64, columns: u64, has_bias: bool) -> Linear {
        self.linear(Line::TpParams, (rows, columns), has_bias)
    }

    /// A projection cut by columns; its bias is whole.
    pub(super) fn row(&mut self, rows: u64, columns: u64, has_bias: bool) -> Linear {
        let weight = self.add(Line::TpParams, rows, columns);
        Linear { weight, bias: has_bias.then(|| self.add(Line::ReplicatedParams, rows, 1)), adapter: None }
    }

    pub(super) fn norm(&mut self, c: &Config, width: u64) -> NormParams {
        let weight = c.norm.has_scale().then(|| self.add(Line::ReplicatedParams, width, 1));
        let bias = c.norm.has_shift().then(|| self.add(Line::ReplicatedParams, width, 1));
        NormParams { weight, bias }
    }

    /// A table over the vocabulary.
    pub(super) fn table(&mut self, c: &Config) -> Rc<Param> {
        self.add(Line::TpParams, c.vocab, c.hidden)
    }
}

/// A projection.
pub(super) struct Linear {
    pub weight: Rc<Param>,
    pub bias: Option<Rc<Param>>,
    pub adapter: Option<Adapter>,
}

/// Two factors beside a frozen weight or a bank of them, into the rank and out of it.
pub(super) struct Adapter {
    pub rank: u64,
    pub down: Rc<Param>,
    pub up: Rc<Param>,
}

/// A norm's scale and its shift, where it has them.
pub(super) struct NormParams {
    pub weight: Option<Rc<Param>>,
    pub bias: Option<Rc<Param>>,
}

pub(super) struct AttentionParams {
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub out: Linear,
    pub qk_norm: Option<(NormParams, NormParams)>,
    /// The projection that makes the output's gate.
    pub gate: Option<Linear>,
    /// One learned score a head that takes part in every softmax.
    pub sinks: Option<Rc<Param>>,
}

/// A projection into a latent and the latent's norm.
pub(super) struct Latent {
    pub down: Linear,
    pub norm: Option<NormParams>,
}

pub(super) struct MlaParams {
    pub q_latent: Option<Latent>,
    pub q: Linear,
    pub kv_latent: Latent,
    pub kv: Linear,
    pub out: Linear,
    /// The projection onto one gate a head.
    pub gate: Option<Linear>,
    pub sizes: Mla,
}

/// Gate, when there is one, up and down.
pub(super) struct MlpParams {
    pub feed: Feed,
    /// Shares of the token before, where inputs are mixed with it.
    pub shares: Option<Rc<Param>>,
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
}

pub(super) struct MoeParams {
    pub router: Linear,
    pub gate: Option<Rc<Param>>,
    pub up: Rc<Param>,
    pub down: Rc<Param>,
    pub biases: Option<Biases>,
    pub shared: Option<MlpParams>,
    /// The projection onto one number a token that weighs the shared expert.
    pub shared_gate: Option<Linear>,
    /// The unit of the bank, when it is wrapped by itself.
    pub unit: Option<usize>,
}

/// Biases of a bank of experts, one row an expert.
pub(super) struct Biases {
    pub gate: Option<Rc<Param>>,
    pub up: Rc<Param>,
    pub down: Rc<Param>,
}

pub(super) struct MambaParams {
    pub in_proj: Linear,
    /// None where there is no convolution.
    pub conv_weight: Option<Rc<Param>>,
    pub conv_bias: Option<Rc<Param>>,
    pub dt_bias: Rc<Param>,
    pub a_log: Rc<Param>,
    pub d: Rc<Param>,
    pub norm: Option<Rc<Param>>,
    pub out_proj: Linear,
}

pub(super) struct Mamba1Params {
    pub in_proj: Linear,
    pub conv_weight: Rc<Param>,
    pub conv_bias: Option<Rc<Param>>,
    pub x_proj: Linear,
    /// Norms of step size, B and C.
    pub norms: Option<[NormParams; 3]>,
    pub dt_proj: Linear,
    pub dt_bias: Rc<Param>,
    pub a_log: Rc<Param>,
    pub d: Rc<Param>,
    pub out_proj: Linear,
}

pub(super) struct GatedDeltaParams {
    pub widths: Widths,
    pub in_proj: Linear,
    pub conv: Rc<Param>,
    pub dt_bias: Rc<Param>,
    pub a_log: Rc<Param>,
    pub out_norm: NormParams,
    pub out_proj: Linear,
}

pub(super) enum Mixing {
    Attention(AttentionParams),
    Mla(MlaParams),
    Mlp(MlpParams),
    Moe(MoeParams),
    Mamba(MambaParams),
    Mamba1(Box<Mamba1Params>),
    GatedDelta(Box<GatedDeltaParams>),
    Linear(Box<super::linear::Params>),
    Shared(Box<super::shared::Use>),
    Emitted(super::emitted::Block),
}

/// A block: a mixer, and the norms before and behind it.
pub(super) struct BlockParams {
    pub origin: Origin,
    pub norm: Option<NormParams>,
    pub post_norm: Option<NormParams>,
    /// Whether it reads what the block before it read, and is added beside it.
    pub is_beside: bool,
    pub mixing: Mixing,
    /// What mixes residual streams around it.
    pub mhc: Option<super::emitted::StreamWeights>,
}

/// Builds the blocks of one layer into a unit of its own; a bank of experts whose replicas lie
/// elsewhere becomes another unit.
pub(super) fn layer(c: &Config, at: usize, units: &mut Vec<Unit>, turns: &mut Turns) -> Vec<BlockParams> {
    let (index, mixers) = (c.layers[at].0, &c.layers[at].1);
    if c.blocks == Blocks::Emitted {
        return super::emitted::layer(c, index, mixers, units, turns);
    }
    let own = units.len();
    units.push(Unit::at(Origin::Layer { index, mixer: mixers[0] }));
    let build = |(&mixer, &is_beside): (&Mixer, &bool)| {
        let origin = Origin::Layer { index, mixer };
        let has_norm = !is_beside && mixer != Mixer::Shared && c.norm_places[at] != NormPlace::After;
        let norm = has_norm.then(|| units[own].norm(c, c.hidden));
        let mixing = match mixer {
            Mixer::Attention if c.attention().mla.is_some() => mla(c, &mut units[own]),
            Mixer::Attention => attention(c, &mut units[own]),
            Mixer::Moe => moe(c, own, origin, units),
            Mixer::Mamba => mamba(c, &mut units[own]),
            Mixer::GatedDelta => gated_delta(c, &mut units[own]),
            Mixer::Linear => Mixing::Linear(Box::new(super::linear::Params::new(c, index, &mut units[own]))),
            Mixer::Shared => Mixing::Shared(Box::new(turns.take(c, &mut units[own]))),
            _ => Mixing::Mlp(feed(c, c.mlp(), &mut units[own])),
        };
        let post_norm = (c.norm_places[at] != NormPlace::Before).then(|| units[own].norm(c, c.hidden));
        let mhc = super::emitted::StreamWeights::around(c, &mut units[own]);
        BlockParams { origin, norm, post_norm, is_beside, mixing, mhc }
    };
    mixers.iter().zip(&c.beside[at]).map(build).collect()
}

fn attention(c: &Config, unit: &mut Unit) -> Mixing {
    let a = c.attention();
    let (query, kv) = (a.heads / c.tp * a.head_dim, (a.kv_heads / c.tp).max(1) * a.head_dim);
    let q = unit.column(query, c.hidden, a.qkv_bias);
    let k = unit.column(kv, c.hidden, a.qkv_bias);
    let v = unit.column(kv, c.hidden, a.qkv_bias);
    let out = unit.row(c.hidden, query, a.out_bias);
    let qk_norm = a.qk_norm.map(|over| match over {
        NormOver::Head => (unit.norm(c, a.head_dim), unit.norm(c, a.head_dim)),
        NormOver::All => (unit.norm(c, query), unit.norm(c, kv)),
    });
    let gate = a.has_gate.then(|| unit.column(query, c.hidden, a.qkv_bias));
    let sinks = a.has_sinks.then(|| unit.add(Line::TpParams, a.heads / c.tp, 1));
    Mixing::Attention(AttentionParams { q, k, v, out, qk_norm, gate, sinks })
}

fn mla(c: &Config, unit: &mut Unit) -> Mixing {
    let a = c.attention();
    let Some(sizes) = a.mla.clone() else { unreachable!("latent attention has latent sizes") };
    let heads = a.heads / c.tp;
    let latent = |width, rank, unit: &mut Unit| Latent {
        down: unit.linear(Line::ReplicatedParams, (width, c.hidden), sizes.bias),
        norm: sizes.latent_norm.then(|| unit.norm(c, rank)),
    };
    let q_latent = sizes.q_rank.map(|rank| latent(rank, rank, unit));
    let q = unit.column(heads * (sizes.qk_dim + sizes.rope_dim), sizes.q_rank.unwrap_or(c.hidden), false);
    let kv_latent = latent(sizes.kv_rank + sizes.rope_dim, sizes.kv_rank, unit);
    let kv = unit.column(heads * (sizes.qk_dim + sizes.v_dim), sizes.kv_rank, false);
    let out = unit.row(c.hidden, heads * sizes.v_dim, sizes.bias);
    let gate = sizes.head_gate.then(|| unit.column(heads, c.hidden, false));
    Mixing::Mla(MlaParams { q_latent, q, kv_latent, kv, out, gate, sizes })
}

fn feed(c: &Config, feed: Feed, unit: &mut Unit) -> MlpParams {
    let width = feed.ffn / c.tp;
    let shares = feed.shift.then(|| unit.add(Line::ReplicatedParams, c.hidden, 1));
    let gate = feed.is_gated().then(|| unit.column(width, c.hidden, feed.bias));
    let up = unit.column(width, c.hidden, feed.bias);
    MlpParams { feed, shares, gate, up, down: unit.row(c.hidden, width, feed.bias) }
}

fn moe(c: &Config, own: usize, origin: Origin, units: &mut Vec<Unit>) -> Mixing {
    let moe = c.moe();
    let router = units[own].linear(Line::ReplicatedParams, (moe.experts, c.hidden), moe.has_router_bias);
    let shared = moe.shared.map(|shared| feed(c, shared, &mut units[own]));
    let is_apart = c.dense_shards != c.expert_shards;
    let bank = if is_apart { units.len() } else { own };
    if is_apart {
        units.push(Unit::at(origin));
    }
    let matrix = c.hidden * moe.feed.ffn / c.etp;
    let mut add = || units[bank].add(Line::ExpertParams, moe.local_experts, matrix);
    let gate = moe.feed.is_gated().then(&mut add);
    let up = add();
    let down = add();
    let biases = moe.feed.bias.then(|| {
        let mut add = |width| units[bank].add(Line::ExpertParams, moe.local_experts, width);
        let ffn = moe.feed.ffn / c.etp;
        Biases { gate: moe.feed.is_gated().then(|| add(ffn)), up: add(ffn), down: add(c.hidden) }
    });
    let gates = moe.gates_shared;
    let shared_gate = gates.then(|| units[own].linear(Line::ReplicatedParams, (1, c.hidden), false));
    Mixing::Moe(MoeParams { router, gate, up, down, biases, shared, shared_gate, unit: is_apart.then_some(bank) })
}

fn mamba(c: &Config, unit: &mut Unit) -> Mixing {
    if let Scan::One(one) = c.scan() {
        return mamba1(c, one, unit);
    }
    let m = c.mamba();
    let sizes = MambaSizes::of(c.mamba(), c.tp);
    let mut vector = |elements| unit.add(Line::TpParams, elements, 1);
    let (dt_bias, a_log, d) = (vector(sizes.heads), vector(sizes.heads), vector(sizes.heads));
    let in_proj = unit.column(sizes.width, c.hidden, m.in_bias);
    let conv_weight = (m.conv > 0).then(|| unit.add(Line::TpParams, sizes.conv, m.conv));
    let conv_bias = m.conv_bias.then(|| unit.add(Line::TpParams, sizes.conv, 1));
    let norm = m.gated_norm.then(|| unit.add(Line::TpParams, sizes.inner, 1));
    let out_proj = unit.row(c.hidden, sizes.inner, m.out_bias);
    Mixing::Mamba(MambaParams { in_proj, conv_weight, conv_bias, dt_bias, a_log, d, norm, out_proj })
}

fn mamba1(c: &Config, m: &Mamba1, unit: &mut Unit) -> Mixing {
    let a_log = unit.add(Line::TpParams, m.inner, m.state);
    let d = unit.add(Line::TpParams, m.inner, 1);
    let conv_weight = unit.add(Line::TpParams, m.inner, m.conv);
    let conv_bias = m.conv_bias.then(|| unit.add(Line::TpParams, m.inner, 1));
    let in_proj = unit.column(2 * m.inner, c.hidden, m.proj_bias);
    let x_proj = unit.row(m.selected(), m.inner / m.heads, false);
    let dt_proj = unit.column(m.inner, m.dt_rank, false);
    let dt_bias = unit.add(Line::TpParams, m.inner, 1);
    let out_proj = unit.row(c.hidden, m.inner, m.proj_bias);
    let norms = m.inner_norms.then(|| [m.dt_rank, m.state, m.state].map(|width| unit.norm(c, width)));
    Mixing::Mamba1(Box::new(Mamba1Params {
        in_proj,
        conv_weight,
        conv_bias,
        x_proj,
        norms,
        dt_proj,
        dt_bias,
        a_log,
        d,
        out_proj,
    }))
}

fn gated_delta(c: &Config, unit: &mut Unit) -> Mixing {
    let m = c.gated_delta();
    let widths = Widths::of(m, c.tp);
    let conv = unit.add(Line::TpParams, widths.channels(), m.conv);
    let dt_bias = unit.add(Line::TpParams, widths.value_heads, 1);
    let a_log = unit.add(Line::TpParams, widths.value_heads, 1);
    let out_norm = unit.norm(c, m.value_dim);
    let out_proj = unit.row(c.hidden, widths.values, false);
    let in_proj = unit.column(widths.packed(), c.hidden, false);
    Mixing::GatedDelta(Box::new(GatedDeltaParams { widths, in_proj, conv, dt_bias, a_log, out_norm, out_proj }))
}
