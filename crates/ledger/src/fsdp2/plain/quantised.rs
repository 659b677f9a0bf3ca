//! Frozen projections in nf4 (bitsandbytes 0.50: `functional.py` quantize_4bit, `autograd/_functions.py` MatMul4Bit,
//! `backends/cuda/ops.py` _dequant_linear_fallback): packed bytes and scales are kept, and a product makes the whole
//! weight in bf16 for as long as it runs, in backward once more.

use super::ops::{adapted, grad};
use super::params::{Linear, Param};
use super::rank::Rank;
use case::ways::{BLOCK, BaseFormat, NF4_BLOCK};
use replay::line::{Line, Origin};
use replay::tape::{BF16, FP32, Storage, Tape, Tensor};
use std::rc::Rc;

/// Entries of the table of 4-bit values, kept with every weight.
const TABLE: u64 = 16;

fn scales(weight: &Param) -> u64 {
    weight.elements().div_ceil(NF4_BLOCK)
}

/// What is kept of a weight, made from its bf16 values.
pub(crate) fn quantised(weight: &Rc<Param>, tape: &Tape) -> Vec<Rc<Storage>> {
    tape.enter(Origin::Setup);
    let made = |bytes, name| tape.storage(weight.line, bytes, name);
    let _whole = made(weight.elements() * BF16, "weight in bf16");
    let packed = made(weight.elements().div_ceil(2), "weight in nf4");
    let scale = made(scales(weight) * FP32, "scales");
    let mut kept = vec![packed, made(TABLE * FP32, "table of 4-bit values")];
    if weight.format == BaseFormat::Nf4 {
        kept.push(scale);
        return kept;
    }
    kept.push(made(FP32, "mean scale"));
    let _centred = made(scales(weight) * FP32, "scales less their mean");
    kept.extend([
        made(scales(weight), "scales in 8 bits"),
        made(scales(weight).div_ceil(BLOCK) * FP32, "scales of scales"),
    ]);
    kept
}

/// The whole weight in bf16, and before it the scales of a doubly quantised one.
fn whole(tape: &Tape, weight: &Param, copies: u64) -> Vec<Rc<Storage>> {
    let made = |bytes, name| tape.storage(Line::Workspaces, bytes, name);
    let copies = if weight.format == BaseFormat::Nf4Double { copies } else { 0 };
    let mut all: Vec<_> = (0..copies).map(|_| made(scales(weight) * FP32, "dequantised scales")).collect();
    all.push(made(weight.elements() * BF16, "dequantised weight"));
    all
}

/// The product, with its adapter where it has one. Nothing is saved but what is kept anyhow.
pub(super) fn linear(c: &Rc<Rank>, x: &Tensor, params: &Linear) -> Tensor {
    c.product();
    let (inputs, weight, rank) = (x.elements(), params.weight.clone(), c.clone());
    // In forward the sum with the mean is a second tensor, in backward it is in place.
    let buffers = whole(&c.tape, &weight, 2);
    let out = c.act(inputs / weight.columns * weight.rows, "projection");
    drop(buffers);
    c.tape.record(vec![x.edge()], &[&out], Vec::new(), move |t, _, _| {
        rank.product();
        let _buffers = whole(t, &weight, 1);
        vec![Some(grad(t, inputs, "projection input gradient"))]
    });
    match &params.adapter {
        Some(adapter) => adapted(c, x, out, adapter),
        None => out,
    }
}
