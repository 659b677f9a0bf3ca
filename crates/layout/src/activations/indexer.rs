//! What a sparse indexer exchanges under this project's engine: its keys over the whole timeline, the
//! choice for the heads of tensor-parallel ranks, and what all heads read, which its loss needs.

use super::{Collective, Exchange, Holds, Over, Site, is_ours};
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
        forward: Collective::AllGather,
        backward: Collective::ReduceScatter,
        elements,
        count,
        agree: "order of the parts",
        holds: Holds::Numbers,
        site: Site::Elsewhere,
    };
    if layout.sp {
        out.push(keys(Over::Sp, own * dsa.head_dim));
        out.push(Exchange {
            axis: Over::Sp,
            place: place("chosen keys of every query"),
            forward: Collective::AllGatherPositions,
            backward: Collective::None,
            elements: own * top_k,
            count,
            agree: "that every rank reads the same keys",
            holds: Holds::Wide,
            site: Site::Elsewhere,
        });
    }
    if layout.cp.splits() {
        out.push(keys(Over::Cp, tokens * dsa.head_dim));
    }
    if layout.tp.splits() {
        out.push(Exchange {
            axis: Over::tensor(layout),
            place: place("what all heads read, which its loss compares with"),
            forward: Collective::None,
            backward: if layout.sp { Collective::ReduceScatter } else { Collective::AllReduce },
            elements: tokens * top_k,
            count,
            agree: "accumulation dtype",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
}
