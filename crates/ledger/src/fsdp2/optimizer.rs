//! Steps over the shards. AdamW is fused (`torch/optim/adamw.py`): moments and a step count a
//! parameter, made at the first step; the step itself needs nothing more. Muon is the emitted
//! program's (`crates/launch/assets/fsdp2/optim.py`): a momentum a parameter, and each matrix made
//! whole in turn.

use super::adapters::Adapters;
use super::engine::Fsdp;
use super::plain::Step;
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tape};
use std::rc::Rc;

/// The optimizers of one rank.
#[derive(Default)]
pub(super) struct Optimizers {
    state: Vec<Rc<Storage>>,
}

impl Optimizers {
    pub fn step(&mut self, engine: &Fsdp, adapters: &Adapters) {
        let is_first = self.state.is_empty();
        let whole = adapters.sizes().map(|elements| (elements, Step::Elements));
        let parts: Vec<(u64, Step)> = engine.groups.iter().flat_map(|group| group.shards()).chain(whole).collect();
        let matrices = parts.iter().filter_map(|&(elements, step)| match step {
            Step::Matrices { count, rows, columns } => Some((elements, Whole { count, rows, columns })),
            Step::Elements => None,
        });
        let mut last = None;
        for (elements, whole) in matrices {
            if is_first {
                self.state.push(engine.tape.storage(Line::MatrixOptimizer, elements * FP32, "momentum"));
            }
            last = Some(orthogonalised(&engine.tape, elements, whole, last));
        }
        drop(last);
        if is_first {
            let make = |elements: u64, name| engine.tape.storage(Line::OtherOptimizer, elements * FP32, name);
            for &(elements, _) in parts.iter().filter(|(_, step)| *step == Step::Elements) {
                self.state.extend([make(1, "step count"), make(elements, "moment"), make(elements, "moment")]);
            }
        }
        engine.groups.iter().for_each(|group| group.zero_grad());
        adapters.zero_grad();
    }
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
}

/// `Muon.step` of one parameter: the direction, made whole in fp32, and Newton–Schulz in bf16.
fn orthogonalised(tape: &Tape, elements: u64, whole: Whole, last: Option<Left>) -> Left {
    let made = |elements, width, name| tape.storage(Line::MatrixOptimizer, elements * width, name);
    let size = whole.count * whole.rows * whole.columns;
    let short = whole.rows.min(whole.columns);
    let square = |name| made(whole.count * short * short, BF16, name);
    let scaled = made(elements, FP32, "scaled momentum");
    let direction = made(elements, FP32, "direction");
    drop(scaled);
    // The last parameter's direction is let go, and its update kept until this one's is there.
    let last = last.map(|left| left._update);
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
    Left { _direction: direction, _update: update }
}

/// What the launch's plan says (`newton_schulz_steps`).
const NEWTON_SCHULZ_STEPS: u32 = 5;
