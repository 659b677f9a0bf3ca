//! Steps over the shards. What steps elements is in `elements.rs`. Muon is the emitted
//! program's (`crates/launch/assets/fsdp2/optim.py`): a momentum a parameter, and each matrix made
//! whole in turn.

use super::adapters::Adapters;
use super::elements;
use super::engine::Fsdp;
use super::group::{Group, Shard};
use super::options::Fsdp2Options;
use super::plain::{Blocks, Step};
use case::ways::{BLOCK, MomentumFormat};
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tape};
use std::rc::Rc;

/// The optimizers of one rank.
#[derive(Default)]
pub(super) struct Optimizers {
    state: Vec<Rc<Storage>>,
}

impl Optimizers {
    pub fn step(&mut self, engine: &Fsdp, adapters: &Adapters, options: &Fsdp2Options) {
        let is_first = self.state.is_empty();
        let parts: Vec<Shard> = in_order(&engine.groups, options).chain(adapters.shards()).collect();
        let matrices = parts.iter().filter_map(|part| match part.step {
            Step::Matrices { count, rows, columns } => Some((part.elements(), Whole { count, rows, columns })),
            Step::Elements => None,
        });
        let momentum = options.ways.momentum;
        let mut last = None;
        for (elements, whole) in matrices {
            // The one before is in a variable until this one is there.
            let wide = (momentum == MomentumFormat::Int8).then(|| self.followed(&engine.tape, elements, is_first));
            if is_first && momentum == MomentumFormat::Fp32 {
                self.state.push(engine.tape.storage(Line::MatrixOptimizer, elements * FP32, "momentum"));
            }
            last = Some(orthogonalised(&engine.tape, elements, whole, last, wide));
        }
        drop(last);
        let stepped: Vec<Shard> = parts.iter().filter(|part| part.step == Step::Elements).copied().collect();
        let made = elements::step(&engine.tape, &stepped, options, is_first);
        self.state.extend(made);
        engine.groups.iter().for_each(|group| group.zero_grad());
        adapters.zero_grad();
        if options.ways.average && is_first {
            let copy = |part: &Shard| engine.tape.storage(Line::OtherOptimizer, part.elements() * FP32, "average");
            self.state.extend(parts.iter().map(copy));
        }
    }

    /// `Int8.follow`: the momentum in fp32, and on the way to what is kept of it its codes before they are narrow.
    fn followed(&mut self, tape: &Tape, elements: u64, is_first: bool) -> Rc<Storage> {
        let blocks = elements.div_ceil(BLOCK);
        let made = |bytes, name| tape.storage(Line::MatrixOptimizer, bytes, name);
        let wide = made(blocks * BLOCK * FP32, "momentum in fp32");
        let scale = made(blocks * FP32, "scales");
        if is_first {
            self.state.extend([made(blocks * BLOCK, "momentum"), made(blocks * FP32, "momentum's scales")]);
        }
        let least = made(blocks * FP32, "scales above zero");
        drop((made(blocks * BLOCK * FP32, "codes in fp32"), least, scale));
        wide
    }
}

/// Shards as `named_parameters` of the emitted program gives them: what the root holds, the last norm, stands before
/// the head.
fn in_order<'a>(groups: &'a [Group], options: &Fsdp2Options) -> impl Iterator<Item = Shard> + 'a {
    let (root, rest) = groups.split_at(usize::from(options.blocks == Blocks::Emitted));
    let (layers, head) = rest.split_at(rest.len().saturating_sub(1));
    layers.iter().chain(root).chain(head).flat_map(|group| group.shards())
}

/// Matrices that are orthogonalised together.
#[derive(Clone, Copy)]
struct Whole {
    count: u64,
    rows: u64,
    columns: u64,
}

/// What outlives one parameter's step in variables of the loop: its direction, and the whole
/// update that its own rows are a view of.
struct Left {
    _direction: Rc<Storage>,
    _update: Rc<Storage>,
    /// A momentum that is kept in another format.
    _wide: Option<Rc<Storage>>,
}

/// `Muon.step` of one parameter: the direction, made whole in fp32, and Newton–Schulz in bf16.
fn orthogonalised(tape: &Tape, elements: u64, whole: Whole, last: Option<Left>, wide: Option<Rc<Storage>>) -> Left {
    let last = last.map(|left| (left._direction, left._update));
    let made = |elements, width, name| tape.storage(Line::MatrixOptimizer, elements * width, name);
    let size = whole.count * whole.rows * whole.columns;
    let short = whole.rows.min(whole.columns);
    let square = |name| made(whole.count * short * short, BF16, name);
    let scaled = made(elements, FP32, "scaled momentum");
    let direction = made(elements, FP32, "direction");
    drop(scaled);
    // The last parameter's direction is let go, and its update kept until this one's is there.
    let last = last.map(|(_, update)| update);
    // A rank that holds the matrix whole gathers nothing.
    let _part = (size > elements).then(|| made(size, FP32, "whole direction"));
    let narrow = made(size, BF16, "direction in bf16");
    let mut x = made(size, BF16, "normalised");
    drop(narrow);
    for _ in 0..NEWTON_SCHULZ_STEPS {
        let gram = square("gram matrix");
        let _kept = made(size, BF16, "scaled iterate");
        let (first, second) = (square("scaled gram"), square("scaled gram"));
        let product = square("squared gram");
        drop(second);
        let sum = square("polynomial");
        drop((first, product));
        let _turned = made(size, BF16, "turned iterate");
        drop(sum);
        x = made(size, BF16, "iterate");
        drop(gram);
    }
    let update = made(size, BF16, "update");
    drop((x, last));
    Left { _direction: direction, _update: update, _wide: wide }
}

/// What the launch's plan says (`newton_schulz_steps`).
const NEWTON_SCHULZ_STEPS: u32 = 5;
