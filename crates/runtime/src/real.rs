//! The two number formats a run may have.

use comm::Element;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// A real number: `f32` or `f64`.
///
/// `exp` and `tanh` are polynomials without branches or calls, so that loops over them vectorise.
/// Against the standard library they err by at most 1e-15 of the value in `f64` and 3e-7 in `f32`;
/// what would be smaller than the smallest normal number is zero, and `exp` is infinite a little
/// before the format ends: above 709 and 88.
pub trait Real:
    Element
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + std::iter::Sum
    + Default
{
    /// One.
    const ONE: Self;
    /// The nearest value to `x`.
    fn of(x: f64) -> Self;
    /// The value as `f64`.
    fn f64(self) -> f64;
    /// The exponential.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Sine and cosine.
    fn sin_cos(self) -> (Self, Self);

    /// The logistic function.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }

    /// The value, or the nearer end of ±`most`.
    #[inline(always)]
    fn within(self, most: Self) -> Self {
        let low = if self < -most { -most } else { self };
        if low > most { most } else { low }
    }

    /// `ln(1 + exp(x))` without overflow.
    #[inline(always)]
    fn softplus(self) -> Self {
        let positive = if self > Self::ZERO { self } else { Self::ZERO };
        let magnitude = if self > Self::ZERO { self } else { -self };
        positive + (Self::ONE + (-magnitude).exp()).ln()
    }
}

/// `exp(x) = scale · (1 + rest)`: a power of two, and the Taylor series of what is left over the nearest
/// multiple of ln 2. `$coefficients` are inverse factorials, highest first, down to 1/2!.
macro_rules! split {
    ($type:ty, $bits:ty, $mantissa:literal, $bias:literal, $round:literal, $ln2:expr, $coefficients:expr, $x:expr) => {{
        let x: $type = $x;
        // Adding this leaves the nearest integer in the lowest bits of the mantissa.
        let shifted = x * <$type>::of(std::f64::consts::LOG2_E) + $round;
        let n = shifted - $round;
        // The high part of ln 2 has few enough bits that its product is exact (fdlibm, `e_exp.c`).
        let r = x - n * $ln2[0] - n * $ln2[1];
        let scale = <$type>::from_bits((shifted.to_bits() << $mantissa).wrapping_add($bias << $mantissa) as $bits);
        let mut series: $type = 0.0;
        for c in $coefficients {
            series = series * r + c;
        }
        (scale, r + r * r * series)
    }};
}

const SERIES: [f64; 12] = {
    let (mut all, mut factorial, mut n) = ([0.0; 12], 1.0, 2);
    while n <= 13 {
        factorial *= n as f64;
        all[13 - n] = 1.0 / factorial;
        n += 1;
    }
    all
};

const SHORT: [f32; 6] = {
    let (mut all, mut i) = ([0.0; 6], 0);
    while i < 6 {
        all[i] = SERIES[6 + i] as f32;
        i += 1;
    }
    all
};

#[inline(always)]
fn split32(x: f32) -> (f32, f32) {
    split!(f32, u32, 23, 127, 12_582_912.0, [0.693_359_4_f32, -2.121_944_4e-4], SHORT, x)
}

#[inline(always)]
fn split64(x: f64) -> (f64, f64) {
    let ln2 = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
    split!(f64, u64, 52, 1023, 6_755_399_441_055_744.0, ln2, SERIES, x)
}

macro_rules! real {
    ($type:ty, $split:ident, $least:literal, $most:literal, $flat:literal) => {
        impl Real for $type {
            const ONE: Self = 1.0;
            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $type
            }
            #[inline(always)]
            fn f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                let low = if self < $least { $least } else { self };
                let (scale, rest) = $split(if low > $most { $most } else { low });
                let value = scale + scale * rest;
                let value = if self > $most { <$type>::INFINITY } else { value };
                if self < $least { 0.0 } else { value }
            }
            #[inline(always)]
            fn ln(self) -> Self {
                <$type>::ln(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$type>::sqrt(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                // From exp(2x) − 1, which keeps its digits near zero; flat beyond.
                let twice = self + self;
                let low = if twice < -$flat { -$flat } else { twice };
                let (scale, rest) = $split(if low > $flat { $flat } else { low });
                let less = scale * rest + (scale - 1.0);
                less / (less + 2.0)
            }
            #[inline(always)]
            fn sin_cos(self) -> (Self, Self) {
                <$type>::sin_cos(self)
            }
        }
    };
}

real!(f32, split32, -87.0, 88.0, 20.0);
real!(f64, split64, -708.0, 709.0, 40.0);

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest relative error of `ours` against `theirs` over a sweep.
    fn worst<R: Real>(from: f64, to: f64, ours: fn(R) -> R, theirs: fn(f64) -> f64) -> f64 {
        let at = |i: u32| R::of(from + (to - from) * f64::from(i) / 40_000.0);
        let error = |x: R| ((ours(x).f64() - theirs(x.f64())) / theirs(x.f64())).abs();
        (1..40_000).map(|i| error(at(i))).fold(0.0, f64::max)
    }

    #[test]
    fn exponentials_are_as_near_as_said() {
        assert!(worst::<f64>(-707.9, 708.9, Real::exp, f64::exp) < 1e-15);
        assert!(worst::<f32>(-86.9, 87.9, Real::exp, f64::exp) < 3e-7);
        assert!(worst::<f64>(-19.0, 19.0, Real::tanh, f64::tanh) < 1e-15);
        assert!(worst::<f64>(0.0, 1e-3, Real::tanh, f64::tanh) < 1e-15);
        assert!(worst::<f32>(-9.0, 9.0, Real::tanh, f64::tanh) < 3e-7);
        assert!(worst::<f32>(0.0, 1e-3, Real::tanh, f64::tanh) < 3e-7);
    }

    #[test]
    fn ends_are_what_they_should_be() {
        assert_eq!(Real::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Real::exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(Real::exp(f64::INFINITY), f64::INFINITY);
        assert_eq!((Real::exp(0.0f64), Real::exp(0.0f32)), (1.0, 1.0));
        assert!(Real::exp(f64::NAN).is_nan() && Real::tanh(f32::NAN).is_nan());
        assert_eq!((Real::tanh(1e30f32), Real::tanh(-1e300f64)), (1.0, -1.0));
    }
}
