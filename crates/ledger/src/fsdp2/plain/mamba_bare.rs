//! Mamba-2 without a convolution, as its only public implementation writes it (DatasunriseOU/cppmega,
//! `noconv_mamba_mixer.py`): the projection is taken apart into tensors of their own, x goes through SiLU, and
//! `mamba_ssm/ops/triton/ssd_combined.py` MambaChunkScanCombinedFn keeps what it is given, its output and its decays.
//! No measured row shows it.

use super::ops::{grad, grad_of, sizes_of, weight_grad, weight_grads};
use super::params::{MambaParams, Param};
use super::rank::Rank;
use crate::grads::MULTIPROCESSORS;
use crate::mamba_scan::{self, MambaSizes, Scan};
use replay::tape::{FP32, Tensor};
use std::rc::Rc;

/// The parts of the projection; the gate goes to the scan, or to the norm behind it.
struct Parts {
    /// x behind SiLU, steps, B and C.
    scanned: [Tensor; 4],
    gate: Tensor,
}

/// From the packed projection to what is projected out.
pub(super) fn forward(c: &Rc<Rank>, params: &MambaParams, packed: Tensor) -> Tensor {
    let sizes = MambaSizes::of(c.config.mamba(), c.config.tp);
    let parts = apart(c, packed, sizes);
    match &params.norm {
        None => scan(c, params, &parts.scanned, Some(&parts.gate)),
        Some(norm) => {
            let y = scan(c, params, &parts.scanned, None);
            gated_norm(c, norm, &y, &parts.gate, sizes)
        }
    }
}

/// `split`, SiLU and `contiguous`: SiLU keeps its input, a view of the packed projection.
fn apart(c: &Rank, packed: Tensor, sizes: MambaSizes) -> Parts {
    let (tokens, total) = (c.config.tokens, packed.elements());
    let shared = tokens * sizes.groups * sizes.state;
    let gate = c.act(tokens * sizes.inner, "scan gate");
    let scanned = [
        c.act(tokens * sizes.inner, "scan input"),
        c.act(tokens * sizes.heads, "step inputs"),
        c.act(shared, "scan B"),
        c.act(shared, "scan C"),
    ];
    let outputs: Vec<&Tensor> = scanned.iter().chain([&gate]).collect();
    let inner = tokens * sizes.inner;
    c.tape.record(vec![packed.edge()], &outputs, vec![packed.clone()], move |t, _, _saved| {
        let _silu = grad(t, inner, "scan input gradient");
        vec![Some(grad(t, total, "packed projection gradient"))]
    });
    Parts { scanned, gate }
}

fn scan(c: &Rank, params: &MambaParams, parts: &[Tensor; 4], gate: Option<&Tensor>) -> Tensor {
    let config = &c.config;
    let scan = Scan::of(config.mamba(), config.tp, config.micro_batch, config.sequence);
    let (out, mut kept) = mamba_scan::forward_apart(&c.tape, scan, gate.is_some());
    let weights = [&params.dt_bias, &params.a_log, &params.d];
    let inputs: Vec<&Tensor> = parts.iter().chain(gate).collect();
    let edges = inputs.iter().map(|part| part.edge()).chain(weights.iter().map(|p| p.edge())).collect();
    let elements: Vec<u64> = inputs.iter().map(|part| part.elements()).collect();
    kept.extend(inputs.iter().map(|part| (*part).clone()));
    let sizes = sizes_of(&weights);
    c.tape.record(edges, &[&out], kept, move |t, _, _saved| {
        let made: Vec<Tensor> = elements.iter().map(|each| grad(t, *each, "gradient of the scan's inputs")).collect();
        mamba_scan::backward_apart(t, scan);
        made.into_iter().map(Some).chain(weight_grads(t, &sizes)).collect()
    });
    out
}

/// The norm over each group behind the gate, which here is a tensor of its own.
fn gated_norm(c: &Rank, norm: &Rc<Param>, y: &Tensor, gate: &Tensor, sizes: MambaSizes) -> Tensor {
    let (tokens, inner) = (c.config.tokens, sizes.inner);
    let out = c.act(tokens * inner, "gated norm output");
    let inverse = c.act_of(tokens * sizes.groups, FP32, "gated norm rsigma");
    let partials = MULTIPROCESSORS.div_ceil(sizes.groups) * inner;
    let elements = norm.elements();
    let kept = vec![y.clone(), gate.clone(), inverse];
    c.tape.record(vec![y.edge(), gate.edge(), norm.edge()], &[&out], kept, move |t, _, _saved| {
        let [dy, dz] = [(); 2].map(|()| grad(t, tokens * inner, "gated norm gradient"));
        drop(grad_of(t, partials, FP32, "gated norm partials"));
        vec![Some(dy), Some(dz), Some(weight_grad(t, elements))]
    });
    out
}
