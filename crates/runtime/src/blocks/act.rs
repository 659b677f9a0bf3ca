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
        Activation::SwiGluOai => {
            let s = (R::of(OAI_SLOPE) * x).sigmoid();
            (x * s, s * (R::ONE + R::of(OAI_SLOPE) * x * (R::ONE - s)))
        }
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

/// What gpt-oss multiplies its gate with under the sigmoid, and where it clamps both projections.
const OAI_SLOPE: f64 = 1.702;
const OAI_LIMIT: f64 = 7.0;

/// A gated unit of a gate and the other projection, and its derivatives by both.
#[inline(always)]
fn gated<R: Real>(activation: Activation, gate: R, up: R) -> (R, R, R) {
    if activation != Activation::SwiGluOai {
        let (value, slope) = curve(activation, gate);
        return (value * up, slope * up, value);
    }
    let limit = R::of(OAI_LIMIT);
    let (clamped, passes_gate) = if gate > limit { (limit, R::ZERO) } else { (gate, R::ONE) };
    let (linear, passes_up) = match () {
        () if up > limit => (limit, R::ZERO),
        () if up < R::ZERO - limit => (R::ZERO - limit, R::ZERO),
        () => (up, R::ONE),
    };
    let ((value, slope), shifted) = (curve(activation, clamped), linear + R::ONE);
    (value * shifted, slope * shifted * passes_gate, value * passes_up)
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
        wide(|| row.for_each(|(o, (g, u))| *o = gated(activation, *g, *u).0));
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
                let (_, by_gate, by_up) = gated(activation, *gate, *up);
                *dgate = by_gate * *d;
                *dup = by_up * *d;
            }
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// gpt-oss' unit at numbers worked out by hand, inside its borders and beyond each.
    #[test]
    fn the_unit_of_gpt_oss_clamps_both_halves_and_adds_one() {
        let of = |gate: f64, up: f64| gated(Activation::SwiGluOai, gate, up);
        let score = |x: f64| 1.0 / (1.0 + (-1.702 * x).exp());
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(of(2.0, 3.0).0, 2.0 * score(2.0) * 4.0);
        near(of(9.0, 20.0).0, 7.0 * score(7.0) * 8.0);
        near(of(-9.0, -20.0).0, -9.0 * score(-9.0) * -6.0);
        // What is clamped has no gradient: the gate above, the other half at both ends.
        assert_eq!((of(9.0, 1.0).1, of(1.0, 8.0).2, of(1.0, -8.0).2), (0.0, 0.0, 0.0));
        let (step, at) = (1e-6, (-1.3, 0.4));
        near(((of(at.0 + step, at.1).0 - of(at.0 - step, at.1).0) / (2.0 * step) - of(at.0, at.1).1) * 1e-4, 0.0);
    }
}
