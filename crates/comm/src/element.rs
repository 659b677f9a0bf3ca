//! Element types that can be sent, and buffers of them that ranks share without copying.

use std::ops::Range;
use std::sync::Arc;
use units::named;

named! {
    /// The format of an element.
    pub enum Dtype {
        /// 32-bit float.
        F32 = "f32",
        /// 64-bit float.
        F64 = "f64",
        /// 64-bit count; also how bytes and indices travel.
        U64 = "u64",
    }
}

/// A buffer in flight. Threads share it, and nobody writes to it while they do.
#[derive(Clone, Debug)]
pub enum Payload {
    /// 32-bit floats.
    F32(Arc<Vec<f32>>),
    /// 64-bit floats.
    F64(Arc<Vec<f64>>),
    /// Counts.
    U64(Arc<Vec<u64>>),
}

impl Payload {
    /// Elements it holds.
    pub fn len(&self) -> usize {
        match self {
            Payload::F32(v) => v.len(),
            Payload::F64(v) => v.len(),
            Payload::U64(v) => v.len(),
        }
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A part of a member's payload.
#[derive(Clone, Debug)]
pub struct Piece {
    pub payload: Payload,
    pub range: Range<usize>,
}

/// An element type that can be sent.
pub trait Element: Copy + Send + Sync + PartialOrd + std::fmt::Debug + 'static {
    /// Its format.
    const DTYPE: Dtype;
    /// Bytes of one.
    const BYTES: u64;
    /// The neutral element of a sum.
    const ZERO: Self;
    /// Wraps a buffer.
    fn payload(values: Arc<Vec<Self>>) -> Payload;
    /// The buffer of a payload; `None` when it holds another format.
    fn values(payload: &Payload) -> Option<&Arc<Vec<Self>>>;
    /// The sum of two.
    fn plus(self, other: Self) -> Self;
}

macro_rules! element {
    ($type:ty, $variant:ident, $bytes:literal, $plus:expr) => {
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$variant;
            const BYTES: u64 = $bytes;
            const ZERO: Self = 0 as $type;
            fn payload(values: Arc<Vec<Self>>) -> Payload {
                Payload::$variant(values)
            }
            fn values(payload: &Payload) -> Option<&Arc<Vec<Self>>> {
                match payload {
                    Payload::$variant(values) => Some(values),
                    _ => None,
                }
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }
        }
    };
}

element!(f32, F32, 4, |a, b| a + b);
element!(f64, F64, 8, |a, b| a + b);
element!(u64, U64, 8, u64::wrapping_add);
