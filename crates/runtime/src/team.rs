//! Threads inside one rank. A rank that runs in a pool (`rayon::ThreadPool::install`) shares its
//! products and longest loops among the pool's threads; otherwise it computes alone, which is right for
//! ranks that are threads of one process. Every number is computed by one thread, in the order it has on
//! a single one, so that results do not depend on how many there are.

use crate::real::Real;
use rayon::prelude::*;

/// Loops over fewer numbers are not shared.
const FEW: usize = 1 << 14;

/// Threads this rank computes on.
pub fn threads() -> usize {
    // Asking rayon for its threads outside a pool would start its global one.
    if rayon::current_thread_index().is_some() { rayon::current_num_threads() } else { 1 }
}

/// Runs `work` on a pool of so many threads.
pub fn on<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    if threads <= 1 {
        return work();
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started");
    pool.install(work)
}

/// Runs `work` on each item; `room` makes what a thread keeps from item to item.
pub(crate) fn each<T: Send, S>(
    items: Vec<T>,
    room: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, T) + Sync + Send,
) {
    if threads() == 1 {
        let mut room = room();
        return items.into_iter().for_each(|item| work(&mut room, item));
    }
    items.into_par_iter().for_each_init(room, work);
}

/// Maps each item, keeping the order; `room` as in [`each`].
pub(crate) fn map<T: Send, S, U: Send>(
    items: Vec<T>,
    room: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, T) -> U + Sync + Send,
) -> Vec<U> {
    items.into_par_iter().map_init(room, work).collect()
}

/// Splits rows of `width` numbers among the threads: `work(first row, rows)`.
pub(crate) fn rows<R: Real>(data: &mut [R], width: usize, work: impl Fn(usize, &mut [R]) + Sync) {
    let threads = threads();
    if threads == 1 || data.len() < FEW {
        return work(0, data);
    }
    let each = (data.len() / width).div_ceil(threads);
    data.par_chunks_mut(each * width).enumerate().for_each(|(i, part)| work(i * each, part));
}

/// The same, with one number a row beside: `work(first row, rows, numbers)`.
pub(crate) fn rows2<R: Real>(
    data: &mut [R],
    width: usize,
    beside: &mut [R],
    work: impl Fn(usize, &mut [R], &mut [R]) + Sync,
) {
    let threads = threads();
    if threads == 1 || data.len() < FEW {
        return work(0, data, beside);
    }
    let each = beside.len().div_ceil(threads);
    let parts = data.par_chunks_mut(each * width).zip(beside.par_chunks_mut(each));
    parts.enumerate().for_each(|(i, (rows, beside))| work(i * each, rows, beside));
}

/// Splits one slice to read and three to write, all of the same length, at the same places.
pub(crate) fn four<R: Real>(
    a: &[R],
    b: &mut [R],
    c: &mut [R],
    d: &mut [R],
    work: impl Fn(&[R], &mut [R], &mut [R], &mut [R]) + Sync,
) {
    let threads = threads();
    if threads == 1 || a.len() < FEW {
        return work(a, b, c, d);
    }
    let each = a.len().div_ceil(threads);
    let written = b.par_chunks_mut(each).zip(c.par_chunks_mut(each)).zip(d.par_chunks_mut(each));
    a.par_chunks(each).zip(written).for_each(|(a, ((b, c), d))| work(a, b, c, d));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_visited_once_whatever_the_threads() {
        let visit = || {
            let mut data = vec![0.0f64; 3 * FEW];
            rows(&mut data, 3, |first, part| {
                part.chunks_exact_mut(3).enumerate().for_each(|(i, row)| row[0] += (first + i) as f64);
            });
            data
        };
        assert_eq!(on(3, || (threads(), visit())), (3, visit()));
        assert_eq!(visit()[3 * 5], 5.0);
        assert_eq!(threads(), 1);
    }
}
