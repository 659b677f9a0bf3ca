//! Where tokens enter and where the loss is taken.

use super::linear::Product;
use super::{Op, Shape, Work};
use crate::part::Part;
use case::options::{CrossEntropy, Elementwise, Format};

/// The lookup: rows read and written; backward adds them into the table's gradient.
pub(crate) fn embedding(shape: Shape) -> Vec<Op> {
    let elements = shape.tokens * shape.recipe.hidden as f64;
    vec![Op::bytes(&[], (4.0 * elements, 2.0), (12.0 * elements, 2.0))]
}

/// The last norm, the projection onto the vocabulary, and the loss over its logits.
pub(crate) fn head(shape: Shape) -> Vec<Op> {
    let vocab = shape.layout.padded_vocab(shape.recipe.vocab) as f64 / shape.tp;
    let hidden = shape.recipe.hidden as f64;
    let logits = shape.tokens * vocab;
    let mut ops = Vec::new();
    super::elementwise::around_block(shape, &mut ops);
    // Engines keep the head in bf16 whatever the layers run in.
    let (format, m) = (Format::Bf16, shape.tokens);
    let head = Product { part: Part::Gemm, format, modules: &[], groups: 1.0, m, n: vocab, k: hidden };
    ops.push(head.op(shape));
    let (forward, backward) = match (shape.options.kernels.cross_entropy, shape.options.kernels.elementwise) {
        // One kernel reads bf16 logits twice and writes their gradient over them, which backward
        // scales.
        (CrossEntropy::Native | CrossEntropy::TransformerEngine, _) => ((6.0, 2.0), (4.0, 1.0)),
        // Liger's kernel reads a chunk's logits twice and writes their gradient; backward scales what was saved.
        (CrossEntropy::Liger, _) => ((6.0, 1.0), (0.0, 2.0)),
        // A compiler reads bf16 logits three times, and writes an fp32 gradient and its cast.
        (CrossEntropy::Eager, Elementwise::Compiled) => ((8.0, 3.0), (8.0, 2.0)),
        // Cast to fp32 (6), maximum (4), subtraction (8), exponent (8), sum (4), target (4);
        // backward scales, subtracts and casts back.
        (CrossEntropy::Eager, _) => ((34.0, 8.0), (22.0, 4.0)),
    };
    ops.push(Op::bytes(&[], (forward.0 * logits, forward.1), (backward.0 * logits, backward.1)));
    if shape.options.kernels.cross_entropy == CrossEntropy::Liger {
        ops.push(Op::streams(&[], vec![chunked(shape, vocab, hidden)], Vec::new()));
    }
    ops
}

/// What Liger's loss moves because it goes chunk by chunk: the head's weight is read twice for every chunk, and its
/// gradient read and written (liger-kernel 0.8, `ops/fused_linear_cross_entropy.py`), where one product does it once.
fn chunked(shape: Shape, vocab: f64, hidden: f64) -> Work {
    let at_once = (shape.tokens / (vocab / hidden).ceil()).ceil().max(1.0).log2().ceil().exp2().min(shape.tokens);
    let chunks = (shape.tokens / at_once).ceil();
    let passes = if shape.recipe.adapters().is_some() { 2.0 } else { 4.0 };
    Work::bytes((chunks - 1.0) * passes * vocab * hidden * 2.0, 6.0 * chunks)
}
