//! Quantities as types: what a number counts is part of its type, and arithmetic that would overflow
//! fails instead.
//!
//! This crate does not know what is being counted: no tensor, mesh or device is named here.

use std::fmt;
use std::num::NonZeroU64;

mod basis;
mod human;
mod named;

pub use basis::Basis;
pub use human::{change, count, exact, gib, longer};

/// The middle value; the mean of the middle two where they are even; none of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some(f64::midpoint(sorted[half - 1], sorted[half])),
    }
}

/// The size of a mesh axis: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Degree(NonZeroU64);

impl Degree {
    /// The degree of an axis that is not used.
    pub const ONE: Degree = Degree(NonZeroU64::MIN);

    /// `None` when `n` is zero.
    pub fn new(n: u64) -> Option<Degree> {
        NonZeroU64::new(n).map(Degree)
    }

    /// For arithmetic; at least one.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Whether there is more than one rank on the axis.
    pub fn splits(self) -> bool {
        self.get() > 1
    }
}

impl fmt::Display for Degree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A number of bytes. Printed in binary units, and always as such (GiB = 2^30).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// 2^30 bytes.
    pub const GIB: Bytes = Bytes(1 << 30);

    /// `None` on overflow.
    pub fn checked_add(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_add(other.0).map(Bytes)
    }

    /// `None` on overflow.
    pub fn checked_mul(self, n: u64) -> Option<Bytes> {
        self.0.checked_mul(n).map(Bytes)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&gib(self.0))
    }
}

/// All divisors of `n` in ascending order; what a degree may be when it must divide `n`.
pub fn divisors(n: u64) -> Vec<u64> {
    let mut low = Vec::new();
    let mut high = Vec::new();
    let mut d = 1;
    while d * d <= n {
        if n.is_multiple_of(d) {
            low.push(d);
            if d != n / d {
                high.push(n / d);
            }
        }
        d += 1;
    }
    high.reverse();
    low.extend(high);
    low
}

/// The greatest common divisor; `gcd(0, n)` is `n`.
pub fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_degree_is_at_least_one() {
        assert_eq!(Degree::new(0), None);
        assert!(!Degree::ONE.splits());
    }

    #[test]
    fn divisors_are_sorted_and_complete() {
        assert_eq!(divisors(56), [1, 2, 4, 7, 8, 14, 28, 56]);
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(49), [1, 7, 49]);
    }

    #[test]
    fn gcd_of_zero_is_the_other() {
        assert_eq!(gcd(0, 7), 7);
        assert_eq!(gcd(56, 24), 8);
    }
}
