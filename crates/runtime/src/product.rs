//! Matrix products over strided views. The kernels of `gemm` take raw pointers; this module is the
//! only one that calls them, after checking that every element they touch lies in its slice.
#![allow(unsafe_code)]

use crate::live;
use crate::real::Real;

/// A matrix somewhere in a slice: element `(i, j)` at `i · row + j · column`.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, R> {
    data: &'a [R],
    rows: usize,
    cols: usize,
    row: usize,
    column: usize,
}

impl<'a, R: Real> View<'a, R> {
    /// `rows × cols` elements, rows `stride` apart.
    pub fn new(data: &'a [R], rows: usize, cols: usize, stride: usize) -> View<'a, R> {
        View { data, rows, cols, row: stride, column: 1 }
    }

    /// One row; the elements of a row lie side by side.
    pub fn line(self, i: usize) -> &'a [R] {
        debug_assert_eq!(self.column, 1);
        &self.data[i * self.row..i * self.row + self.cols]
    }

    /// All rows.
    pub fn lines(self) -> impl Iterator<Item = &'a [R]> {
        (0..self.rows).map(move |i| self.line(i))
    }

    /// The transpose, without moving anything.
    pub fn t(self) -> View<'a, R> {
        View { rows: self.cols, cols: self.rows, row: self.column, column: self.row, ..self }
    }
}

/// Whether a product replaces what it is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// It does.
    Replace,
    /// It is added.
    Add,
}

/// `out = alpha · a · b`, or added to `out`; rows of `out` are `stride` apart.
pub(crate) fn multiply<R: Real>(out: &mut [R], stride: usize, write: Write, alpha: R, a: View<R>, b: View<R>) {
    let (m, k, n) = (a.rows, a.cols, b.cols);
    assert_eq!(k, b.rows, "inner dimensions of a product");
    if m == 0 || n == 0 {
        return;
    }
    let last = |rows: usize, cols: usize, row: usize, column: usize| (rows - 1) * row + (cols - 1) * column;
    assert!(n <= stride || m == 1, "rows of a product must not overlap");
    assert!(last(m, n, stride, 1) < out.len(), "a product is written past its end");
    if k == 0 {
        if write == Write::Replace {
            (0..m).for_each(|i| out[i * stride..i * stride + n].fill(R::ZERO));
        }
        return;
    }
    assert!(last(m, k, a.row, a.column) < a.data.len(), "a product reads past its left factor");
    assert!(last(k, n, b.row, b.column) < b.data.len(), "a product reads past its right factor");
    // SAFETY: the assertions above bound the largest index of each operand by its slice; `out` is
    // borrowed mutably, so it overlaps neither factor; its rows do not overlap one another.
    live::kernel(|| unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride as isize,
            write == Write::Add,
            a.data.as_ptr(),
            a.column as isize,
            a.row as isize,
            b.data.as_ptr(),
            b.column as isize,
            b.row as isize,
            R::ONE,
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposes_and_sums_come_out() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut out = [1.0f64; 4];
        let view = View::new(&a, 2, 3, 3);
        multiply(&mut out, 2, Write::Add, 2.0, view, view.t());
        assert_eq!(out, [29.0, 65.0, 65.0, 155.0]);
    }

    #[test]
    #[should_panic(expected = "past its left factor")]
    fn a_view_past_its_slice_is_refused() {
        let a = [1.0f32; 5];
        multiply(&mut [0.0; 4], 2, Write::Replace, 1.0, View::new(&a, 2, 3, 3), View::new(&[0.0; 6], 3, 2, 2));
    }
}
