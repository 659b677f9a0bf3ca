//! Matrix products over strided views, and matrices written by columns from several threads. The
//! kernels of `gemm` take raw pointers; this module is the only one that calls them, after checking
//! that every element they touch lies in its slice, or in its columns.
#![allow(unsafe_code)]

use crate::live;
use crate::mat::Mat;
use crate::real::Real;
use crate::team;
use std::marker::PhantomData;

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

/// Whether a product overwrites its target or is added to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    Replace,
    Add,
}

/// Where a product is written; rows lie `stride` elements apart.
struct Target<R> {
    first: *mut R,
    stride: usize,
    write: Write,
}

/// `out = alpha · a · b`, or added to `out`; rows of `out` are `stride` apart.
pub(crate) fn multiply<R: Real>(out: &mut [R], stride: usize, write: Write, alpha: R, a: View<R>, b: View<R>) {
    let (m, n) = (a.rows, b.cols);
    if m == 0 || n == 0 {
        return;
    }
    assert!(n <= stride || m == 1, "rows of a product must not overlap");
    assert!((m - 1) * stride + n <= out.len(), "a product is written past its end");
    // SAFETY: `out` is borrowed mutably, and the assertions bound what is written by it.
    unsafe { product(Target { first: out.as_mut_ptr(), stride, write }, alpha, a, b) }
}

/// # Safety
/// The target's rows must be ours to write, as many and as wide as the product, and must not overlap.
unsafe fn product<R: Real>(to: Target<R>, alpha: R, a: View<R>, b: View<R>) {
    let (m, k, n) = (a.rows, a.cols, b.cols);
    assert_eq!(k, b.rows, "inner dimensions of a product");
    if k == 0 {
        if to.write == Write::Replace {
            // SAFETY: the caller's promise.
            (0..m)
                .for_each(|i| unsafe { std::slice::from_raw_parts_mut(to.first.add(i * to.stride), n) }.fill(R::ZERO));
        }
        return;
    }
    let last = |rows: usize, cols: usize, row: usize, column: usize| (rows - 1) * row + (cols - 1) * column;
    assert!(last(m, k, a.row, a.column) < a.data.len(), "a product reads past its left factor");
    assert!(last(k, n, b.row, b.column) < b.data.len(), "a product reads past its right factor");
    // SAFETY: the assertions above bound the largest index of each factor by its slice; what is
    // written is the caller's promise, and being ours alone it overlaps neither factor.
    live::kernel(|| unsafe { kernel(to, alpha, a, b) });
}

/// # Safety
/// As [`product`]'s, and each factor's indices lie in its slice.
#[cfg(not(miri))]
unsafe fn kernel<R: Real>(to: Target<R>, alpha: R, a: View<R>, b: View<R>) {
    let parallelism = match team::threads() {
        1 => gemm::Parallelism::None,
        // Threads share out rows and columns, never the sum over `k`, whose order stays.
        threads => gemm::Parallelism::Rayon(threads),
    };
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            to.first,
            1,
            to.stride as isize,
            to.write == Write::Add,
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
            parallelism,
        );
    }
}

/// The same elements through the same pointers: Miri knows no vector instructions, and what it is to
/// check is where we point.
///
/// # Safety
/// As above.
#[cfg(miri)]
unsafe fn kernel<R: Real>(to: Target<R>, alpha: R, a: View<R>, b: View<R>) {
    for (i, j) in (0..a.rows).flat_map(|i| (0..b.cols).map(move |j| (i, j))) {
        // SAFETY: the caller's promise.
        unsafe {
            let factor = |k: usize| {
                *a.data.as_ptr().add(i * a.row + k * a.column) * *b.data.as_ptr().add(k * b.row + j * b.column)
            };
            let sum = (0..a.cols).fold(R::ZERO, |sum, k| sum + factor(k));
            let out = to.first.add(i * to.stride + j);
            let old = if to.write == Write::Add { *out } else { R::ZERO };
            *out = old + alpha * sum;
        }
    }
}

/// Some columns of a matrix, written by one thread while others write the rest.
pub(crate) struct Stripe<'a, R> {
    first: *mut R,
    rows: usize,
    width: usize,
    stride: usize,
    of: PhantomData<&'a mut [R]>,
}

// SAFETY: a stripe is a mutable borrow of its columns, which no other stripe has.
unsafe impl<R: Send> Send for Stripe<'_, R> {}

impl<'a, R: Real> Stripe<'a, R> {
    /// All columns of a matrix, `width` to a stripe.
    pub fn all(of: &'a mut Mat<R>, width: usize) -> Vec<Stripe<'a, R>> {
        assert!(width > 0 && of.cols.is_multiple_of(width) && of.data.len() == of.rows * of.cols);
        let (rows, stride, data) = (of.rows, of.cols, of.data.as_mut_ptr());
        let count = if rows == 0 { 0 } else { stride / width };
        // SAFETY: columns `i · width` lie in the first row, which there is.
        let stripe = |i: usize| Stripe { first: unsafe { data.add(i * width) }, rows, width, stride, of: PhantomData };
        (0..count).map(stripe).collect()
    }

    /// Its columns of one row.
    #[inline(always)]
    pub fn row_mut(&mut self, row: usize) -> &mut [R] {
        assert!(row < self.rows, "a row past the end of a matrix");
        // SAFETY: the row exists, its columns lie in it, and this borrow is the stripe's.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.stride), self.width) }
    }

    /// `alpha · a · b` into rows `first`, `first + step`, …, over all its columns.
    pub fn multiply(&mut self, first: usize, step: usize, write: Write, alpha: R, a: View<R>, b: View<R>) {
        if a.rows == 0 {
            return;
        }
        assert_eq!(b.cols, self.width, "a product fills a stripe");
        assert!(step > 0 && first + (a.rows - 1) * step < self.rows, "a product is written past its end");
        // SAFETY: the rows exist and are distinct, and the stripe's columns of them are ours.
        unsafe {
            let target = Target { first: self.first.add(first * self.stride), stride: step * self.stride, write };
            product(target, alpha, a, b);
        }
    }
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

    #[test]
    fn stripes_are_columns() {
        let (one, mut out) = (Mat::of(2, vec![1.0f64, 2.0, 3.0, 4.0]), Mat::<f64>::zeros(4, 4));
        let mut stripes = Stripe::all(&mut out, 2);
        stripes[1].multiply(1, 2, Write::Add, 1.0, one.view(), one.view());
        stripes[0].row_mut(2).fill(9.0);
        assert_eq!(
            (out.row(1), out.row(2), out.row(3)),
            ([0.0, 0.0, 7.0, 10.0].as_slice(), [9.0, 9.0, 0.0, 0.0].as_slice(), [0.0, 0.0, 15.0, 22.0].as_slice(),)
        );
    }

    #[test]
    fn products_have_the_same_bits_on_any_number_of_threads() {
        let number = |i: usize| ((i * 7919 % 1013) as f32 - 506.0) / 509.0;
        for (m, k, n) in [(130, 700, 90), (64, 64, 2000), (1, 3000, 300), (300, 5, 257)] {
            let a: Vec<f32> = (0..m * k).map(number).collect();
            let b: Vec<f32> = (0..k * n).map(|i| number(i + 17)).collect();
            let run = || {
                let mut out = vec![1.0f32; m * n];
                multiply(&mut out, n, Write::Add, 0.5, View::new(&a, m, k, k), View::new(&b, n, k, k).t());
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone = run();
            assert!((2..5).all(|threads| team::on(threads, run) == alone), "{m} × {k} × {n}");
        }
    }
}
