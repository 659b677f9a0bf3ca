//! What custom mixers are made of: torch's own linear layers and transposes.

use super::ops::{WeightProduct, grad, makes};
use super::params::Param;
use super::rank::Rank;
use replay::tape::{BF16, Tensor};

/// A torch linear: saves its input.
pub(super) fn linear(c: &Rank, x: &Tensor, sizes: (u64, u64), weight: &Param) -> Tensor {
    c.torch_product();
    let tokens = c.config.tokens;
    let out = c.act(tokens * sizes.1, "projection output");
    let product = WeightProduct::plain(weight);
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], vec![x.clone()], move |t, grads, saved| {
        let dx = grad(t, tokens * sizes.0, "input gradient");
        let operands = saved.iter().cloned().chain(grads[0].clone()).collect();
        vec![Some(dx), product.grad(t, operands)]
    });
    out
}

/// [s, b, …] to [b, s, …] or back: a copy when there is more than one sequence.
pub(super) fn transposed(c: &Rank, x: Tensor, name: &'static str) -> Tensor {
    if c.config.micro_batch == 1 {
        return x;
    }
    let out = c.act(x.elements(), name);
    makes(c, &x, &out, Vec::new(), x.elements(), BF16);
    out
}
