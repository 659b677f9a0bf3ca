//! Mamba-2 (`megatron/core/ssm/mamba_mixer.py` over `mamba_ssm/ops/triton/ssd_combined.py`
//! MambaSplitConv1dScanCombinedFn): convolution, steps and states are computed again in backward,
//! so the packed projection and the scan's output before its gate are all that is saved.

use super::blocks::MambaParams;
use super::linear::{Keeps, Mode, linear, norm_linear};
use super::ops::{copy, grad, grad_of, makes, weight_grad};
use super::rank::{Rank, Tuned};
use crate::grads::MULTIPROCESSORS;
use crate::mamba_scan::{self, MambaSizes, Scan};
use replay::tape::{BF16, FP32, Tape, Tensor};

pub(super) fn forward(c: &Rank, params: &MambaParams, x: &Tensor) -> Tensor {
    let config = &c.config;
    let sizes = MambaSizes::of(config.mamba(), config.tp);
    let mut packed = norm_linear(c, x, config.hidden, sizes.width, &params.in_proj);
    if config.cp > 1 {
        // `MambaContextParallel.pre_conv_ssm`: sequence parts become head parts.
        packed = copy(c, &packed, packed.elements(), "packed projection");
    }
    // The packed projection is a local of the mixer's forward until it returns.
    let _packed = packed.clone();
    if config.micro_batch > 1 {
        // [l, b, d] to [b, l, d]; the transposed gradient is copied again.
        let transposed = c.act(packed.elements(), "packed projection");
        makes(c, &packed, &transposed, Vec::new(), config.tokens * sizes.width, BF16);
        packed = transposed;
    }
    let mut y = scan(c, params, packed);
    if config.micro_batch > 1 {
        y = copy(c, &y, y.elements(), "scan output");
    }
    if config.cp > 1 {
        y = copy(c, &y, y.elements(), "scan output");
    }
    let normed = gated_norm(c, params, &y, sizes);
    drop(y);
    linear(c, &normed, Mode::Row, (sizes.inner, config.hidden), &params.out_proj, Keeps::Quantized)
}

/// Convolution and scan.
fn scan(c: &Rank, params: &MambaParams, packed: Tensor) -> Tensor {
    let config = &c.config;
    let scan = Scan::of(config.mamba(), config.tp, config.micro_batch, config.sequence);
    c.tunes(Tuned::Scan);
    let (out, ungated) = mamba_scan::forward(&c.tape, scan);
    let scalars = [&params.conv_weight, &params.conv_bias, &params.dt_bias, &params.a_log, &params.d];
    let edges = [packed.edge()].into_iter().chain(scalars.map(|p| p.edge())).collect();
    let elements = scalars.map(|p| p.elements);
    c.tape.record(edges, &[&out], vec![packed, ungated], move |t, _, _saved| {
        let packed_grad = mamba_scan::backward(t, scan);
        let [conv_weight, conv_bias, dt_bias, a_log, d] = elements;
        let fp32 = |elements| Some(scalar_grad(t, elements));
        let weights = [Some(weight_grad(t, conv_weight)), Some(weight_grad(t, conv_bias))];
        let scalars = [fp32(dt_bias), fp32(a_log), Some(weight_grad(t, d))];
        [Some(packed_grad)].into_iter().chain(weights).chain(scalars).collect()
    });
    out
}

fn scalar_grad(t: &Tape, elements: u64) -> Tensor {
    t.tensor(replay::line::Line::Gradients, elements, FP32, "weight gradient")
}

/// The norm over each group, behind the gate (`mamba_ssm/ops/triton/layernorm_gated.py`).
fn gated_norm(c: &Rank, params: &MambaParams, y: &Tensor, sizes: MambaSizes) -> Tensor {
    let (tokens, inner) = (c.config.tokens, sizes.inner);
    let out = c.act(tokens * inner, "gated norm output");
    let inverse = c.act_of(tokens * sizes.groups, FP32, "gated norm rsigma");
    let partials = MULTIPROCESSORS.div_ceil(sizes.groups) * inner;
    let elements = params.norm.elements;
    c.tape.record(vec![y.edge(), params.norm.edge()], &[&out], vec![y.clone(), inverse], move |t, _, _saved| {
        let dy = grad(t, tokens * inner, "gated norm gradient");
        drop(grad_of(t, partials, FP32, "gated norm partials"));
        vec![Some(dy), Some(weight_grad(t, elements))]
    });
    out
}
