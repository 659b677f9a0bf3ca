//! Blocks of the program that `shardwright launch --engine fsdp2` writes
//! (`crates/launch/assets/fsdp2/model.py`), operation by operation as it runs them on a GPU in
//! bf16. Projections are packed, experts are always a unit of their own, scans run chunk by chunk
//! in fp32 and are computed again in backward.
//!
//! Not replayed: compiled blocks, and under tensor parallelism recurrent blocks and Muon.

mod attention;
mod borders;
mod conv;
mod depths;
mod engram;
mod experts;
mod feed;
mod loss;
mod mamba;
mod mhc;
mod recurrent;
mod scan;
mod steps;

pub(super) use attention::turned_whole;
pub(super) use borders::enter;
pub(super) use depths::Depth;
pub(super) use engram::Branch;
pub(super) use feed::activated;
pub(super) use loss::{cross_entropy, cut_cross_entropy, distance, embed, fused_cross_entropy, share_of};
pub(super) use mhc::{Weights as StreamWeights, spread};
pub(super) use steps::by;

use super::params::{Adapter, BlockParams, Linear, Mixing, Step, Unit};
use super::rank::Rank;
use super::shared::Turns;
use super::{Config, Param};
use case::ways::BaseFormat;
use recipe::Mixer;
use replay::line::{Line, Origin};
use replay::tape::Tensor;
use std::rc::Rc;

/// The parameters of one block behind its norm.
pub(crate) enum Block {
    Attention(attention::Attention),
    Feed(feed::Feed),
    Experts(experts::Experts),
    Mamba(Box<mamba::Mamba>),
    Recurrent(Box<recurrent::Recurrent>),
}

impl Block {
    /// What gives its output, of blocks whose projections may be quantised.
    pub(super) fn last_projection(&self) -> Option<&Linear> {
        match self {
            Block::Attention(block) => Some(&block.out),
            Block::Feed(block) => Some(&block.fc2),
            Block::Experts(_) | Block::Mamba(_) | Block::Recurrent(_) => None,
        }
    }

    /// `x` is the normed input.
    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        match self {
            Block::Attention(block) => block.forward(c, x),
            Block::Feed(block) => block.forward(c, x),
            Block::Experts(block) => block.forward(c, x),
            Block::Mamba(block) => block.forward(c, x),
            Block::Recurrent(block) => block.forward(c, x),
        }
    }
}

/// Builds the blocks of one layer into a unit of its own, and its banks of experts into others.
pub(super) fn layer(
    c: &Config,
    index: u32,
    mixers: &[Mixer],
    units: &mut Vec<Unit>,
    turns: &mut Turns,
) -> Vec<BlockParams> {
    let own = units.len();
    units.push(Unit::at(Origin::Layer { index, mixer: mixers[0] }));
    let build = |&mixer: &Mixer| {
        let origin = Origin::Layer { index, mixer };
        if mixer == Mixer::Shared {
            let mixing = Mixing::Shared(Box::new(turns.take(c, &mut units[own])));
            return BlockParams { origin, norm: None, post_norm: None, is_beside: false, mixing, mhc: None };
        }
        let norm = units[own].norm(c, c.hidden);
        let block = match mixer {
            Mixer::Attention => Block::Attention(attention::Attention::new(c, &mut units[own])),
            Mixer::Moe => Block::Experts(experts::Experts::new(c, own, origin, units)),
            Mixer::Mamba => Block::Mamba(Box::new(mamba::Mamba::new(c, &mut units[own]))),
            Mixer::Recurrent => Block::Recurrent(Box::new(recurrent::Recurrent::new(c, &mut units[own]))),
            _ => Block::Feed(feed::Feed::new(c, c.mlp(), "mlp", &mut units[own])),
        };
        let (norm, mixing, mhc) = (Some(norm), Mixing::Emitted(block), StreamWeights::around(c, &mut units[own]));
        BlockParams { origin, norm, post_norm: None, is_beside: false, mixing, mhc }
    };
    mixers.iter().map(build).collect()
}

/// A projection without a bias, at a path behind its layer, with its adapter where the recipe has one.
fn projection(c: &Config, unit: &mut Unit, path: &str, (rows, columns): (u64, u64)) -> Linear {
    let step = Step::of(c.matrix_optimizer, (1, rows, columns));
    let weight = match c.ways.base {
        BaseFormat::Main => unit.add_stepped(Line::TpParams, (rows, columns), step),
        format => unit.add_quantised((rows, columns), format),
    };
    // The side that the weight is not cut on is whole.
    let leaves_region = ["out", "out_proj", "fc2"].iter().any(|name| path.ends_with(name));
    let line = |is_whole| if is_whole { Line::ReplicatedParams } else { Line::TpParams };
    let lines = [line(!leaves_region), line(leaves_region)];
    Linear { weight, bias: None, adapter: adapter(c, unit, path, (1, rows, columns), lines) }
}

/// The factors beside a weight, or beside so many matrices of a bank, where the recipe has them.
fn adapter(
    c: &Config,
    unit: &mut Unit,
    path: &str,
    (count, rows, columns): (u64, u64, u64),
    lines: [Line; 2],
) -> Option<Adapter> {
    let &rank = c.adapted.get(path)?;
    let mut factor = |rows, columns, line| {
        let (leaf, is_expert) = (Tensor::empty().requiring_grad(), line == Line::ExpertParams);
        let (step, format) = (Step::Elements, BaseFormat::Main);
        let param = Rc::new(Param { rows: count * rows, columns, line, is_expert, leaf, step, format });
        unit.adapters.push(param.clone());
        param
    };
    Some(Adapter { rank, down: factor(rank, columns, lines[0]), up: factor(rows, rank, lines[1]) })
}

/// A vector of a mixer.
fn vector(unit: &mut Unit, elements: u64) -> Rc<Param> {
    unit.add(Line::TpParams, elements, 1)
}
