//! What a sparse indexer exchanges under this project's engine: its keys over the whole timeline, the
//! choice for the heads of tensor-parallel ranks, and what all heads read, which its loss needs.

use super::{Exchange, Holds, is_ours};
use crate::layout::Layout;
use recipe::Recipe;

/// The exchanges of `count` attention blocks with an indexer.
pub(super) fn exchanges(recipe: &Recipe, layout: &Layout, count: u64, out: &mut Vec<Exchange>) {
    let Some(dsa) = recipe.features.dsa().filter(|_| count > 0 && is_ours(layout)) else { return };
    let (tokens, own) =
        (layout.micro_batch * layout.sequence / layout.cp.get(), layout.tokens_per_microbatch_per_rank());
    let top_k = dsa.top_k.min(layout.sequence);
    let place = |what: &str| format!("under the sparse indexer: {what}");
    let keys = |axis, elements| Exchange {
        axis,
        place: place("index keys of all tokens"),
        forward: "all-gather",
        backward: "reduce-scatter",
        elements,
        count,
        agree: "order of the parts",
        holds: Holds::Numbers,
    };
    if layout.sp {
        out.push(keys("sp", own * dsa.head_dim));
        out.push(Exchange {
            axis: "sp",
            place: place("chosen keys of every query"),
            forward: "all-gather of positions",
            backward: "none",
            elements: own * top_k,
            count,
            agree: "that every rank reads the same keys",
            holds: Holds::Wide,
        });
    }
    if layout.cp.splits() {
        out.push(keys("cp", tokens * dsa.head_dim));
    }
    if layout.tp.splits() {
        out.push(Exchange {
            axis: if layout.sp { "sp" } else { "tp" },
            place: place("what all heads read, which its loss compares with"),
            forward: "none",
            backward: if layout.sp { "reduce-scatter" } else { "all-reduce" },
            elements: tokens * top_k,
            count,
            agree: "accumulation dtype",
            holds: Holds::Numbers,
        });
    }
}
