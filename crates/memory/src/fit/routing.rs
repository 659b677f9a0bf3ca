//! Routing scratch of one expert layer of a job, as its engine makes room for it.

use crate::routing::{Capacity, RoutingInput, RoutingScratch};
use case::Case;
use case::options::Format;
use layout::Engine;
use recipe::Mixer;

/// The scratch of one expert layer on one rank of a stage.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct LayerRouting {
    /// Expert blocks of the stage.
    pub layers: u64,
    /// What is routed.
    pub input: RoutingInput,
    /// One sender's slots, as the memory text counts them; without a capacity factor there are no
    /// slots, and this is what is held.
    pub of_one_sender: RoutingScratch,
    /// What the engine holds at once.
    pub held: RoutingScratch,
    /// Senders whose rows it holds at once.
    pub senders: u64,
}

/// The scratch of a stage's expert layers; nothing where it has none, or where the sizes multiply to
/// more than can be counted.
pub fn routing(case: &Case, stage: usize) -> Option<LayerRouting> {
    let (layout, moe) = (&case.layout, case.recipe.moe.as_ref()?);
    let blocks = |layer: usize| case.recipe.layers[layer].mixers().filter(|mixer| *mixer == Mixer::Moe).count() as u64;
    let layers: u64 = case.stages.layers_of_stage(stage).map(blocks).sum();
    if layers == 0 {
        return None;
    }
    let (ep, etp) = (layout.ep.get(), layout.etp.get());
    let (one, all, senders) = match moe.capacity_factor {
        Some(factor) => {
            let of = |senders| Capacity::Factor { factor, senders };
            (of(1), of(ep * etp), ep * etp)
        }
        None => {
            let arrives = Capacity::Dropless { ep, etp, overload: case.options.overload };
            (arrives, arrives, ep)
        }
    };
    let bytes_per_element = match (case.engine(), case.options.format) {
        (Engine::Shardwright, Format::F64) => 8,
        (Engine::Shardwright, _) => 4,
        // Rows travel in bf16 under fp8 too: experts quantize what they got.
        _ => 2,
    };
    let input = RoutingInput {
        tokens_per_rank: layout.tokens_per_microbatch_per_rank(),
        top_k: moe.top_k,
        experts: moe.experts,
        local_experts: moe.experts / ep,
        hidden: moe.latent.unwrap_or(case.recipe.hidden),
        bytes_per_element,
        counts_bytes: 4,
        capacity: all,
    };
    let of_one_sender = RoutingInput { capacity: one, ..input }.scratch()?;
    Some(LayerRouting { layers, input, of_one_sender, held: input.scratch()?, senders })
}
