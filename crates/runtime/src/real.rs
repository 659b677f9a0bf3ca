//! The two number formats a run may have.

use comm::Element;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// A real number: `f32` or `f64`.
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

    /// `ln(1 + exp(x))` without overflow.
    #[inline(always)]
    fn softplus(self) -> Self {
        let positive = if self > Self::ZERO { self } else { Self::ZERO };
        let magnitude = if self > Self::ZERO { self } else { -self };
        positive + (Self::ONE + (-magnitude).exp()).ln()
    }
}

macro_rules! real {
    ($type:ty) => {
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
                <$type>::exp(self)
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
                <$type>::tanh(self)
            }
            #[inline(always)]
            fn sin_cos(self) -> (Self, Self) {
                <$type>::sin_cos(self)
            }
        }
    };
}

real!(f32);
real!(f64);
