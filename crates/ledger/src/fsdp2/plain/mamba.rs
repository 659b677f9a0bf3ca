//! Mamba-2 over the kernels of `mamba_ssm` (`ops/triton/ssd_combined.py`
//! MambaSplitConv1dScanCombinedFn, `ops/triton/layernorm_gated.py`): convolution, steps and states
//! are computed again in backward, so that the packed projection and the scan's output before its
//! gate are what is saved, and behind them the gated norm's input.

use super::ops::{enter, grad, grad_of, leave, linear, sizes_of, weight_grad, weight_grads};
use super::params::{MambaParams, Param};
use super::rank::Rank;
use crate::grads::MULTIPROCESSORS;
use crate::mamba_scan::{self, MambaSizes, Scan};
use replay::tape::{FP32, Tensor};
use std::rc::Rc;

/// `x` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &MambaParams, x: &Tensor) -> Tensor {
    let x = enter(c, x);
    let packed = linear(c, &x, &params.in_proj);
    if params.conv_weight.is_none() {
        let y = super::mamba_bare::forward(c, params, packed);
        return leave(c, linear(c, &y, &params.out_proj));
    }
    let y = scan(c, params, packed);
    let normed = match &params.norm {
        Some(norm) => gated_norm(c, norm, &y, MambaSizes::of(c.config.mamba(), c.config.tp)),
        None => y.clone(),
    };
    drop(y);
    leave(c, linear(c, &normed, &params.out_proj))
}

/// Convolution and scan.
fn scan(c: &Rank, params: &MambaParams, packed: Tensor) -> Tensor {
    let config = &c.config;
    let scan = Scan::of(config.mamba(), config.tp, config.micro_batch, config.sequence);
    let (out, ungated) = mamba_scan::forward(&c.tape, scan);
    let mut weights: Vec<&Rc<Param>> = params.conv_weight.iter().chain(&params.conv_bias).collect();
    weights.extend([&params.dt_bias, &params.a_log, &params.d]);
    let edges = [packed.edge()].into_iter().chain(weights.iter().map(|p| p.edge())).collect();
    let sizes = sizes_of(&weights);
    c.tape.record(edges, &[&out], vec![packed, ungated], move |t, _, _saved| {
        let packed_grad = mamba_scan::backward(t, scan);
        [Some(packed_grad)].into_iter().chain(weight_grads(t, &sizes)).collect()
    });
    out
}

/// The norm over each group, behind the gate.
fn gated_norm(c: &Rank, norm: &Rc<Param>, y: &Tensor, sizes: MambaSizes) -> Tensor {
    let (tokens, inner) = (c.config.tokens, sizes.inner);
    let out = c.act(tokens * inner, "gated norm output");
    let inverse = c.act_of(tokens * sizes.groups, FP32, "gated norm rsigma");
    let partials = MULTIPROCESSORS.div_ceil(sizes.groups) * inner;
    let elements = norm.elements();
    c.tape.record(vec![y.edge(), norm.edge()], &[&out], vec![y.clone(), inverse], move |t, _, _saved| {
        let dy = grad(t, tokens * inner, "gated norm gradient");
        drop(grad_of(t, partials, FP32, "gated norm partials"));
        vec![Some(dy), Some(weight_grad(t, elements))]
    });
    out
}
