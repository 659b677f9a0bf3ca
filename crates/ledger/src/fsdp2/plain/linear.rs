//! Linear mixers as Hugging Face's classes write them in torch: LFM2's short convolution (`modeling_lfm2.py`
//! Lfm2ShortConv), MiniMax's lightning attention block by block (`modeling_minimax.py` MiniMaxLightningAttention),
//! RecurrentGemma's recurrence token by token in fp32 (`modeling_recurrent_gemma.py` RecurrentGemmaRglru) and xLSTM's
//! memory chunk by chunk (`modeling_xlstm.py` mlstm_chunkwise); Kimi's delta attention over fla's kernels
//! (`kda.rs`), RWKV-7's time mixing over the same project's (`rwkv7.rs`). Over tensor ranks each runs its own channels or heads;
//! the projection out sums. No measured row shows them.

use super::config::Config;
use super::ops::{cast, enter, grad, grad_of, leave, linear, makes, norm, pointwise, product, sizes_of, weight_grads};
use super::params::{Linear, NormParams, Param, Unit};
use super::rank::Rank;
use recipe::kinds::kda::Kda;
use recipe::kinds::linear::Linear as Kind;
use recipe::kinds::mlstm::Mlstm;
use recipe::kinds::rg_lru::RgLru;
use recipe::kinds::rwkv7::Rwkv7;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tensor};
use std::rc::Rc;

/// The parameters of one block behind its norm.
pub(crate) struct Params {
    kind: Kind,
    pub(super) projections: Vec<Linear>,
    /// Convolutions, decays and gates that are no projections.
    pub(super) others: Vec<Rc<Param>>,
    out_norm: Option<NormParams>,
    out: Linear,
}

/// A rank's own heads; a short convolution's channels are as many as the model is wide.
fn on_a_rank(kind: &Kind, tp: u64) -> Kind {
    match kind {
        Kind::ShortConv(_) | Kind::Lightning(_) => kind.clone(),
        Kind::RgLru(m) => Kind::RgLru(RgLru { width: m.width / tp, heads: m.heads / tp, ..m.clone() }),
        Kind::Kda(m) => Kind::Kda(Kda { heads: m.heads / tp, ..m.clone() }),
        Kind::Rwkv7(m) => Kind::Rwkv7(Rwkv7 { heads: m.heads / tp, ..m.clone() }),
        Kind::Mlstm(m) => {
            Kind::Mlstm(Mlstm { heads: m.heads / tp, qk_dim: m.qk_dim / tp, v_dim: m.v_dim / tp, ..m.clone() })
        }
    }
}

impl Params {
    /// Of the layer at an index.
    pub(super) fn new(c: &Config, index: u32, unit: &mut Unit) -> Params {
        let (kind, hidden) = (on_a_rank(c.linear(), c.tp), c.hidden);
        let channels = hidden / c.tp;
        let vector = |unit: &mut Unit, rows, columns| unit.add(Line::TpParams, rows, columns);
        let (projections, others, width, out_bias) = match &kind {
            Kind::ShortConv(m) => {
                let mut others = vec![vector(unit, channels, m.conv)];
                others.extend(m.bias.then(|| vector(unit, channels, 1)));
                (vec![unit.column(3 * channels, hidden, m.bias)], others, channels, m.bias)
            }
            Kind::Lightning(m) => {
                let inner = m.heads * m.head_dim;
                let projections = vec![unit.column(3 * inner, hidden, false), unit.column(inner, hidden, false)];
                (projections, Vec::new(), inner, false)
            }
            Kind::RgLru(m) => {
                let projections = vec![unit.column(m.width, hidden, true), unit.column(m.width, hidden, true)];
                let each = m.width / m.heads;
                let shapes = [(m.width, m.conv), (m.width, 1), (m.width, 1), (m.width, each), (m.width, 1)];
                let mut others: Vec<_> = shapes.map(|(rows, columns)| vector(unit, rows, columns)).into();
                others.extend([vector(unit, m.width, each), vector(unit, m.width, 1)]);
                (projections, others, m.width, true)
            }
            Kind::Kda(m) => {
                let (projections, others) = super::kda::params(m, hidden, unit);
                (projections, others, m.inner(), false)
            }
            Kind::Rwkv7(m) => {
                let (projections, others) = super::rwkv7::params(m, hidden, index == 0, unit);
                (projections, others, m.values(), false)
            }
            Kind::Mlstm(m) => {
                let packed = unit.column(2 * m.qk_dim + 2 * m.v_dim, hidden, false);
                (vec![packed, unit.column(2 * m.heads, hidden, true)], Vec::new(), m.v_dim, false)
            }
        };
        let normed = match &kind {
            Kind::Lightning(_) | Kind::Mlstm(_) => Some(width),
            Kind::Kda(m) => Some(m.head_dim),
            Kind::ShortConv(_) | Kind::RgLru(_) | Kind::Rwkv7(_) => None,
        };
        let scale = |unit: &mut Unit, width| unit.add(Line::TpParams, width, 1);
        let out_norm = match &kind {
            // A group norm of torch's kind, whatever the model's norms are.
            Kind::Rwkv7(_) => Some(NormParams { weight: Some(scale(unit, width)), bias: Some(scale(unit, width)) }),
            _ => normed.map(|width| unit.norm(c, width)),
        };
        let out = unit.row(hidden, width, out_bias);
        Params { kind, projections, others, out_norm, out }
    }

    /// `x` is the normed input.
    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let x = &enter(c, x);
        let inner = match &self.kind {
            Kind::ShortConv(_) => self.short_conv(c, x),
            Kind::Lightning(m) => self.lightning(c, x, m.heads, m.head_dim, m.chunk),
            Kind::RgLru(m) => self.rg_lru(c, x, m.width),
            Kind::Mlstm(m) => self.mlstm(c, x, [m.heads, m.qk_dim, m.v_dim, m.chunk]),
            Kind::Kda(m) => super::kda::forward(self, c, x, m),
            Kind::Rwkv7(m) => super::rwkv7::forward(self, c, x, m),
        };
        leave(c, linear(c, &inner, &self.out))
    }

    /// Keeps the packed projection, the product that is convolved and what the convolution made.
    fn short_conv(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let width = c.config.tokens * c.config.hidden / c.config.tp;
        let packed = linear(c, x, &self.projections[0]);
        let part = |name| {
            let part = c.act(width, name);
            makes(c, &packed, &part, Vec::new(), packed.elements(), BF16);
            part
        };
        let (gate, value) = (part("convolution gate"), part("convolution input"));
        let gated = product(c, &gate, &value);
        drop((gate, value));
        let convolved = self.convolve(c, &gated, &self.others);
        let out_gate = part("output gate");
        product(c, &out_gate, &convolved)
    }

    pub(super) fn convolve(&self, c: &Rank, x: &Tensor, weights: &[Rc<Param>]) -> Tensor {
        let elements = x.elements();
        let out = c.act(elements, "convolution output");
        let edges = [x.edge()].into_iter().chain(weights.iter().map(|p| p.edge())).collect();
        let sizes = sizes_of(&weights.iter().collect::<Vec<_>>());
        c.tape.record(edges, &[&out], vec![x.clone()], move |t, _, _saved| {
            [Some(grad(t, elements, "convolution input gradient"))].into_iter().chain(weight_grads(t, &sizes)).collect()
        });
        out
    }

    /// Behind SiLU: masked products inside blocks, and a state a block, are kept for backward.
    fn lightning(&self, c: &Rc<Rank>, x: &Tensor, heads: u64, head_dim: u64, chunk: u64) -> Tensor {
        let tokens = c.config.tokens;
        let inner = tokens * heads * head_dim;
        let packed = pointwise(c, linear(c, x, &self.projections[0]), "queries, keys and values");
        let blocks = c.config.micro_batch * c.config.sequence.div_ceil(chunk);
        let masked = c.act(blocks * chunk * chunk * heads, "masked products");
        let states = c.act_of(blocks * heads * head_dim * head_dim, FP32, "states at borders");
        let out = c.act(inner, "scan output");
        let total = packed.elements();
        let kept = vec![packed.clone(), masked, states];
        c.tape.record(vec![packed.edge()], &[&out], kept, move |t, _, _saved| {
            let _masked = grad(t, blocks * chunk * chunk * heads, "product gradient");
            let _state = grad_of(t, heads * head_dim * head_dim, FP32, "state gradient");
            vec![Some(grad(t, total, "qkv gradient"))]
        });
        drop(packed);
        let normed = self.normed(c, &out, heads * head_dim);
        drop(out);
        let gate = self.sigmoid(c, linear(c, x, &self.projections[1]));
        product(c, &normed, &gate)
    }

    pub(super) fn normed(&self, c: &Rc<Rank>, x: &Tensor, width: u64) -> Tensor {
        match &self.out_norm {
            Some(own) => norm(c, x, width, own),
            None => x.clone(),
        }
    }

    pub(super) fn sigmoid(&self, c: &Rank, x: Tensor) -> Tensor {
        let out = c.act(x.elements(), "gate");
        makes(c, &x, &out, vec![out.alias()], x.elements(), BF16);
        out
    }

    /// Two gates, the decay and the scaled input in fp32, and the state of every token.
    fn rg_lru(&self, c: &Rc<Rank>, x: &Tensor, width: u64) -> Tensor {
        let elements = c.config.tokens * width;
        let gate = pointwise(c, linear(c, x, &self.projections[0]), "output gate");
        let inner = linear(c, x, &self.projections[1]);
        let convolved = self.convolve(c, &inner, &self.others[..2]);
        drop(inner);
        let gates = [c.act(elements, "input gate"), c.act(elements, "recurrent gate")];
        let decay = c.act_of(elements, FP32, "decay");
        let scaled = c.act_of(elements, FP32, "scaled input");
        let states = c.act_of(elements, FP32, "state of every token");
        let weights: Vec<&Rc<Param>> = self.others[2..].iter().collect();
        let edges = [convolved.edge()].into_iter().chain(weights.iter().map(|p| p.edge())).collect();
        let mut kept = vec![convolved.clone(), decay, scaled, states.alias()];
        kept.extend(gates);
        let sizes = sizes_of(&weights);
        c.tape.record(edges, &[&states], kept, move |t, _, _saved| {
            let _wide = [(); 3].map(|()| grad_of(t, elements, FP32, "recurrence gradient"));
            let _gates = [(); 2].map(|()| grad(t, elements, "gate gradient"));
            [Some(grad(t, elements, "channel gradient"))].into_iter().chain(weight_grads(t, &sizes)).collect()
        });
        drop(convolved);
        let narrow = cast(c, &states, BF16, "recurrence output");
        drop(states);
        product(c, &narrow, &gate)
    }

    /// Queries, keys, values and gates, and memory, normaliser and stabiliser at chunk borders.
    fn mlstm(&self, c: &Rc<Rank>, x: &Tensor, [heads, qk_dim, v_dim, chunk]: [u64; 4]) -> Tensor {
        let tokens = c.config.tokens;
        let packed = linear(c, x, &self.projections[0]);
        let gates = cast(c, &linear(c, x, &self.projections[1]), FP32, "gates");
        let chunks = c.config.micro_batch * c.config.sequence.div_ceil(chunk);
        let border = chunks * (qk_dim / heads * v_dim + qk_dim + heads);
        let states = c.act_of(border, FP32, "memory at borders");
        let sums = c.act_of(2 * tokens * heads, FP32, "normalisers");
        let out = c.act(tokens * v_dim, "memory output");
        let (total, of_gates) = (packed.elements(), gates.elements());
        let kept = vec![packed.clone(), gates.clone(), states, sums, out.alias()];
        c.tape.record(vec![packed.edge(), gates.edge()], &[&out], kept, move |t, _, _saved| {
            let _states = grad_of(t, border, FP32, "memory gradient");
            vec![Some(grad(t, total, "packed gradient")), Some(grad_of(t, of_gates, FP32, "gate gradient"))]
        });
        let normed = self.normed(c, &out, v_dim / heads);
        drop(out);
        let open = c.act(tokens * v_dim, "output gate");
        makes(c, &packed, &open, vec![open.alias()], total, BF16);
        drop(packed);
        product(c, &normed, &open)
    }
}
