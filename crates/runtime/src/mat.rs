//! A dense matrix, and the three products of a linear layer. Activations have one row a token: row `s ·
//! batch + b` is position `s` of sequence `b`, so that a span of the sequence is contiguous.

use crate::product::{View, Write, multiply};
use crate::real::Real;
use crate::team;
pub(crate) use crate::wide::dot;
use crate::wide::wide;

/// `rows × cols` numbers, row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mat<R> {
    /// Number of rows.
    pub rows: usize,
    /// Width of a row.
    pub cols: usize,
    /// The numbers.
    pub data: Vec<R>,
}

impl<R: Real> Mat<R> {
    /// All zero.
    pub fn zeros(rows: usize, cols: usize) -> Mat<R> {
        Mat { rows, cols, data: vec![R::ZERO; rows * cols] }
    }

    /// From numbers row by row.
    pub fn of(cols: usize, data: Vec<R>) -> Mat<R> {
        debug_assert!(cols > 0 && data.len().is_multiple_of(cols));
        Mat { rows: data.len() / cols, cols, data }
    }

    /// Multiplies every number, unless by one.
    pub fn times(&mut self, factor: f64) {
        if factor != 1.0 {
            let factor = R::of(factor);
            self.data.iter_mut().for_each(|v| *v *= factor);
        }
    }

    /// One row.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &[R] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// One row, to write.
    #[inline(always)]
    pub fn row_mut(&mut self, i: usize) -> &mut [R] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    pub(crate) fn view(&self) -> View<'_, R> {
        View::new(&self.data, self.rows, self.cols, self.cols)
    }

    /// Columns `start..start + width` as a matrix of their own.
    pub(crate) fn columns(&self, start: usize, width: usize) -> Mat<R> {
        let mut data = Vec::with_capacity(self.rows * width);
        self.data.chunks_exact(self.cols).for_each(|row| data.extend_from_slice(&row[start..start + width]));
        Mat { rows: self.rows, cols: width, data }
    }

    /// Puts a matrix into columns `start..`.
    pub(crate) fn set_columns(&mut self, start: usize, from: &Mat<R>) {
        let rows = self.data.chunks_exact_mut(self.cols).zip(from.data.chunks_exact(from.cols));
        rows.for_each(|(to, from)| to[start..start + from.len()].copy_from_slice(from));
    }

    /// Cuts columns into matrices of these widths.
    pub(crate) fn split(&self, widths: &[usize]) -> Vec<Mat<R>> {
        let mut start = 0;
        let part = |width: &usize| {
            let columns = self.columns(start, *width);
            start += width;
            columns
        };
        widths.iter().map(part).collect()
    }

    /// Puts matrices side by side.
    pub(crate) fn join(parts: &[&Mat<R>]) -> Mat<R> {
        let mut out = Mat::zeros(parts[0].rows, parts.iter().map(|p| p.cols).sum());
        let mut start = 0;
        for part in parts {
            out.set_columns(start, part);
            start += part.cols;
        }
        out
    }

    /// Adds another of the same shape.
    pub(crate) fn add(&mut self, other: &Mat<R>) {
        debug_assert_eq!((self.rows, self.cols), (other.rows, other.cols));
        team::rows(&mut self.data, 1, |at, to| {
            wide(|| to.iter_mut().zip(&other.data[at..]).for_each(|(a, b)| *a += *b));
        });
    }

    /// `self · weightᵀ`, a weight being `[out, in]`.
    pub(crate) fn linear(&self, weight: &Mat<R>) -> Mat<R> {
        let mut out = Mat::zeros(self.rows, weight.rows);
        multiply(&mut out.data, weight.rows, Write::Replace, R::ONE, self.view(), weight.view().t());
        out
    }

    /// The input's gradient of [`Mat::linear`], `self` being the output's.
    pub(crate) fn linear_input(&self, weight: &Mat<R>) -> Mat<R> {
        let mut out = Mat::zeros(self.rows, weight.cols);
        multiply(&mut out.data, weight.cols, Write::Replace, R::ONE, self.view(), weight.view());
        out
    }

    /// Adds the weight's gradient of [`Mat::linear`], `self` being the output's.
    pub(crate) fn linear_weight(&self, input: &Mat<R>, gradient: &mut Mat<R>) {
        let stride = gradient.cols;
        multiply(&mut gradient.data, stride, Write::Add, R::ONE, self.view().t(), input.view());
    }

    /// Adds a row to every row.
    pub(crate) fn add_row(&mut self, row: &[R]) {
        self.data.chunks_exact_mut(row.len()).for_each(|r| r.iter_mut().zip(row).for_each(|(a, b)| *a += *b));
    }

    /// Adds the sum of all rows to `sum`: the gradient of [`Mat::add_row`].
    pub(crate) fn sum_rows(&self, sum: &mut [R]) {
        self.data.chunks_exact(self.cols).for_each(|r| sum.iter_mut().zip(r).for_each(|(a, b)| *a += *b));
    }
}

/// `to += scale · from`.
#[inline(always)]
pub(crate) fn axpy<R: Real>(to: &mut [R], scale: R, from: &[R]) {
    to.iter_mut().zip(from).for_each(|(a, b)| *a += scale * *b);
}
