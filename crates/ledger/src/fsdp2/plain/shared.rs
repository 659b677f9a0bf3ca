//! Blocks that several layers share, as Hugging Face's Zamba2 runs them (`transformers/models/zamba2/modeling_zamba2.py`
//! Zamba2AttentionDecoderLayer) and the emitted program too (`launch/assets/fsdp2/model.py` SharedBlock): each is a unit of its own,
//! gathered at every use, and its gradient is reduced at every use. The token embeddings live until the last of them has run.
//! No measured row shows it.

use super::attention::{Heads, flash, rotate};
use super::config::{Blocks, Config};
use super::model::wrapped_all;
use super::ops::{activate, add, grad_of, linear, norm};
use super::params::{Linear, NormParams, Step, Unit};
use super::rank::Rank;
use super::{Param, emitted};
use recipe::kinds::Activation;
use recipe::kinds::shared::Shared;
use recipe::{Mixer, Optimizer};
use replay::line::{Line, Origin};
use replay::tape::{BF16, Tensor};
use std::rc::Rc;

/// What several layers run.
pub(crate) struct Block {
    unit: usize,
    norm: NormParams,
    qkv: [Linear; 3],
    out: Linear,
    mlp_norm: NormParams,
    fc1: Linear,
    fc2: Linear,
}

/// What a layer that runs one has of its own: factors by the projection they change, and the last projection.
pub(crate) struct Use {
    block: Rc<Block>,
    factors: Vec<(&'static str, [Linear; 2])>,
    join: Linear,
}

/// The blocks of a model, which layers take in turn.
pub(crate) struct Turns {
    blocks: Vec<Rc<Block>>,
    next: usize,
}

fn weight(c: &Config, unit: &mut Unit, rows: u64, columns: u64, has_bias: bool) -> Linear {
    let optimizer = if c.blocks == Blocks::Emitted { c.matrix_optimizer } else { Optimizer::AdamW };
    let step = Step::of(optimizer, (1, rows, columns));
    let weight = unit.add_stepped(Line::ReplicatedParams, (rows, columns), step);
    let bias: Option<Rc<Param>> = has_bias.then(|| unit.add(Line::ReplicatedParams, rows, 1));
    Linear { weight, bias, adapter: None }
}

impl Turns {
    /// The blocks and their units; none where the model has no shared ones.
    pub(super) fn new(c: &Config, units: &mut Vec<Unit>) -> Turns {
        let blocks = c.shared.iter().flat_map(|m| (0..m.blocks).map(move |_| m));
        let mut build = |m: &Shared| {
            units.push(Unit::at(Origin::Embedding));
            let at = units.len() - 1;
            let (unit, hidden) = (&mut units[at], c.hidden);
            let norm = unit.norm(c, 2 * hidden);
            let qkv = [m.inner(), m.kv(), m.kv()].map(|rows| weight(c, unit, rows, 2 * hidden, false));
            let out = weight(c, unit, hidden, m.inner(), false);
            let mlp_norm = unit.norm(c, hidden);
            let fc1 = weight(c, unit, m.fc1(), hidden, m.bias);
            let fc2 = weight(c, unit, hidden, m.ffn, m.bias);
            Rc::new(Block { unit: at, norm, qkv, out, mlp_norm, fc1, fc2 })
        };
        Turns { blocks: blocks.map(&mut build).collect(), next: 0 }
    }

    /// The next layer's use.
    pub(super) fn take(&mut self, c: &Config, unit: &mut Unit) -> Use {
        let (m, block) = (c.shared(), self.blocks[self.next % self.blocks.len()].clone());
        self.next += 1;
        let rank = m.rank.unwrap_or_default();
        let factor = |(name, rows, columns), unit: &mut Unit| {
            (name, [weight(c, unit, rank, columns, false), weight(c, unit, rows, rank, false)])
        };
        let factors = m.adapted(c.hidden).into_iter().map(|each| factor(each, unit)).collect();
        Use { block, factors, join: weight(c, unit, c.hidden, c.hidden, false) }
    }
}

impl Use {
    /// What the block behind reads beside `x`; `first` are the token embeddings.
    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor, first: &Tensor) -> Tensor {
        let given = wrapped_all(c, Some(self.block.unit), &[x, first], |inputs| self.inside(c, &inputs[0], &inputs[1]));
        linear(c, &given, &self.join)
    }

    fn inside(&self, c: &Rc<Rank>, x: &Tensor, first: &Tensor) -> Tensor {
        let (m, hidden) = (c.config.shared(), c.config.hidden);
        let joined = norm(c, &beside(c, x, first), 2 * hidden, &self.block.norm);
        let project =
            |at: usize| self.changed(c, ["q", "k", "v"][at], linear(c, &joined, &self.block.qkv[at]), &joined);
        let [mut q, mut k, v] = [0, 1, 2].map(project);
        drop(joined);
        if c.config.rotates {
            (q, k) = match c.config.blocks {
                Blocks::Common => (rotate(c, &q), rotate(c, &k)),
                Blocks::Emitted => emitted::turned_whole(c, q, k, m.head_dim),
            };
        }
        let heads = Heads { query: m.heads, kv: m.kv_heads, qk_dim: m.head_dim, v_dim: m.head_dim };
        let attended = flash(c, [&q, &k, &v], heads);
        drop((q, k, v));
        let attended = linear(c, &attended, &self.block.out);
        let normed = norm(c, &attended, hidden, &self.block.mlp_norm);
        drop(attended);
        let wide = self.changed(c, "fc1", linear(c, &normed, &self.block.fc1), &normed);
        drop(normed);
        let narrow = activated(c, wide, m.activation);
        linear(c, &narrow, &self.block.fc2)
    }

    /// A projection's output and what the layer's own factors add to it.
    fn changed(&self, c: &Rc<Rank>, name: &str, out: Tensor, x: &Tensor) -> Tensor {
        let Some((_, [down, up])) = self.factors.iter().find(|(known, _)| *known == name) else { return out };
        let more = linear(c, &linear(c, x, down), up);
        add(c, &out, &more)
    }
}

fn activated(c: &Rc<Rank>, x: Tensor, function: Activation) -> Tensor {
    match function.is_gated() {
        true => emitted::activated(c, x, function, 1.0),
        false => activate(c, x, || None, function),
    }
}

/// `cat` of two tensors of one size; their gradients are views of its own.
fn beside(c: &Rank, x: &Tensor, y: &Tensor) -> Tensor {
    let (each, total) = (x.elements(), x.elements() + y.elements());
    let out = c.act(total, "stream beside embeddings");
    c.tape.record(vec![x.edge(), y.edge()], &[&out], Vec::new(), move |t, grads, _| {
        let whole = grads[0].clone().unwrap_or_else(|| grad_of(t, total, BF16, "gradient of both"));
        vec![Some(whole.part(each)), Some(whole.part(each))]
    });
    out
}

/// Whether a layer runs a shared block.
pub(super) fn is_used(mixers: &[Mixer]) -> bool {
    mixers.contains(&Mixer::Shared)
}
