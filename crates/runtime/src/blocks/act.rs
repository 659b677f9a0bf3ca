//! Functions between projections, with their derivatives.

use crate::mat::Mat;
use crate::real::Real;
use crate::wide::{map, map2, wide};
use recipe::kinds::Activation;

/// The function and its derivative at `x`.
#[inline(always)]
fn curve<R: Real>(activation: Activation, x: R) -> (R, R) {
    match activation {
        Activation::SwiGlu | Activation::Silu => silu(x),
        Activation::Relu2 => {
            let positive = if x > R::ZERO { x } else { R::ZERO };
            (positive * positive, positive + positive)
        }
        Activation::Relu if x > R::ZERO => (x, R::ONE),
        Activation::Relu => (R::ZERO, R::ZERO),
        Activation::GeGlu | Activation::Gelu => {
            // The tanh form, as engines compute it.
            let (a, c) = (R::of(0.044_715), R::of(0.797_884_560_802_865_4));
            let half = R::of(0.5);
            let t = (c * (x + a * x * x * x)).tanh();
            let inner = c * (R::ONE + R::of(3.0) * a * x * x);
            (half * x * (R::ONE + t), half * (R::ONE + t) + half * x * (R::ONE - t * t) * inner)
        }
    }
}

/// `x · sigmoid(x)` and its derivative.
#[inline(always)]
pub(crate) fn silu<R: Real>(x: R) -> (R, R) {
    let s = x.sigmoid();
    (x * s, s * (R::ONE + x * (R::ONE - s)))
}

/// The activation of packed projections: gate and up side by side where it is gated.
pub(crate) fn forward<R: Real>(activation: Activation, packed: &Mat<R>) -> Mat<R> {
    if !activation.is_gated() {
        let data = map(&packed.data, |x| curve(activation, x).0);
        return Mat { rows: packed.rows, cols: packed.cols, data };
    }
    let width = packed.cols / 2;
    let mut out = Mat::zeros(packed.rows, width);
    for i in 0..packed.rows {
        let (gate, up) = packed.row(i).split_at(width);
        let row = out.row_mut(i).iter_mut().zip(gate.iter().zip(up));
        wide(|| row.for_each(|(o, (g, u))| *o = curve(activation, *g).0 * *u));
    }
    out
}

/// Transpose of [`forward`].
pub(crate) fn backward<R: Real>(activation: Activation, packed: &Mat<R>, dy: &Mat<R>) -> Mat<R> {
    if !activation.is_gated() {
        let data = map2(&packed.data, &dy.data, |x, d| curve(activation, x).1 * d);
        return Mat { rows: packed.rows, cols: packed.cols, data };
    }
    let width = packed.cols / 2;
    let mut out = Mat::zeros(packed.rows, packed.cols);
    for i in 0..packed.rows {
        let (gate, up) = packed.row(i).split_at(width);
        let (dgate, dup) = out.row_mut(i).split_at_mut(width);
        let inputs = gate.iter().zip(up).zip(dy.row(i));
        let outputs = dgate.iter_mut().zip(dup);
        wide(|| {
            for (((gate, up), d), (dgate, dup)) in inputs.zip(outputs) {
                let (value, slope) = curve(activation, *gate);
                *dgate = slope * *up * *d;
                *dup = value * *d;
            }
        });
    }
    out
}
