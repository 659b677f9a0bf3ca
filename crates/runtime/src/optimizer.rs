//! AdamW and Muon, chosen by a tensor's role, each on the run of a flat buffer that a rank holds.

use crate::mat::Mat;
use crate::params::{Id, Shelf, global_indices};
use crate::product::{Write, multiply};
use crate::rank::Rank;
use crate::real::Real;
use crate::shards::Flat;
use crate::team;
use crate::wide::{squares, wide};
use comm::{Call, Result};
use layout::Axis;
use recipe::{Optimizer, Role};
use std::ops::Range;

/// Hyperparameters of both optimizers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// AdamW's learning rate.
    pub rate: f64,
    /// Muon's learning rate.
    pub muon_rate: f64,
    /// Decays of AdamW's moments.
    pub betas: (f64, f64),
    /// Added to AdamW's denominator.
    pub epsilon: f64,
    /// Decoupled decay of matrices and tables.
    pub weight_decay: f64,
    /// Decay of Muon's momentum.
    pub momentum: f64,
    /// Gradients are scaled down to this global norm; `None` never clips.
    pub clip: Option<f64>,
}

impl Default for Settings {
    /// Usual values: AdamW's of Llama-style pretraining, Muon's of its reference implementation
    /// (KellerJordan/Muon).
    fn default() -> Settings {
        Settings {
            rate: 3e-4,
            muon_rate: 0.02,
            betas: (0.9, 0.95),
            epsilon: 1e-8,
            weight_decay: 0.1,
            momentum: 0.95,
            clip: Some(1.0),
        }
    }
}

/// Steps of the Newton–Schulz iteration, and its coefficients (KellerJordan/Muon, `muon.py`).
const ITERATIONS: usize = 5;
const QUINTIC: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// Optimizer state of the run this rank holds of one flat buffer: one moment under Muon, two under
/// AdamW.
pub(crate) struct State<R> {
    pub first: Vec<R>,
    pub second: Vec<R>,
}

/// One update of a held run.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a, R> {
    /// Counts from one; AdamW's bias correction needs it.
    pub number: u64,
    /// Factor by which clipping scales gradients.
    pub scale: R,
    pub grads: &'a [R],
}

/// A stretch of the held run that belongs to one parameter.
pub(crate) struct Piece {
    pub id: Id,
    /// Where in the held run.
    pub at: Range<usize>,
}

pub(crate) fn pieces(flat: &Flat) -> Vec<Piece> {
    let held = &flat.held;
    let piece = |(id, span): (&Id, &Range<usize>)| {
        let (start, end) = (span.start.max(held.start), span.end.min(held.end));
        (start < end).then(|| Piece { id: *id, at: start - held.start..end - held.start })
    };
    flat.ids.iter().zip(&flat.spans).filter_map(piece).collect()
}

pub(crate) fn steps_by_muon(shelf: &Shelf, id: Id) -> bool {
    shelf.params[id.0].row.tensor.optimizer == Optimizer::Muon
}

impl<R: Real> State<R> {
    /// Zero moments. The second exists only where AdamW updates.
    pub fn new(flat: &Flat, shelf: &Shelf) -> State<R> {
        let adam = pieces(flat).iter().filter(|p| !steps_by_muon(shelf, p.id)).map(|p| p.at.len()).sum();
        State { first: vec![R::ZERO; flat.held.len()], second: vec![R::ZERO; adam] }
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> u64 {
        (self.first.capacity() + self.second.capacity()) as u64 * R::BYTES
    }

    /// Turns gradients of the held run, multiplied by `scale`, into what is gathered afterwards: new
    /// weights under AdamW, the direction to orthogonalise under Muon.
    pub fn step(&mut self, s: &Settings, flat: &Flat, shelf: &Shelf, at: Step<R>, weights: &mut [R]) {
        let Step { number, scale, grads } = at;
        let mut second = 0;
        for piece in pieces(flat) {
            let at = piece.at.clone();
            let (grads, first) = (&grads[at.clone()], &mut self.first[at.clone()]);
            let weights = &mut weights[at.clone()];
            if steps_by_muon(shelf, piece.id) {
                let (keep, new) = (R::of(s.momentum), R::of(1.0 - s.momentum) * scale);
                wide(|| {
                    for ((m, g), w) in first.iter_mut().zip(grads).zip(weights) {
                        *m = keep * *m + new * *g;
                        *w = keep * *m + new * *g;
                    }
                });
                continue;
            }
            let range = second..second + at.len();
            second = range.end;
            let decay = decay(s, shelf, piece.id) * s.rate;
            adam(s, Step { number, scale, grads }, R::of(1.0 - decay), first, &mut self.second[range], weights);
        }
    }
}

/// Weight decay of a parameter; none for norms, biases and scalars.
fn decay(s: &Settings, shelf: &Shelf, id: Id) -> f64 {
    match shelf.params[id.0].row.tensor.role {
        Role::Norm | Role::Bias | Role::Scalar => 0.0,
        _ => s.weight_decay,
    }
}

fn adam<R: Real>(s: &Settings, at: Step<R>, keep: R, first: &mut [R], second: &mut [R], weights: &mut [R]) {
    let Step { number, scale, grads } = at;
    let (b1, b2) = s.betas;
    let correct = |b: f64| R::of(1.0 / (1.0 - b.powi(number as i32)));
    let (c1, c2) = (correct(b1), correct(b2));
    let (b1, b2, rate, epsilon) = (R::of(b1), R::of(b2), R::of(s.rate), R::of(s.epsilon));
    team::four(grads, first, second, weights, |grads, first, second, weights| {
        wide(|| {
            for (((g, m), v), w) in grads.iter().zip(first).zip(second).zip(weights) {
                let g = *g * scale;
                *m = b1 * *m + (R::ONE - b1) * g;
                *v = b2 * *v + (R::ONE - b2) * g * g;
                *w = *w * keep - rate * (*m * c1) / ((*v * c2).sqrt() + epsilon);
            }
        });
    });
}

/// Updates a Muon parameter from its local direction: gathers the matrix over the axis that cuts it,
/// orthogonalises it, and applies this rank's part.
pub(crate) fn muon<R: Real>(
    s: &Settings,
    shelf: &Shelf,
    rank: &Rank,
    id: Id,
    direction: &[R],
    weight: &mut [R],
) -> Result<()> {
    let param = &shelf.params[id.0];
    let tensor = &param.row.tensor;
    let (axis, group) = if param.is_expert() { (Axis::Etp, &rank.etp) } else { (Axis::Tp, &rank.tp) };
    let is_cut = param.row.cuts.iter().any(|c| c.axis == axis);
    let shape = tensor.shape();
    let (rows, cols) = (shape[shape.len() - 2] as usize, shape[shape.len() - 1] as usize);
    // Experts are local by number; within one, indices are those of the whole matrix.
    let first = param.part.dims[0][0].start * (tensor.elements() / shape[0]);
    let first = if param.is_expert() { first } else { 0 };
    let matrices = if param.is_expert() { param.part.shape()[0] as usize } else { 1 };
    let mut whole = vec![R::ZERO; matrices * rows * cols];
    if is_cut {
        let call = Call::new(axis.name(), "momentum made whole");
        let all = rank.comm.all_gather(group, call, direction.to_vec())?;
        for (place, part) in all.chunks_exact(direction.len()).enumerate() {
            let held = part_at(shelf, rank, id, axis, place);
            held.iter().zip(part).for_each(|(at, v)| whole[(at - first) as usize] = *v);
        }
    } else {
        whole.copy_from_slice(direction);
    }
    whole.chunks_exact_mut(rows * cols).for_each(|m| orthogonalise(m, rows, cols));
    let scale = R::of(s.muon_rate * (rows as f64 / cols as f64).max(1.0).sqrt());
    let keep = R::of(1.0 - s.muon_rate * decay(s, shelf, id));
    let step = |w: &mut R, to: R| *w = *w * keep - scale * to;
    if is_cut {
        let indices = global_indices(tensor, &param.part);
        weight.iter_mut().zip(indices).for_each(|(w, at)| step(w, whole[(at - first) as usize]));
    } else {
        weight.iter_mut().zip(whole).for_each(|(w, to)| step(w, to));
    }
    Ok(())
}

/// Indices of the part that the member at `place` of an axis holds.
fn part_at(shelf: &Shelf, rank: &Rank, id: Id, axis: Axis, place: usize) -> Vec<u64> {
    let row = &shelf.params[id.0].row;
    let group = if axis == Axis::Etp { &rank.etp } else { &rank.tp };
    let at = rank.coordinates(group.ranks()[place]);
    global_indices(&row.tensor, &row.part(rank.layout, &at))
}

/// An approximation of the nearest orthogonal matrix: five quintic Newton–Schulz steps on the scaled
/// matrix.
fn orthogonalise<R: Real>(m: &mut [R], rows: usize, cols: usize) {
    let length = squares(m).f64().sqrt() + 1e-7;
    m.iter_mut().for_each(|x| *x *= R::of(1.0 / length));
    let mut x = Mat::of(cols, m.to_vec());
    let is_tall = rows > cols;
    let small = rows.min(cols);
    let [a, b, c] = QUINTIC.map(R::of);
    let (mut gram, mut next) = (Mat::zeros(small, small), Mat::zeros(rows, cols));
    for _ in 0..ITERATIONS {
        let (left, right) = if is_tall { (x.view().t(), x.view()) } else { (x.view(), x.view().t()) };
        multiply(&mut gram.data, small, Write::Replace, R::ONE, left, right);
        // (a + b G + c G²) x, with a on the diagonal, so that x is read once.
        let mut poly = Mat { data: gram.data.iter().map(|g| *g * b).collect(), ..gram };
        poly.data.iter_mut().step_by(small + 1).for_each(|d| *d += a);
        multiply(&mut poly.data, small, Write::Add, c, gram.view(), gram.view());
        let (left, right) = if is_tall { (x.view(), poly.view()) } else { (poly.view(), x.view()) };
        multiply(&mut next.data, cols, Write::Replace, R::ONE, left, right);
        std::mem::swap(&mut x, &mut next);
    }
    m.copy_from_slice(&x.data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singular_values_come_near_one() {
        let mut m: Vec<f64> = (0..24).map(|i| ((i * 7919 % 101) as f64 - 50.0) / 50.0).collect();
        orthogonalise(&mut m, 4, 6);
        for i in 0..4 {
            let length: f64 = m[i * 6..(i + 1) * 6].iter().map(|x| x * x).sum();
            assert!((0.4..1.6).contains(&length), "{length}");
        }
    }
}
