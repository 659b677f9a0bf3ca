//! Multi-token prediction (`megatron/core/transformer/multi_token_prediction.py`): behind the final
//! norm, each depth joins the hidden states with the next tokens' embedding, runs a stack of its
//! own, and takes a loss over the vocabulary whose softmax is kept until backward. What it computes
//! is booked as a feature's, but for routing and gradients.

use super::config::{Config, Suffix};
use super::embedding::{self, Tables};
use super::linear::{Keeps, Mode, linear};
use super::loss::{cross_entropy, loss, output_layer};
use super::model::Layer;
use super::ops::{grad, grad_of, makes, norm};
use super::params::{Norm, Param, Params};
use super::rank::Rank;
use recipe::Role;
use replay::line::Origin;
use replay::tape::{BF16, FP32, INT64, Tensor, checkpoint};
use std::rc::Rc;

/// One depth.
struct Depth {
    embedding_norm: Norm,
    hidden_norm: Norm,
    join: Rc<Param>,
    layer: Rc<Layer>,
    final_norm: Norm,
}

/// The suffix: its depths, of which all may be the same (`mtp_use_repeated_layer`), and the token table they look next
/// tokens up in.
pub(super) struct Prediction {
    tables: Rc<Tables>,
    depths: Vec<Rc<Depth>>,
}

impl Prediction {
    pub fn build(c: &Config, suffix: &Suffix, tables: Rc<Tables>, params: &mut Params) -> Prediction {
        let stacks = if suffix.shared { suffix.depth.min(1) } else { suffix.depth };
        let depths = (0..stacks).map(|depth| {
            let (embedding_norm, hidden_norm) = (params.norm(c.hidden), params.norm(c.hidden));
            let join = params.matrix(Role::Matrix, c.hidden / c.tp, 2 * c.hidden);
            // Layers of the suffix have numbers of their own, behind the model's.
            let layer = Layer::build(c, Origin::Prediction { depth }, u32::MAX - depth, &suffix.mixers, params);
            let final_norm = params.norm(c.hidden);
            Rc::new(Depth { embedding_norm, hidden_norm, join, layer: Rc::new(layer), final_norm })
        });
        let built: Vec<Rc<Depth>> = depths.collect();
        let runs = (0..suffix.depth as usize).map(|depth| built[depth.min(built.len() - 1)].clone());
        Prediction { tables, depths: runs.collect() }
    }
}

/// The main hidden states, which carry the losses of all depths with them.
pub(super) fn forward(c: &Rc<Rank>, suffix: &Prediction, weight: &Param, normed: Tensor) -> Tensor {
    let mut outputs = vec![normed];
    for (depth, params) in suffix.depths.iter().enumerate() {
        c.tape.enter(Origin::Prediction { depth: depth as u32 });
        let _ids = c.act_of(2 * c.config.tokens, INT64, "rolled tokens");
        let next = embedding::forward(c, &suffix.tables);
        let hidden = outputs[depth].clone();
        outputs.push(run(c, params, depth as u32, hidden, next));
    }
    let parts = concatenated(c, &outputs);
    drop(outputs);
    losses(c, parts, weight)
}

/// One depth, computed again in backward under full recompute (`_checkpointed_forward`).
fn run(c: &Rc<Rank>, params: &Rc<Depth>, depth: u32, hidden: Tensor, next: Tensor) -> Tensor {
    if !c.config.recompute.whole_layers {
        return stack(c, params, depth, &hidden, &next);
    }
    let (rank, params) = (c.clone(), params.clone());
    checkpoint(&c.tape, &[&hidden, &next], move |inputs| stack(&rank, &params, depth, &inputs[0], &inputs[1]))
}

fn stack(c: &Rc<Rank>, params: &Depth, depth: u32, hidden: &Tensor, next: &Tensor) -> Tensor {
    let joined = join(c, params, hidden, next);
    let out = params.layer.forward(c, &joined);
    drop(joined);
    c.tape.enter(Origin::Prediction { depth });
    norm(c, &out, c.config.hidden, &params.final_norm)
}

/// Both normed, side by side, projected by columns, gathered, and cut along the sequence again.
fn join(c: &Rank, params: &Depth, hidden: &Tensor, next: &Tensor) -> Tensor {
    let (config, width) = (&c.config, c.config.hidden);
    let next = norm(c, next, width, &params.embedding_norm);
    let hidden = norm(c, hidden, width, &params.hidden_norm);
    let both = c.act(2 * hidden.elements(), "joined states");
    let half = hidden.elements();
    c.tape.record(vec![next.edge(), hidden.edge()], &[&both], Vec::new(), move |_, grads, _| {
        let whole = grads[0].as_ref();
        vec![whole.map(|g| g.part(half)), whole.map(|g| g.part(half))]
    });
    drop((next, hidden));
    let out = linear(c, &both, Mode::Column, (2 * width, width / config.tp), &params.join, Keeps::Quantized);
    drop(both);
    if config.tp == 1 {
        return out;
    }
    let whole = c.comm(config.tokens * width, "gathered join");
    makes(c, &out, &whole, Vec::new(), out.elements(), BF16);
    if !config.sp {
        return whole;
    }
    let part = c.act(config.local_tokens * width, "joined states");
    makes(c, &whole, &part, Vec::new(), whole.elements(), BF16);
    part
}

/// All depths' states in one tensor, and its parts as they are taken out again.
fn concatenated(c: &Rank, outputs: &[Tensor]) -> Vec<Tensor> {
    let (each, count) = (outputs[0].elements(), outputs.len());
    let whole = c.act(each * count as u64, "states of all depths");
    let edges = outputs.iter().map(Tensor::edge).collect();
    c.tape.record(edges, &[&whole], Vec::new(), move |_, grads, _| {
        (0..count).map(|_| grads[0].as_ref().map(|g| g.part(each))).collect()
    });
    let parts: Vec<Tensor> = (0..count).map(|_| whole.part(each)).collect();
    let total = whole.elements();
    c.tape.record(vec![whole.edge()], &parts.iter().collect::<Vec<_>>(), Vec::new(), move |t, _, _| {
        vec![Some(grad(t, total, "gradient of all depths"))]
    });
    parts
}

/// Logits and loss of every depth (`process_mtp_loss`). A depth's logits are a local until the next
/// ones stand, the last until the function returns.
fn losses(c: &Rc<Rank>, parts: Vec<Tensor>, weight: &Param) -> Tensor {
    let (tokens, mut logits) = (c.config.tokens, None);
    let mut hidden = parts[0].clone();
    for (depth, part) in parts.iter().skip(1).enumerate() {
        c.tape.enter(Origin::Prediction { depth: depth as u32 });
        let new = output_layer(c, part, weight);
        let _labels = c.act_of(2 * tokens, INT64, "rolled labels");
        let each = cross_entropy(c, &new);
        drop(logits.replace(new));
        let scaled = loss(&c.tape, tokens, FP32, "scaled losses");
        makes(c, &each, &scaled, Vec::new(), tokens, FP32);
        // `MTPLossAutoScaler`: the hidden states carry the loss's gradient with them.
        let carried = hidden.alias();
        c.tape.record(vec![hidden.edge(), scaled.edge()], &[&carried], vec![scaled.alias()], move |t, grads, _| {
            vec![grads[0].clone(), Some(grad_of(t, tokens, FP32, "loss gradient"))]
        });
        hidden = carried;
    }
    hidden
}
