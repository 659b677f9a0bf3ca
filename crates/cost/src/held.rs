//! What a rank holds and steps, by layer kind and at the edges: elements for gradients, weights
//! and optimizer state, and the products of Muon's orthogonalisation.

use crate::ops::Work;
use crate::roofline::Meter;
use case::options::Format;
use case::ways::{
    ElementStep, MOST_PRECONDITIONED, REFRESH_EVERY, ROOTS_EVERY, SHAMPOO_BLOCK, SHAMPOO_MOST, blocks_of,
};
use layout::ownership::Row;
use layout::{Axis, Engine, Layout};
use recipe::{Optimizer, Place, Role, Surface};
use std::ops::AddAssign;

/// Newton–Schulz iterations of one step (Jordan, Muon; also Megatron-Core's default).
const ITERATIONS: f64 = 5.0;

/// Elements on one rank; the first of each pair is dense, the second expert.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Held {
    /// Those that are gathered: all but adapters.
    pub elements: [f64; 2],
    /// Of these, those that are stepped.
    pub trained: [f64; 2],
    /// Of adapters, which every replica holds whole.
    pub adapters: [f64; 2],
    /// Of these, whole on every tensor-parallel rank, each of which makes a part of their gradients.
    pub adapters_whole: f64,
    /// Their factors, each summed over replicas by itself.
    pub factors: [f64; 2],
    /// Of these, stepped by Muon.
    pub muon: [f64; 2],
    /// Matrices among them, and the seconds of orthogonalising those.
    pub matrices: [f64; 2],
    pub orthogonal: [f64; 2],
    /// Seconds of SOAP's or Shampoo's products, of whole matrices, and operations that the host starts for them one by one.
    pub preconditioned: f64,
    pub looped: f64,
    /// Of all elements, those of matrices that are multiplied in the products' format.
    pub multiplied: f64,
    /// Of the dense ones, whole on every tensor-parallel rank.
    pub whole: f64,
    /// Dense elements that are gathered and reduced once more, because layers share them: below zero where they stand,
    /// since the first use is that of `elements`.
    pub again: f64,
    /// Groups of tensors that are gathered together: layers, and each edge.
    pub units: f64,
    /// Tensors that an optimizer's loops walk; where experts are modules of their own, every expert's matrix is one.
    pub tensors: f64,
}

impl Held {
    /// Elements of a row.
    pub fn of(row: &Row, layout: &Layout, meter: &Meter) -> Held {
        let mut held = Held::default();
        let mesh = usize::from(row.tensor.acting.is_some());
        let shape = row.part_shape(layout);
        let elements = shape.iter().product::<u64>() as f64;
        if matches!(row.tensor.surface, Surface::AdapterDown | Surface::AdapterUp) {
            (held.adapters[mesh], held.factors[mesh]) = (elements, 1.0);
            held.adapters_whole = if mesh == 0 && row.cuts.is_empty() { elements } else { 0.0 };
            return held;
        }
        held.elements[mesh] = elements;
        held.multiplied = if is_multiplied(row) { elements } else { 0.0 };
        if row.tensor.is_frozen {
            return held;
        }
        held.trained[mesh] = elements;
        let matrices = if row.tensor.role == Role::Expert { shape.first().map_or(1.0, |n| *n as f64) } else { 1.0 };
        held.tensors = if meter.is_loop() { matrices } else { 1.0 };
        match meter.preconditions().filter(|_| row.tensor.optimizer == Optimizer::AdamW) {
            Some(ElementStep::Shampoo) => (held.preconditioned, held.looped) = turned_in_blocks(&shape, meter),
            Some(_) => held.preconditioned = preconditioned(&shape, meter),
            None => {}
        }
        if row.tensor.optimizer == Optimizer::Muon {
            held.muon[mesh] = elements;
            held.matrices[mesh] = matrices;
            held.orthogonal[mesh] = match is_dealt_out(layout) {
                true => newton_schulz(&shape, meter, FUSED),
                false => newton_schulz(&whole_matrix(row, layout), meter, PLAIN),
            };
        }
        if mesh == 0 && row.cuts.is_empty() {
            held.whole = elements;
        }
        held
    }

    /// The same, several times.
    pub fn times(mut self, count: f64) -> Held {
        for i in 0..2 {
            self.elements[i] *= count;
            self.trained[i] *= count;
            self.adapters[i] *= count;
            self.factors[i] *= count;
            self.muon[i] *= count;
            self.matrices[i] *= count;
            self.orthogonal[i] *= count;
        }
        self.preconditioned *= count;
        self.looped *= count;
        self.multiplied *= count;
        self.adapters_whole *= count;
        self.whole *= count;
        self.again *= count;
        self.units *= count;
        self.tensors *= count;
        self
    }
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Held) {
        for i in 0..2 {
            self.elements[i] += other.elements[i];
            self.trained[i] += other.trained[i];
            self.adapters[i] += other.adapters[i];
            self.factors[i] += other.factors[i];
            self.muon[i] += other.muon[i];
            self.matrices[i] += other.matrices[i];
            self.orthogonal[i] += other.orthogonal[i];
        }
        self.preconditioned += other.preconditioned;
        self.looped += other.looped;
        self.multiplied += other.multiplied;
        self.adapters_whole += other.adapters_whole;
        self.whole += other.whole;
        self.again += other.again;
        self.units += other.units;
        self.tensors += other.tensors;
    }
}

/// Whether products of the run's format read a weight: matrices of layers, not the router's nor the head's.
fn is_multiplied(row: &Row) -> bool {
    matches!(row.tensor.role, Role::Matrix | Role::Expert)
        && matches!(row.tensor.place, Place::Layer(_) | Place::Mtp(_))
}

/// Whether replicas share out the matrices that Muon orthogonalises. The FSDP2 program that we write has every rank
/// make each matrix whole, over tp too, and do all of them (`launch/assets/fsdp2/optim.py`).
pub fn is_dealt_out(layout: &Layout) -> bool {
    layout.engine != Some(Engine::Fsdp2)
}

/// A rank's experts, and every matrix whole.
fn whole_matrix(row: &Row, layout: &Layout) -> Vec<u64> {
    let part = row.part_shape(layout).into_iter().enumerate();
    let is_cut = |dim: usize| row.cuts.iter().any(|cut| cut.dim == dim && cut.axis != Axis::Ep);
    part.map(|(dim, len)| if is_cut(dim) { row.tensor.dims[dim].len() } else { len }).collect()
}

/// Bytes of elementwise kernels in an iteration, for an element of the square and of the matrix, and of the products'
/// results. Emerging-Optimizers copies what a product adds to, in fp32; plain torch scales the square twice and adds,
/// scales the matrix and adds, in bf16.
struct Around {
    square: f64,
    matrix: f64,
    out: f64,
}
const FUSED: Around = Around { square: 4.0, matrix: 4.0, out: 4.0 };
const PLAIN: Around = Around { square: 14.0, matrix: 10.0, out: 2.0 };

/// Each iteration squares a×b into a×a, squares that, and multiplies back; a is the shorter side. The last two add
/// to what they were given, of which the product takes a copy (Emerging-Optimizers 0.4.0, `muon_utils.py`).
fn newton_schulz(shape: &[u64], meter: &Meter, around: Around) -> f64 {
    let (count, sides) = match shape {
        [groups, rows, columns] => (*groups as f64, [*rows as f64, *columns as f64]),
        [rows, columns] => (1.0, [*rows as f64, *columns as f64]),
        _ => return 0.0,
    };
    let (a, b) = (sides[0].min(sides[1]), sides[0].max(sides[1]));
    let product =
        |m, n, k| meter.seconds(&Work::Gemm { format: Format::Bf16, m, n, k, groups: 1.0, out_bytes: around.out });
    let copies = meter.seconds(&Work::bytes(around.square * a * a + around.matrix * a * b, 2.0));
    count * ITERATIONS * (product(a, a, b) + product(a, a, a) + product(a, b, a) + copies)
}

/// SOAP of a matrix (`pytorch_optimizer` 4.1, `optimizer/soap.py`): of each side that has a preconditioner, its product
/// with the gradient, and the gradient, the momentum and the direction turned by its basis; every tenth step the
/// preconditioner turned, and a QR of that, 8/3 of a side cubed in operations. Products are in tf32, at the share of its
/// peak that bf16 reaches. A QR is taken to reach it too, which no library does: nobody has measured how far it falls short.
fn preconditioned(shape: &[u64], meter: &Meter) -> f64 {
    let &[rows, columns] = shape else { return 0.0 };
    let product = |m: u64, n: u64, k: u64| {
        let [m, n, k] = [m, n, k].map(|side| side as f64);
        meter.seconds(&Work::Gemm { format: Format::Bf16, m, n, k, groups: 1.0, out_bytes: 4.0 })
    };
    let of = |side: u64, other: u64| match side <= MOST_PRECONDITIONED {
        true => {
            let refresh = product(side, side, side) * (1.0 + 4.0 / 3.0) / REFRESH_EVERY as f64;
            product(side, side, other) + 3.0 * product(side, other, side) + refresh
        }
        false => 0.0,
    };
    meter.slower_in_tf32() * (of(rows, columns) + of(columns, rows))
}

/// Coupled Newton iterations of one root: 15 to 18 on statistics of drawn matrices of 128 and 512 rows, flat or falling by the
/// rank's square (`compute_power_schur_newton` on a CPU). The smallest eigenvalue is at least a millionth of the largest
/// (`matrix_eps`) and grows by (1 + 1/4)^4 in each.
const ROOT_ITERATIONS: f64 = 18.0;

/// Products of one: the root's, two of a fourth power, and the iterate's. Operations that the host starts besides, and those of
/// the power iteration before them: a hundred times a product, a copy, a norm and a division.
const ROOT_PRODUCTS: f64 = 4.0;
const ROOT_STARTS: f64 = ROOT_ITERATIONS * (ROOT_PRODUCTS + 5.0) + 400.0;

/// Operations that the host starts to turn a block: two products, each with its views.
const TURN_STARTS: f64 = 4.0;

/// Bytes of an element that is stacked for the statistics and merged again from blocks: read and written, each twice.
const BLOCK_COPIES: f64 = 32.0;

/// Shampoo of a matrix (`pytorch_optimizer` 4.1, `utils/preconditioner.py`): seconds, and what the host starts. Of every block the
/// product of each side for its statistics, all blocks together, and the gradient turned by both roots, block by
/// block; every hundredth step the roots. Products are in tf32 as SOAP's are; those of roots, in fp32, count as if they were.
fn turned_in_blocks(shape: &[u64], meter: &Meter) -> (f64, f64) {
    let &[rows, columns] = shape else { return (0.0, 0.0) };
    if rows.max(columns) > SHAMPOO_MOST {
        return (0.0, 0.0);
    }
    let sides = |side: u64| {
        let (whole, rest) = blocks_of(side);
        [(SHAMPOO_BLOCK as f64, whole as f64), (rest as f64, f64::from(u8::from(rest > 0)))]
    };
    let (mut seconds, mut starts) = (0.0, 0.0);
    for (r, along_rows) in sides(rows) {
        for (c, along_columns) in sides(columns) {
            let count = along_rows * along_columns;
            if count == 0.0 {
                continue;
            }
            let product =
                |m, n, k, groups| meter.seconds(&Work::Gemm { format: Format::Bf16, m, n, k, groups, out_bytes: 4.0 });
            let statistics = product(r, r, c, count) + product(c, c, r, count);
            let turned = count * (product(c, r, r, 1.0) + product(r, c, c, 1.0));
            let products = ROOT_ITERATIONS * ROOT_PRODUCTS * (product(r, r, r, 1.0) + product(c, c, c, 1.0));
            seconds += statistics + turned + count * products / ROOTS_EVERY as f64;
            starts += count * (TURN_STARTS + 2.0 * ROOT_STARTS / ROOTS_EVERY as f64);
        }
    }
    let copies = meter.seconds(&Work::bytes(BLOCK_COPIES * (rows * columns) as f64, 2.0));
    (meter.slower_in_tf32() * seconds + copies, starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use case::Options;
    use hardware::Device;
    use layout::Engine;

    /// Products and copies of five iterations, timed on an H200 with `tools/measure_kernels.py`, in milliseconds.
    #[test]
    fn orthogonalising_takes_what_was_measured() {
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let options = Options::of(Some(Engine::Megatron), &recipe);
        let meter = Meter::new(&Device::find("H200").unwrap(), &options).unwrap();
        for (shape, measured) in [([4096, 4096], 2.784), ([1024, 3584], 0.208), ([448, 3584], 0.110)] {
            let milliseconds = 1e3 * newton_schulz(&shape, &meter, FUSED);
            assert!((milliseconds / measured - 1.0).abs() < 0.25, "{shape:?}: {milliseconds:.3}, measured {measured}");
        }
    }
}
