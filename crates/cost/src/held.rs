//! What a rank holds and steps, by layer kind and at the edges: elements for gradients, weights
//! and optimizer state, and the products of Muon's orthogonalisation.

use crate::ops::Work;
use crate::roofline::Meter;
use case::options::Format;
use case::ways::{MOST_PRECONDITIONED, REFRESH_EVERY};
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
    /// Seconds of SOAP's products, of whole matrices.
    pub preconditioned: f64,
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
        if row.tensor.optimizer == Optimizer::AdamW && meter.preconditions() {
            held.preconditioned = preconditioned(&shape, meter);
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
