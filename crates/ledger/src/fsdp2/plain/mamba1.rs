//! Mamba-1 as Hugging Face's Jamba runs it over the kernels of `mamba_ssm` and `causal_conv1d`
//! (`transformers/models/jamba/modeling_jamba.py` cuda_kernels_forward, `mamba_ssm/ops/selective_scan_interface.py`
//! SelectiveScanFn): convolution, selected parts and steps are kept, and of the states one every 2,048 tokens. No
//! measured row shows it.

use super::ops::{grad, grad_of, leave, linear, makes, norm, sizes_of, weight_grads};
use super::params::Mamba1Params;
use super::rank::Rank;
use replay::tape::{BF16, FP32, Tensor};
use std::rc::Rc;

/// Tokens between the states that the scan keeps (`selective_scan_fwd_kernel.cuh`).
const KEPT_EVERY: u64 = 2048;

/// `x` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &Mamba1Params, x: &Tensor) -> Tensor {
    let packed = linear(c, x, &params.in_proj);
    let inner = convolve(c, params, &packed);
    let selected = linear(c, &inner, &params.x_proj);
    // Every head has a step size, B and C of its own.
    let heads = inner.elements() / c.config.tokens / params.x_proj.weight.columns;
    let (rank, state) = (heads * params.dt_proj.weight.columns, heads * params.a_log.columns);
    let tokens = c.config.tokens;
    let parts = match &params.norms {
        Some(norms) => {
            let part = |width: u64, at: usize| {
                let slice = c.act(tokens * width, "selected part");
                makes(c, &selected, &slice, Vec::new(), selected.elements(), BF16);
                norm(c, &slice, width, &norms[at])
            };
            [part(rank, 0), part(state, 1), part(state, 2)]
        }
        None => {
            let part = |width: u64| {
                let slice = c.act(tokens * width, "selected part");
                makes(c, &selected, &slice, Vec::new(), selected.elements(), BF16);
                slice
            };
            [part(rank), part(state), part(state)]
        }
    };
    drop(selected);
    let steps = linear(c, &parts[0], &params.dt_proj);
    let out = scan(c, params, &packed, &inner, &steps, &parts);
    drop((packed, inner, steps, parts));
    leave(c, linear(c, &out, &params.out_proj))
}

/// Keeps its input, half of the projection, which so stays whole.
fn convolve(c: &Rank, params: &Mamba1Params, packed: &Tensor) -> Tensor {
    let (total, inner) = (packed.elements(), packed.elements() / 2);
    let out = c.act(inner, "convolved channels");
    let mut weights = vec![&params.conv_weight];
    weights.extend(&params.conv_bias);
    let edges = [packed.edge()].into_iter().chain(weights.iter().map(|p| p.edge())).collect();
    let sizes = sizes_of(&weights);
    c.tape.record(edges, &[&out], vec![packed.clone()], move |t, _, _saved| {
        let _slice = grad(t, inner, "conv input gradient");
        [Some(grad(t, total, "packed projection gradient"))].into_iter().chain(weight_grads(t, &sizes)).collect()
    });
    out
}

/// The selective scan behind softplus of the steps, times the gate.
fn scan(
    c: &Rank,
    params: &Mamba1Params,
    packed: &Tensor,
    inner: &Tensor,
    steps: &Tensor,
    parts: &[Tensor; 3],
) -> Tensor {
    let (config, elements) = (&c.config, inner.elements());
    let (channels, state) = (params.a_log.rows, params.a_log.columns);
    let kept = config.micro_batch * channels * config.sequence.div_ceil(KEPT_EVERY) * 2 * state;
    let states = c.act_of(kept, FP32, "kept states");
    let ungated = c.act(elements, "scan output before gate");
    let out = c.act(elements, "scan output");
    let weights = [&params.dt_bias, &params.a_log, &params.d];
    let inputs = [packed, inner, steps, &parts[1], &parts[2]];
    let edges = inputs.map(|x| x.edge()).into_iter().chain(weights.map(|p| p.edge())).collect();
    let mut saved: Vec<Tensor> = inputs.map(Tensor::clone).to_vec();
    saved.extend([states, ungated]);
    let (total, shared, sizes) = (packed.elements(), parts[1].elements(), sizes_of(&weights));
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        let _gate = grad(t, elements, "gate gradient");
        let of_packed = grad(t, total, "packed projection gradient");
        let of_inner = grad(t, elements, "channel gradient");
        let of_steps = grad(t, elements, "step gradient");
        let _wide = [grad_of(t, shared, FP32, "B gradient"), grad_of(t, shared, FP32, "C gradient")];
        let of_parts = [grad(t, shared, "B gradient"), grad(t, shared, "C gradient")];
        let inputs = [of_packed, of_inner, of_steps].into_iter().chain(of_parts).map(Some);
        inputs.chain(weight_grads(t, &sizes)).collect()
    });
    out
}
