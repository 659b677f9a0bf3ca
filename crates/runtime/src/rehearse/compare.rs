//! Whole tensors of the run on one rank, and how far a rank's part in the split run is from them.

use crate::mat::Mat;
use crate::params::{Shelf, global_indices};
use crate::real::Real;
use std::collections::HashMap;

/// Whole tensors by path, each with the magnitude that differences are relative to.
pub(super) struct Wholes {
    tensors: HashMap<String, (Vec<f64>, f64)>,
}

/// A tensor whose values are all smaller than this times the largest of any tensor is compared on that
/// scale, since what is left of it is rounding of the others.
const FLOOR: f64 = 1e-3;

impl Wholes {
    /// The tensors of a rank that holds everything.
    pub fn new<R: Real>(shelf: &Shelf, values: &[Mat<R>]) -> Wholes {
        let most = |values: &[f64]| values.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        let reals = |m: &Mat<R>| m.data.iter().map(|v| v.f64()).collect::<Vec<_>>();
        let all: Vec<(String, Vec<f64>)> =
            shelf.params.iter().zip(values).map(|(p, m)| (p.row.tensor.path.clone(), reals(m))).collect();
        let floor = FLOOR * all.iter().map(|(_, v)| most(v)).fold(f64::MIN_POSITIVE, f64::max);
        let tensors = all.into_iter().map(|(path, values)| {
            let scale = most(&values).max(floor);
            (path, (values, scale))
        });
        Wholes { tensors: tensors.collect() }
    }

    /// For each path, the largest relative difference of this rank's part; zero where it has none.
    /// Rows that only a split pads the vocabulary with have no counterpart.
    pub fn differences<R: Real>(&self, paths: &[String], shelf: &Shelf, parts: &[Mat<R>]) -> Vec<f64> {
        let mut out = vec![0.0; paths.len()];
        for (at, path) in paths.iter().enumerate() {
            let Some(id) = shelf.find(path) else { continue };
            let Some((whole, scale)) = self.tensors.get(path) else {
                out[at] = f64::INFINITY;
                continue;
            };
            let param = &shelf.params[id.0];
            for (index, value) in global_indices(&param.row.tensor, &param.part).into_iter().zip(&parts[id.0].data) {
                let Some(expected) = whole.get(index as usize) else { continue };
                let difference = (value.f64() - expected).abs() / scale;
                // Whatever is not a number is as wrong as can be.
                out[at] = f64::max(out[at], if difference.is_nan() { f64::INFINITY } else { difference });
            }
        }
        out
    }
}

/// The largest relative difference of two curves.
pub(super) fn curves(one: &[f64], many: &[f64]) -> f64 {
    let relative = |(a, b): (&f64, &f64)| {
        let difference = (a - b).abs() / a.abs().max(f64::MIN_POSITIVE);
        if difference.is_nan() { f64::INFINITY } else { difference }
    };
    one.iter().zip(many).map(relative).fold(0.0, f64::max)
}
