//! Loops over slices, compiled for the widest vectors the machine has. The build targets the plain
//! instruction set of its family; `pulp` compiles a closure again for wider ones and picks one of
//! them at run time. Sums run in independent lanes, in an order that depends on lengths alone.

use crate::real::Real;
use crate::team;

/// Independent chains of a sum or maximum: two registers of eight `f32`.
const LANES: usize = 16;

/// Runs a loop that the compiler can vectorise, compiled for wide vectors. Everything in it must be
/// inlined: what is called stays narrow.
#[inline(always)]
pub(crate) fn wide<T>(work: impl FnOnce() -> T) -> T {
    pulp::Arch::new().dispatch(work)
}

/// Defines a longer loop as a function, since a closure of that length would not be inlined.
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $kernel:ident($($field:ident: $type:ty),+), $body:block) => {
        struct $kernel<'a, R>($($type),+);

        impl<R: Real> pulp::NullaryFnOnce for $kernel<'_, R> {
            type Output = R;
            #[inline(always)]
            fn call(self) -> R {
                let $kernel($($field),+) = self;
                $body
            }
        }

        $(#[$doc])*
        pub(crate) fn $name<'a, R: Real>($($field: $type),+) -> R {
            pulp::Arch::new().dispatch($kernel($($field),+))
        }
    };
}

kernel!(
    /// The largest number, or `least` if all are smaller.
    most,
    Most(row: &'a [R], least: R),
    {
        let larger = |a: R, b: R| if b > a { b } else { a };
        let mut lanes = [least; LANES];
        let chunks = row.chunks_exact(LANES);
        let rest = chunks.remainder().iter().fold(least, |a, b| larger(a, *b));
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane = larger(*lane, *x));
        }
        lanes.iter().fold(rest, |a, b| larger(a, *b))
    }
);

kernel!(
    /// Replaces each number by `exp(number - from)`; gives the sum.
    exp_over,
    ExpOver(row: &'a mut [R], from: R),
    {
        row.iter_mut().for_each(|x| *x = (*x - from).exp());
        total(row)
    }
);

kernel!(
    /// The sum of squares.
    squares,
    Squares(row: &'a [R]),
    { dot(row, row) }
);

/// The sum.
#[inline(always)]
pub(crate) fn total<R: Real>(row: &[R]) -> R {
    let mut lanes = [R::ZERO; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest: R = chunks.remainder().iter().copied().sum();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += *x);
    }
    fold(lanes) + rest
}

/// The sum of products.
#[inline(always)]
pub(crate) fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    let mut lanes = [R::ZERO; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let mut rest = [R::ZERO; 4];
    for (i, (x, y)) in a.remainder().iter().zip(b.remainder()).enumerate() {
        rest[i % 4] += *x * *y;
    }
    for (x, y) in a.zip(b) {
        lanes.iter_mut().zip(x.iter().zip(y)).for_each(|(lane, (x, y))| *lane += *x * *y);
    }
    fold(lanes) + ((rest[0] + rest[1]) + (rest[2] + rest[3]))
}

#[inline(always)]
fn fold<R: Real>(mut lanes: [R; LANES]) -> R {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `f` of every number.
#[inline(always)]
pub(crate) fn map<R: Real>(from: &[R], f: impl Fn(R) -> R + Sync) -> Vec<R> {
    let mut out = vec![R::ZERO; from.len()];
    team::rows(&mut out, 1, |at, out| wide(|| out.iter_mut().zip(&from[at..]).for_each(|(o, x)| *o = f(*x))));
    out
}

/// `f` of every pair of numbers.
#[inline(always)]
pub(crate) fn map2<R: Real>(a: &[R], b: &[R], f: impl Fn(R, R) -> R + Sync) -> Vec<R> {
    let mut out = vec![R::ZERO; a.len()];
    team::rows(&mut out, 1, |at, out| {
        wide(|| out.iter_mut().zip(a[at..].iter().zip(&b[at..])).for_each(|(o, (a, b))| *o = f(*a, *b)));
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_and_rest_both_count() {
        let row: Vec<f64> = (0..37).map(f64::from).collect();
        assert_eq!(total(&row), 666.0);
        assert_eq!(dot(&row, &row), row.iter().map(|x| x * x).sum::<f64>());
        assert_eq!(most(&row, -1.0), 36.0);
        assert_eq!(most(&row[..5], 40.0), 40.0);
    }
}
