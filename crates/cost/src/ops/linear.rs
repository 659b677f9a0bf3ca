//! Matrix products: one for every matrix of the ownership table, with the part this rank holds.
//! Forward is tokens × out × in; the gradient of the input turns the weight around; the gradient
//! of the weight sums over tokens.

use super::{Op, Shape, Work};
use crate::options::{Elementwise, Format};
use crate::part::Part;
use layout::ownership::Row;
use layout::request::RecomputeModule;
use recipe::{Role, Surface};

/// Bytes for each element of a weight's gradient: Megatron's products add into fp32 buffers, read
/// and written; elsewhere the gradient is written in bf16.
fn gradient_bytes(shape: Shape) -> f64 {
    if shape.options.kernels.elementwise == Elementwise::Fused { 8.0 } else { WRITTEN }
}

/// Bytes of an element of a result that leaves in bf16.
const WRITTEN: f64 = 2.0;

/// Products of the rows, and the casts into an 8- or 4-bit format around them.
pub(super) fn products(shape: Shape, rows: &[&Row], ops: &mut Vec<Op>) {
    for row in rows {
        let part = row.part_shape(shape.layout);
        match (row.tensor.role, part.as_slice()) {
            (Role::Expert, [experts, out, into]) => expert(shape, row, [*experts, *out, *into].map(|n| n as f64), ops),
            (Role::Matrix | Role::Router, [out, into]) => {
                let tokens = tokens(shape, row.tensor.surface);
                let format = if row.tensor.role == Role::Router { Format::Bf16 } else { shape.options.format };
                ops.push(product(shape, format, modules(row.tensor.surface), tokens, *out as f64, *into as f64));
                cast(format, tokens, *out as f64, *into as f64, modules(row.tensor.surface), ops);
            }
            _ => {}
        }
    }
}

/// One linear layer over `m` tokens.
pub(super) fn product(shape: Shape, format: Format, modules: &'static [RecomputeModule], m: f64, n: f64, k: f64) -> Op {
    Op {
        part: Part::Gemm,
        modules,
        forward: vec![Work::Gemm { format, m, n, k, groups: 1.0, out_bytes: WRITTEN }],
        input: vec![Work::Gemm { format, m, n: k, k: n, groups: 1.0, out_bytes: WRITTEN }],
        weight: vec![Work::Gemm { format, m: n, n: k, k: m, groups: 1.0, out_bytes: gradient_bytes(shape) }],
    }
}

/// Routed experts: as many rows an expert as balance gives it, times the overload.
fn expert(shape: Shape, row: &Row, [experts, n, k]: [f64; 3], ops: &mut Vec<Op>) {
    let rows = super::experts::rows(shape);
    let m = rows * shape.options.overload / experts;
    let modules = modules(row.tensor.surface);
    let format = shape.options.format;
    ops.push(Op {
        part: Part::Experts,
        modules,
        forward: vec![Work::Gemm { format, m, n, k, groups: experts, out_bytes: WRITTEN }],
        input: vec![Work::Gemm { format, m, n: k, k: n, groups: experts, out_bytes: WRITTEN }],
        weight: vec![Work::Gemm { format, m: n, n: k, k: m, groups: experts, out_bytes: gradient_bytes(shape) }],
    });
    cast(shape.options.format, rows, n, k, modules, ops);
}

/// What an 8- or 4-bit product needs besides: input and gradient are read in bf16, and written
/// once by row and once by column for the two products that read them (Transformer Engine keeps
/// both: `common/cast`). Half of the inputs are cast by the norm or activation before them.
fn cast(format: Format, tokens: f64, out: f64, into: f64, modules: &'static [RecomputeModule], ops: &mut Vec<Op>) {
    if format == Format::Bf16 {
        return;
    }
    let each = 2.0 + 2.0 * format.bytes();
    ops.push(Op::bytes(modules, (0.5 * tokens * into * each, 0.5), (tokens * out * each, 1.0)));
}

/// Tokens a matrix multiplies: what is whole on every tensor-parallel rank sees its own part of
/// the sequence, where activations are sharded along it.
fn tokens(shape: Shape, surface: Surface) -> f64 {
    match surface {
        Surface::Router | Surface::SharedExpertGate | Surface::AttentionLatent | Surface::ExpertLatent => shape.local,
        _ => shape.tokens,
    }
}

fn modules(surface: Surface) -> &'static [RecomputeModule] {
    match surface {
        Surface::MlpIn | Surface::MlpOut => &[RecomputeModule::Mlp],
        Surface::Router | Surface::ExpertIn | Surface::ExpertOut | Surface::ExpertLatent => &[RecomputeModule::Moe],
        Surface::SharedExpertIn | Surface::SharedExpertOut | Surface::SharedExpertGate => {
            &[RecomputeModule::Moe, RecomputeModule::SharedExperts]
        }
        _ => &[],
    }
}
