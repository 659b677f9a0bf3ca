//! Matrix products: one for every matrix of the ownership table, with the part this rank holds.
//! Forward is tokens × out × in; the gradient of the input turns the weight around; the gradient
//! of the weight sums over tokens.

use super::{Call, Op, Shape, Stream, Work};
use crate::part::Part;
use case::options::{Accumulate, Format};
use layout::ownership::Row;
use layout::request::RecomputeModule;
use recipe::{Role, Surface};

/// Bytes of an element of a result that leaves in bf16.
const WRITTEN: f64 = 2.0;

/// Bytes for each element of a weight's gradient: added into an fp32 buffer by the product, read and
/// written, or written in bf16.
fn gradient_bytes(shape: Shape) -> f64 {
    if shape.options.kernels.accumulate == Accumulate::Fused { 8.0 } else { WRITTEN }
}

/// A second kernel that adds the gradient of `elements` into its buffer: both read, one written.
fn accumulate(shape: Shape, elements: f64) -> Option<Work> {
    let width = shape.recipe.precision.gradients.bits() as f64 / 8.0;
    let is_separate = shape.options.kernels.accumulate == Accumulate::Separate;
    let stream = if width > WRITTEN { Stream::Mixed } else { Stream::Plain };
    is_separate.then_some(Work::stream(stream, elements * (WRITTEN + 2.0 * width), 1.0).started(Call::Inside))
}

/// A product to be priced: one weight, or a group of equal ones.
pub(super) struct Product {
    pub part: Part,
    pub format: Format,
    pub modules: &'static [RecomputeModule],
    pub groups: f64,
    /// Tokens each weight multiplies.
    pub m: f64,
    pub n: f64,
    pub k: f64,
}

impl Product {
    /// Its passes.
    pub fn op(&self, shape: Shape) -> Op {
        let &Product { part, format, modules, groups, m, n, k } = self;
        let mut weight = vec![Work::Gemm { format, m: n, n: k, k: m, groups, out_bytes: gradient_bytes(shape) }];
        weight.extend(accumulate(shape, groups * n * k));
        Op {
            block: None,
            scope: None,
            part,
            modules,
            forward: vec![Work::Gemm { format, m, n, k, groups, out_bytes: WRITTEN }],
            input: vec![Work::Gemm { format, m, n: k, k: n, groups, out_bytes: WRITTEN }],
            weight,
        }
    }
}

/// Products of the rows, and the casts into an 8- or 4-bit format around them. An expert multiplies
/// as many rows as balance gives it, times the overload.
pub(super) fn products(shape: Shape, rows: &[&Row], ops: &mut Vec<Op>) {
    for row in rows {
        let part = row.part_shape(shape.layout);
        let modules = modules(row.tensor.surface);
        let format = if row.tensor.role == Role::Router { Format::Bf16 } else { shape.options.format };
        let product = match (row.tensor.role, part.as_slice()) {
            (Role::Expert, &[experts, out, into]) => {
                let groups = experts as f64;
                let m = super::experts::rows(shape) * shape.options.overload / groups;
                Product { part: Part::Experts, format, modules, groups, m, n: out as f64, k: into as f64 }
            }
            (Role::Matrix | Role::Router, &[out, into]) => {
                let m = tokens(shape, row.tensor.surface);
                Product { part: Part::Gemm, format, modules, groups: 1.0, m, n: out as f64, k: into as f64 }
            }
            _ => continue,
        };
        let op = product.op(shape);
        // A frozen weight has no gradient.
        ops.push(if row.tensor.is_frozen { Op { weight: Vec::new(), ..op } } else { op });
        cast(&product, ops);
    }
}

/// Bytes a cast moves for each element. Input and gradient are read in bf16, once for their largest
/// value unless the scale is a block's, and written by row and by column for the two products that
/// read them (Transformer Engine keeps both: `common/cast`). Engines that multiply in 8 bits bring
/// fused kernels for it, however the rest of them runs.
fn cast_bytes(format: Format) -> f64 {
    let written = 2.0 * format.bytes();
    match format {
        Format::Bf16 | Format::F32 | Format::F64 => 0.0,
        Format::Fp8 => 4.0 + written,
        Format::Mxfp8 | Format::Nvfp4 => 2.0 + written,
    }
}

/// What an 8- or 4-bit product needs besides. Half of the inputs are cast by the norm or activation
/// before them.
fn cast(product: &Product, ops: &mut Vec<Op>) {
    let each = cast_bytes(product.format);
    if each > 0.0 {
        let tokens = product.m * product.groups;
        let (into, out) = (0.5 * tokens * product.k * each, tokens * product.n * each);
        let cast = |bytes, kernels| Work::bytes(bytes, kernels).started(Call::Inside);
        ops.push(Op::streams(product.modules, vec![cast(into, 0.5)], vec![cast(out, 1.0)]));
    }
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
