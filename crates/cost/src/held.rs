//! What a rank holds and steps, by layer kind and at the edges: elements for gradients, weights
//! and optimizer state, and the products of Muon's orthogonalisation.

use layout::Layout;
use layout::ownership::Row;
use recipe::{Optimizer, Role, Surface};
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
    /// Operations of orthogonalising the matrices among them.
    pub products: [f64; 2],
    /// Of the dense ones, whole on every tensor-parallel rank.
    pub whole: f64,
    /// Groups of tensors that are gathered together: layers, and each edge.
    pub units: f64,
    /// Tensors that an optimizer's loops walk; every expert's matrix is one.
    pub tensors: f64,
}

impl Held {
    /// Elements of a row.
    pub fn of(row: &Row, layout: &Layout) -> Held {
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
        if row.tensor.is_frozen {
            return held;
        }
        held.trained[mesh] = elements;
        held.tensors = if row.tensor.role == Role::Expert { shape.first().map_or(1.0, |n| *n as f64) } else { 1.0 };
        if row.tensor.optimizer == Optimizer::Muon {
            held.muon[mesh] = elements;
            held.products[mesh] = newton_schulz(&shape);
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
            self.products[i] *= count;
        }
        self.adapters_whole *= count;
        self.whole *= count;
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
            self.products[i] += other.products[i];
        }
        self.adapters_whole += other.adapters_whole;
        self.whole += other.whole;
        self.units += other.units;
        self.tensors += other.tensors;
    }
}

/// Each iteration squares a×b into a×a, squares that, and multiplies back; a is the shorter side.
fn newton_schulz(shape: &[u64]) -> f64 {
    let (count, sides) = match shape {
        [groups, rows, columns] => (*groups as f64, [*rows as f64, *columns as f64]),
        [rows, columns] => (1.0, [*rows as f64, *columns as f64]),
        _ => return 0.0,
    };
    let (a, b) = (sides[0].min(sides[1]), sides[0].max(sides[1]));
    count * ITERATIONS * (4.0 * a * a * b + 2.0 * a * a * a)
}
