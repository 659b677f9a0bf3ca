//! Splits inside blocks. Every collective stands beside its transpose.

pub(crate) mod experts;
pub(crate) mod heads;
pub(crate) mod tensor;
pub(crate) mod time;
