//! Norms over a row or over groups of it: RMSNorm and LayerNorm.

use super::Cx;
use crate::mat::{Mat, dot};
use crate::params::{Id, Shelf};
use crate::real::Real;
use crate::team;
use crate::wide::{total, wide};

/// A norm of groups of `width` columns, with a scale for each column of a group, or of the whole row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    weight: Id,
    bias: Option<Id>,
    width: usize,
    /// Added to the mean square under the root.
    eps: f64,
}

impl Norm {
    /// The norm at `path`; a bias beside it makes it a LayerNorm.
    pub fn new(shelf: &Shelf, path: &str, width: usize) -> Norm {
        let (weight, bias) = (shelf.id(&format!("{path}.weight")), shelf.find(&format!("{path}.bias")));
        Norm { weight, bias, width, eps: shelf.norm_eps }
    }

    /// The same, where each tensor-parallel rank applies it to its own heads, so that its gradient is a
    /// partial sum.
    pub fn of_heads(shelf: &mut Shelf, path: &str, width: usize) -> Norm {
        let weight = shelf.id_of_heads(&format!("{path}.weight"));
        let bias = shelf.find(&format!("{path}.bias")).map(|_| shelf.id_of_heads(&format!("{path}.bias")));
        Norm { weight, bias, width, eps: shelf.norm_eps }
    }

    /// Mean and inverse deviation of one group.
    #[inline(always)]
    fn statistics<R: Real>(&self, x: &[R]) -> (R, R) {
        let n = R::of(x.len() as f64);
        let mean = if self.bias.is_some() { total(x) / n } else { R::ZERO };
        let square = dot(x, x) / n - mean * mean;
        (mean, R::ONE / (square + R::of(self.eps)).sqrt())
    }

    pub fn forward<R: Real>(&self, cx: &Cx<R>, x: &Mat<R>) -> Mat<R> {
        let weight = &cx.weight(self.weight).data;
        let bias = self.bias.map(|b| &cx.weight(b).data);
        let mut out = x.clone();
        team::rows(&mut out.data, self.width, |first, part| {
            for (i, group) in part.chunks_exact_mut(self.width).enumerate() {
                let scale = (first + i) * self.width % weight.len();
                wide(|| {
                    let (mean, inverse) = self.statistics(group);
                    group.iter_mut().zip(&weight[scale..]).for_each(|(v, w)| *v = (*v - mean) * inverse * *w);
                });
                if let Some(bias) = bias {
                    group.iter_mut().zip(&bias[scale..]).for_each(|(v, b)| *v += *b);
                }
            }
        });
        out
    }

    /// Transpose of [`Norm::forward`] at input `x`.
    pub fn backward<R: Real>(&self, cx: &mut Cx<R>, x: &Mat<R>, dy: &Mat<R>) -> Mat<R> {
        let n = R::of(self.width as f64);
        let mut dx = dy.clone();
        let mut dweight = vec![R::ZERO; cx.weight(self.weight).data.len()];
        let mut dbias = vec![R::ZERO; if self.bias.is_some() { dweight.len() } else { 0 }];
        let weight = &cx.weight(self.weight).data;
        let mut unit = vec![R::ZERO; self.width];
        for (i, d) in dx.data.chunks_exact_mut(self.width).enumerate() {
            let group = &x.data[i * self.width..(i + 1) * self.width];
            let scale = i * self.width % weight.len();
            if !dbias.is_empty() {
                dbias[scale..scale + self.width].iter_mut().zip(d.iter()).for_each(|(b, g)| *b += *g);
            }
            let dw = &mut dweight[scale..scale + self.width];
            wide(|| {
                let (mean, inverse) = self.statistics(group);
                unit.iter_mut().zip(group).for_each(|(u, v)| *u = (*v - mean) * inverse);
                dw.iter_mut().zip(unit.iter().zip(d.iter())).for_each(|(w, (u, g))| *w += *u * *g);
                d.iter_mut().zip(&weight[scale..]).for_each(|(g, w)| *g *= *w);
                let along = dot(d, &unit) / n;
                let level = if self.bias.is_some() { total(d) / n } else { R::ZERO };
                d.iter_mut().zip(&unit).for_each(|(g, u)| *g = (*g - level - *u * along) * inverse);
            });
        }
        cx.grad(self.weight).data.iter_mut().zip(&dweight).for_each(|(a, b)| *a += *b);
        if let Some(bias) = self.bias {
            cx.grad(bias).data.iter_mut().zip(&dbias).for_each(|(a, b)| *a += *b);
        }
        dx
    }
}

/// RMSNorm of groups of `width` columns with given scales; for scales that are a slice of a
/// parameter.
pub(crate) fn rms<R: Real>(x: &Mat<R>, scale: &[R], width: usize, eps: f64) -> Mat<R> {
    let mut out = x.clone();
    for (i, group) in out.data.chunks_exact_mut(width).enumerate() {
        let at = i * width % scale.len();
        wide(|| {
            let inverse = inverse_rms(dot(group, group), width, eps);
            group.iter_mut().zip(&scale[at..]).for_each(|(v, w)| *v = *v * inverse * *w);
        });
    }
    out
}

/// Transpose of [`rms`]: the input's gradient; adds the scales'.
pub(crate) fn rms_back<R: Real>(
    x: &Mat<R>,
    scale: &[R],
    (width, eps): (usize, f64),
    dy: &Mat<R>,
    dscale: &mut [R],
) -> Mat<R> {
    let mut dx = dy.clone();
    for (i, d) in dx.data.chunks_exact_mut(width).enumerate() {
        let group = &x.data[i * width..(i + 1) * width];
        let at = i * width % scale.len();
        let dscale = &mut dscale[at..at + width];
        wide(|| {
            let inverse = inverse_rms(dot(group, group), width, eps);
            let pairs = dscale.iter_mut().zip(group.iter().zip(d.iter()));
            pairs.for_each(|(s, (v, g))| *s += *v * inverse * *g);
            d.iter_mut().zip(&scale[at..]).for_each(|(g, w)| *g *= *w);
            let along = dot(d, group) * inverse * inverse / R::of(width as f64);
            d.iter_mut().zip(group).for_each(|(g, v)| *g = (*g - *v * along) * inverse);
        });
    }
    dx
}

/// Inverse root mean square of `width` numbers whose squares sum to `squares`.
#[inline(always)]
pub(crate) fn inverse_rms<R: Real>(squares: R, width: usize, eps: f64) -> R {
    R::ONE / (squares / R::of(width as f64) + R::of(eps)).sqrt()
}
