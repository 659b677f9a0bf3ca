//! Where tokens enter and where the loss is taken.

use super::linear::Product;
use super::{Op, Shape, Work};
use crate::part::Part;
use case::options::{CrossEntropy, Elementwise, Format};

/// The lookup: rows read and written; backward adds them into the table's gradient.
pub(crate) fn embedding(shape: Shape) -> Vec<Op> {
    let elements = shape.tokens * shape.recipe.hidden as f64;
    let found = Op::bytes(&[], (4.0 * elements, 2.0), (12.0 * elements, 2.0));
    std::iter::once(found).chain(shape.recipe.features.mhc().map(|mhc| super::mhc::spread(shape, mhc))).collect()
}

/// Words of the vocabulary on this rank.
fn words(shape: Shape) -> f64 {
    shape.layout.padded_vocab(shape.recipe.vocab) as f64 / shape.tp
}

/// The last norm and the projection onto the vocabulary.
pub(crate) fn logits(shape: Shape) -> Vec<Op> {
    let mut ops = Vec::new();
    shape.recipe.features.mhc().into_iter().for_each(|mhc| super::mhc::collapse(shape, mhc, &mut ops));
    super::elementwise::norms(shape, &mut ops);
    super::elementwise::sum(shape, &mut ops);
    // Engines keep the head in bf16 whatever the layers run in.
    let (format, m, n, k) = (Format::Bf16, shape.tokens, words(shape), shape.recipe.hidden as f64);
    let mut head = Product { part: Part::Gemm, format, modules: &[], groups: 1.0, m, n, k }.op(shape);
    // cut-cross-entropy multiplies once more in backward. It leaves out blocks whose gradients are too small to count,
    // and how many are depends on the model: none are left out here.
    if shape.options.kernels.cross_entropy == CrossEntropy::Cce {
        head.input.extend(head.forward.clone());
    }
    ops.push(head);
    ops
}

/// The same, and the loss over its logits.
pub(crate) fn head(shape: Shape) -> Vec<Op> {
    let (vocab, hidden) = (words(shape), shape.recipe.hidden as f64);
    let elements = shape.tokens * vocab;
    let mut ops = logits(shape);
    if shape.options.ways.teacher.is_some() {
        ops.push(distance(elements));
        return ops;
    }
    let (forward, backward) = match (shape.options.kernels.cross_entropy, shape.options.kernels.elementwise) {
        // One kernel reads bf16 logits twice and writes their gradient over them, which backward
        // scales.
        (CrossEntropy::Native | CrossEntropy::TransformerEngine, _) => ((6.0, 2.0), (4.0, 1.0)),
        // Liger's kernel reads a chunk's logits twice and writes their gradient; backward scales what was saved.
        (CrossEntropy::Liger, _) => ((6.0, 1.0), (0.0, 2.0)),
        // cut-cross-entropy's blocks of logits stay in registers. The host waits for the count of targets.
        (CrossEntropy::Cce, _) => ((0.0, 6.0), (0.0, 8.0)),
        // A compiler reads bf16 logits three times, and writes an fp32 gradient and its cast.
        (CrossEntropy::Eager, Elementwise::Compiled) => ((8.0, 3.0), (8.0, 2.0)),
        // Cast to fp32 (6), maximum (4), subtraction (8), exponent (8), sum (4), target (4);
        // backward scales, subtracts and casts back.
        (CrossEntropy::Eager, _) => ((34.0, 8.0), (22.0, 4.0)),
    };
    ops.push(Op::bytes(&[], (forward.0 * elements, forward.1), (backward.0 * elements, backward.1)));
    if shape.options.kernels.cross_entropy == CrossEntropy::Cce {
        ops.push(Op::streams(&[], vec![Work::Sync], Vec::new()));
    }
    if shape.options.kernels.cross_entropy == CrossEntropy::Liger {
        ops.push(Op::streams(&[], vec![chunked(shape, vocab, hidden)], Vec::new()));
    }
    ops
}

/// The distance to a teacher's distribution, kernel by kernel (`launch/assets/fsdp2/teacher.py`): both sides cast (6) and
/// made logarithms (12), probabilities (8), differences (12), weighed (12) and summed (4), and the gradient in place
/// (8, 12); backward scales it and casts (8, 6).
fn distance(logits: f64) -> Op {
    let (forward, backward) = (2.0 * (6.0 + 12.0) + 8.0 + 12.0 + 12.0 + 4.0 + 8.0 + 12.0, 8.0 + 6.0);
    Op::bytes(&[], (forward * logits, 10.0), (backward * logits, 2.0))
}

/// What Liger's loss moves because it goes chunk by chunk: the head's weight is read twice for every chunk, and its
/// gradient read and written (liger-kernel 0.8, `ops/fused_linear_cross_entropy.py`), where one product does it once.
fn chunked(shape: Shape, vocab: f64, hidden: f64) -> Work {
    let at_once = (shape.tokens / (vocab / hidden).ceil()).ceil().max(1.0).log2().ceil().exp2().min(shape.tokens);
    let chunks = (shape.tokens / at_once).ceil();
    let passes = if shape.recipe.adapters().is_some() { 2.0 } else { 4.0 };
    Work::bytes((chunks - 1.0) * passes * vocab * hidden * 2.0, 6.0 * chunks)
}
