//! A short causal convolution, channel by channel, with SiLU behind it.

use super::act::silu;
use crate::mat::Mat;
use crate::real::Real;
use crate::wide::{map, wide};

/// Weights `[channels, taps]`, and a bias for each channel.
pub(crate) struct Conv<R> {
    /// By tap, then channel.
    taps: Vec<Vec<R>>,
    bias: Option<Vec<R>>,
    batch: usize,
    parts: usize,
}

/// Gradients of a convolution.
pub(crate) struct Back<R> {
    pub input: Mat<R>,
    /// Gradients of the times that stand before each part.
    pub tails: Mat<R>,
    pub weight: Vec<R>,
    pub bias: Vec<R>,
}

impl<R: Real> Conv<R> {
    /// A convolution over `parts` spans of the sequence, each preceded by a tail of its own.
    pub fn new(weight: &[R], taps: usize, bias: Option<Vec<R>>, batch: usize, parts: usize) -> Conv<R> {
        let tap = |j: usize| weight.iter().skip(j).step_by(taps).copied().collect();
        Conv { taps: (0..taps).map(tap).collect(), bias, batch, parts }
    }

    /// The input of one part with its tail in front.
    fn padded(&self, x: &Mat<R>, tails: &Mat<R>, part: usize) -> Mat<R> {
        let (tail, len) = (tails.data.len() / self.parts, x.data.len() / self.parts);
        let mut data = tails.data[part * tail..(part + 1) * tail].to_vec();
        data.extend_from_slice(&x.data[part * len..(part + 1) * len]);
        Mat::of(x.cols, data)
    }

    /// Output before the activation.
    fn linear(&self, padded: &Mat<R>, rows: usize) -> Mat<R> {
        let mut out = Mat::zeros(rows, padded.cols);
        for row in 0..rows {
            let to = out.row_mut(row);
            if let Some(bias) = &self.bias {
                to.copy_from_slice(bias);
            }
            for (j, tap) in self.taps.iter().enumerate() {
                let from = padded.row(row + j * self.batch);
                wide(|| to.iter_mut().zip(tap.iter().zip(from)).for_each(|(o, (w, x))| *o += *w * *x));
            }
        }
        out
    }

    /// Activated output.
    pub fn forward(&self, x: &Mat<R>, tails: &Mat<R>) -> Mat<R> {
        let mut data = Vec::with_capacity(x.data.len());
        for part in 0..self.parts {
            let pre = self.linear(&self.padded(x, tails, part), x.rows / self.parts);
            data.append(&mut map(&pre.data, |v| silu(v).0));
        }
        Mat::of(x.cols, data)
    }

    /// Transpose of [`Conv::forward`].
    pub fn backward(&self, x: &Mat<R>, tails: &Mat<R>, dy: &Mat<R>) -> Back<R> {
        let (channels, taps) = (x.cols, self.taps.len());
        let mut weights = vec![vec![R::ZERO; channels]; taps];
        let mut bias = vec![R::ZERO; channels];
        let (mut input, mut dtails) = (Vec::with_capacity(x.data.len()), Vec::with_capacity(tails.data.len()));
        let rows = x.rows / self.parts;
        for part in 0..self.parts {
            let padded = self.padded(x, tails, part);
            let mut dpre = self.linear(&padded, rows);
            let from = &dy.data[part * rows * channels..(part + 1) * rows * channels];
            wide(|| dpre.data.iter_mut().zip(from).for_each(|(p, d)| *p = silu(*p).1 * *d));
            dpre.sum_rows(&mut bias);
            let mut dpadded = Mat::zeros(padded.rows, channels);
            for row in 0..rows {
                let d = dpre.row(row);
                for (j, tap) in self.taps.iter().enumerate() {
                    let at = row + j * self.batch;
                    let (weight, x, dx) = (&mut weights[j], padded.row(at), dpadded.row_mut(at));
                    wide(|| {
                        weight.iter_mut().zip(d.iter().zip(x)).for_each(|(w, (d, x))| *w += *d * *x);
                        dx.iter_mut().zip(d.iter().zip(tap)).for_each(|(o, (d, w))| *o += *d * *w);
                    });
                }
            }
            let tail = (padded.rows - rows) * channels;
            dtails.extend_from_slice(&dpadded.data[..tail]);
            input.extend_from_slice(&dpadded.data[tail..]);
        }
        let mut weight = vec![R::ZERO; channels * taps];
        for (j, tap) in weights.iter().enumerate() {
            weight.iter_mut().skip(j).step_by(taps).zip(tap).for_each(|(w, d)| *w = *d);
        }
        Back { input: Mat::of(channels, input), tails: Mat::of(channels, dtails), weight, bias }
    }
}
