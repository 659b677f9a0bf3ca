//! Matrix products: one for every matrix of the ownership table, with the part this rank holds.
//! Forward is tokens × out × in; the gradient of the input turns the weight around; the gradient
//! of the weight sums over tokens.

use super::{Call, Op, Shape, Stream, Work};
use crate::part::Part;
use case::options::{Accumulate, Elementwise, Format, Scaling};
use case::ways::{AdapterLayers, NF4_BLOCK};
use layout::Engine;
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
        let is_small = row.tensor.role == Role::Router || row.tensor.surface == Surface::HyperConnection;
        let takes = |width: &u64| width.is_multiple_of(shape.options.format.multiple());
        let is_narrow = !is_small && part.iter().rev().take(2).all(takes);
        let format = if is_narrow { shape.options.format } else { Format::Bf16 };
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
        cast(shape, row.tensor.surface, &product, ops);
        if row.tensor.is_frozen && product.part == Part::Gemm && shape.options.ways.base.is_quantised() {
            ops.push(dequantised(&product));
        }
        adapted(shape, row.tensor.surface, &product, ops);
    }
}

/// A weight in nf4 made whole for its product and once more for its input's gradient: half a byte and a scale for 64
/// read, two bytes written (bitsandbytes 0.50, `backends/cuda/ops.py`). Of a doubly quantised one the scales are little.
fn dequantised(product: &Product) -> Op {
    let bytes = product.n * product.k * (0.5 + 4.0 / NF4_BLOCK as f64 + WRITTEN);
    let work = || vec![Work::stream(Stream::Mixed, bytes, 1.0)];
    Op::streams(product.modules, work(), work())
}

/// What runs around a factor beside its product: of ours a scale and a sum in bf16; of peft's the input cast to fp32,
/// and scale, sum and cast back in fp32 (`launch/assets/fsdp2/lora.py`, peft 0.21 `tuners/lora/layer.py`).
fn adapted(shape: Shape, surface: Surface, product: &Product, ops: &mut Vec<Op>) {
    let is_peft = shape.options.ways.adapters == AdapterLayers::Peft;
    let tokens = product.m * product.groups;
    let work = |elements: f64, bytes: f64, kernels: f64| {
        let stream = if is_peft { Stream::Mixed } else { Stream::Plain };
        vec![Work::stream(stream, elements * bytes, kernels)]
    };
    let (into, out) = (tokens * product.k, tokens * product.n);
    match (surface, is_peft) {
        (Surface::AdapterDown, true) => {
            ops.push(Op::streams(product.modules, work(into, 6.0, 1.0), work(into, 12.0, 2.0)))
        }
        // The gradient of the input is summed with the projection's.
        (Surface::AdapterDown, false) => ops.push(Op::streams(product.modules, Vec::new(), work(into, 6.0, 1.0))),
        (Surface::AdapterUp, true) => {
            ops.push(Op::streams(product.modules, work(out, 24.0, 3.0), work(out, 20.0, 3.0)))
        }
        (Surface::AdapterUp, false) => {
            ops.push(Op::streams(product.modules, work(out, 10.0, 2.0), work(out, 4.0, 1.0)))
        }
        _ => {}
    }
}

/// How an input or a gradient becomes a factor of fewer bits.
struct Cast {
    /// Bytes moved for each element: read in bf16, once more for their largest value unless the scale is a
    /// block's, and written by row and by column for the two products that read them (Transformer Engine keeps
    /// both: `common/cast`). Engines that multiply in 8 bits bring fused kernels for it, however the rest of
    /// them runs.
    bytes: f64,
    stream: Stream,
    /// Share of the inputs of layers that norms and activations before them do not cast already.
    inputs: f64,
    /// Kernels for each tensor of a group.
    kernels: f64,
}

impl Cast {
    fn of(shape: Shape, product: &Product) -> Option<Cast> {
        let written = 2.0 * product.format.bytes();
        let is_group = product.part == Part::Experts;
        // Rows that were sorted by expert come from no norm.
        let inputs = if is_group { 1.0 } else { 0.5 };
        match product.format {
            Format::Bf16 | Format::F32 | Format::F64 => None,
            // Norms leave bf16 behind when a block of 128 has its own scale, and casts run at the rate of mixed
            // formats (2.5 TB/s of 4.1 on an H200).
            Format::Fp8 if shape.options.scaling == Some(Scaling::Blockwise) => {
                Some(Cast { bytes: 2.0 + written, stream: Stream::Mixed, inputs: 1.0, kernels: 1.0 })
            }
            // What `torch.compile` makes of torchao's casts: the largest value, the cast, and a copy the other way round for
            // the weight's gradient, 1.3 TB/s on an H200 where plain kernels run at 4.1.
            // With a scale a row both orders are cast by themselves.
            Format::Fp8 if is_torchao(shape) => {
                let is_rowwise = shape.options.scaling == Some(Scaling::Rowwise);
                let bytes = if is_rowwise { 2.0 * (2.0 + 2.0 + 1.0) } else { 2.0 + 2.0 + 1.0 + 2.0 };
                Some(Cast { bytes, stream: Stream::Strided, inputs: 1.0, kernels: 3.0 })
            }
            Format::Fp8 => {
                // The largest value, the scale and the cast are kernels of their own, unless scales are known.
                let kernels = if shape.options.scaling == Some(Scaling::Tensorwise) { 4.0 } else { 1.0 };
                Some(Cast { bytes: 4.0 + written, stream: Stream::Plain, inputs, kernels })
            }
            Format::Mxfp8 | Format::Nvfp4 => {
                Some(Cast { bytes: 2.0 + written, stream: Stream::Plain, inputs, kernels: 1.0 })
            }
        }
    }
}

/// Whether torch's compiler casts, by torchao.
fn is_torchao(shape: Shape) -> bool {
    let is_torch = matches!(shape.layout.engine, Some(Engine::Torchtitan | Engine::Fsdp2));
    is_torch && shape.options.kernels.elementwise == Elementwise::Compiled
}

/// What an 8- or 4-bit product needs besides.
fn cast(shape: Shape, surface: Surface, product: &Product, ops: &mut Vec<Op>) {
    let Some(Cast { bytes, stream, inputs, kernels }) = Cast::of(shape, product) else { return };
    let tokens = product.m * product.groups;
    let work = |elements: f64, share: f64| {
        Work::stream(stream, share * elements * bytes, share * kernels * product.groups).started(Call::Inside)
    };
    // What a fused kernel hands on between the two products is in 8 bits already.
    let (inputs, outputs) = match surface {
        Surface::ExpertOut if super::experts::is_fused(shape.options) => (0.0, 1.0),
        Surface::ExpertIn if super::experts::is_fused(shape.options) => (inputs, 0.0),
        // torchao casts what tensor-parallel ranks gather before it travels (`float8_tensor_parallel.py`), with a scale a
        // tensor.
        _ if shape.options.scaling == Some(Scaling::Rowwise) => (inputs, 1.0),
        Surface::AttentionIn | Surface::MlpIn if is_torchao(shape) => (inputs / shape.tp, 1.0),
        Surface::AttentionOut | Surface::MlpOut if is_torchao(shape) => (inputs, 1.0 / shape.tp),
        _ => (inputs, 1.0),
    };
    let (into, out) = (work(tokens * product.k, inputs), work(tokens * product.n, outputs));
    ops.push(Op::streams(product.modules, vec![into], vec![out]));
}

/// Tokens a matrix multiplies: what is whole on every tensor-parallel rank sees its own part of
/// the sequence, where activations are sharded along it.
fn tokens(shape: Shape, surface: Surface) -> f64 {
    match surface {
        Surface::Router | Surface::SharedExpertGate | Surface::AttentionLatent | Surface::ExpertLatent => shape.local,
        Surface::HyperConnection => shape.local,
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
