//! What routing costs besides the experts' own products: scores, sorting tokens by expert and
//! back, activations, and the wait for counts that the host needs.

use super::elementwise::activation;
use super::{Op, Shape, Work};
use crate::part::Part;
use case::options::{Elementwise, Launch};
use layout::request::RecomputeModule;

/// Time of rows gathered by an index against rows copied in order: 0.78 of the rate against 0.87 on
/// an H200 (`tools/measure_curves.py`), 0.50 against 0.67 on a B200 (SimuMax's `permute`).
const GATHERED: f64 = 1.2;

/// Routed rows on one rank: a token once for each expert it goes to. Balance gives every
/// expert-parallel rank as many as it sends; expert-tensor ranks see their whole group's.
pub(super) fn rows(shape: Shape) -> f64 {
    let Some(moe) = &shape.recipe.moe else { return 0.0 };
    shape.local * moe.top_k as f64 * shape.layout.etp.get() as f64
}

/// Router, permutations and activations of one expert block.
pub(super) fn routing(shape: Shape, ops: &mut Vec<Op>) {
    let Some(moe) = &shape.recipe.moe else { return };
    let width = moe.latent.unwrap_or(shape.recipe.hidden) as f64;
    let sent = shape.local * moe.top_k as f64;
    let rows = rows(shape);
    // Tokens are permuted before they travel, sorted by expert where they arrive (nothing to sort
    // with one expert a rank), and put back in two moves: each reads and writes.
    let moves = if shape.layout.ep.splits() { 2.0 } else { 1.0 };
    let bytes = GATHERED * 2.0 * 2.0 * width * (sent + (moves - 1.0) * rows);
    // Unfused, a permutation is an index, its sort and the gather (Megatron-Core `moe_utils.py` permute).
    let kernels = if shape.options.kernels.permute_fusion { 1.0 } else { 2.0 };
    let modules: &'static [RecomputeModule] = &[RecomputeModule::Moe];
    ops.push(Op::bytes(modules, (2.0 * bytes, kernels * moves), (2.0 * bytes, kernels * moves)));
    // Scores in fp32: softmax or sigmoid, top-k, map, balancing loss; then histograms, offsets and
    // splits of the exchange, all of them small kernels that cost the host more than the device
    // (Megatron-Core's router, `token_dispatcher.py` and `moe_utils.py`, operation by operation).
    let scores = 4.0 * shape.local * moe.experts as f64;
    let kernels = match shape.options.kernels.elementwise {
        Elementwise::Eager | Elementwise::Fused => 60.0,
        Elementwise::Compiled => 25.0,
    };
    ops.push(Op::bytes(modules, (6.0 * scores, kernels), (4.0 * scores, kernels / 2.0)));
    if shape.options.kernels.launch() != Launch::Graphs {
        let wait = Op {
            block: None,
            part: Part::Launch,
            modules,
            forward: vec![Work::Sync],
            input: Vec::new(),
            weight: Vec::new(),
        };
        ops.push(wait);
    }
    let hidden = rows * shape.options.overload * moe.ffn as f64 / shape.layout.etp.get() as f64;
    activation(shape, moe.activation, hidden, &[RecomputeModule::Moe, RecomputeModule::MoeAct], ops);
    if let Some(shared) = &moe.shared {
        let elements = shape.tokens * shared.ffn as f64 / shape.tp;
        let modules = &[RecomputeModule::Moe, RecomputeModule::SharedExperts];
        activation(shape, shared.activation, elements, modules, ops);
    }
}
