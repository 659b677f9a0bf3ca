//! A transpose, as custom mixers and eager kernels have it.

use super::ops::makes;
use super::rank::Rank;
use replay::tape::{BF16, Tensor};

/// [s, b, …] to [b, s, …] or back: a copy when there is more than one sequence.
pub(super) fn transposed(c: &Rank, x: Tensor, name: &'static str) -> Tensor {
    if c.config.micro_batch == 1 {
        return x;
    }
    let out = c.act(x.elements(), name);
    makes(c, &x, &out, Vec::new(), x.elements(), BF16);
    out
}
