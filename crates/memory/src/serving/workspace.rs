//! What is live while a step runs: the widest block's tensors, logits and routing scratch.
//!
//! Modelled, and simply: the output of every projection of one block is taken to be live at once,
//! with the input of its last one and two copies of the residual stream. No kernel's own
//! workspace is here, and no overlap of two blocks.

use super::map::HeldLayer;
use crate::routing::{Capacity, RoutingInput};
use layout::ownership::Row;
use layout::{Layout, OwnershipTable};
use recipe::{Dim, Dtype, Mixer, Place, Recipe, Role};

/// Elements of one token in the widest block of a stage, on one rank.
pub(super) fn widest_block(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, held: &[HeldLayer]) -> u64 {
    let widths = Mixer::ALL.map(|mixer| {
        let standing = held.iter().find(|layer| layer.layer.has(mixer));
        standing.map_or(0, |layer| mixer_width(recipe, layout, table, layer.index, mixer))
    });
    let width = |mixer: &Mixer| Mixer::ALL.iter().position(|m| m == mixer).map_or(0, |at| widths[at]);
    let blocks = held.iter().flat_map(HeldLayer::blocks);
    let widest = blocks.map(|block| block.mixers.iter().map(width).sum::<u64>()).max();
    2 * recipe.residual_width() + widest.unwrap_or(0)
}

/// Widths of one mixer's projections, from the first layer that has it.
fn mixer_width(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, layer: usize, mixer: Mixer) -> u64 {
    let place = match layer.checked_sub(recipe.depth()) {
        None => Place::Layer(layer),
        Some(depth) => Place::Mtp(depth),
    };
    // A path reads `layers.7.mamba.in_proj.weight`; a second block of the kind has a suffix.
    let is_mixer = |row: &&Row| row.tensor.path.split('.').nth(2) == Some(mixer.table());
    let rows = table.rows.iter().filter(|row| row.tensor.place == place).filter(is_mixer);
    rows.map(|row| row_width(recipe, layout, row)).sum()
}

fn row_width(recipe: &Recipe, layout: &Layout, row: &Row) -> u64 {
    let dims: Vec<u64> = row.tensor.dims.iter().map(Dim::len).collect();
    match (row.tensor.role, dims.as_slice()) {
        (Role::Expert, [_, _, _]) => routed_width(recipe, layout, row),
        // A projection out of the block: its input, since its output is the residual stream.
        (Role::Matrix, [out, _]) if *out == recipe.hidden && row.tensor.dims[1].is_cuttable() => {
            row.part_elements(layout) / out
        }
        (Role::Matrix | Role::Router, [_, input]) => row.part_elements(layout) / input.max(&1),
        _ => 0,
    }
}

/// A token's share of the routed experts' inner width when experts are chosen evenly: its copies
/// are spread over the tensor-parallel ranks, and gathered by those that share an expert.
fn routed_width(recipe: &Recipe, layout: &Layout, row: &Row) -> u64 {
    let Some(moe) = recipe.moe.as_ref() else { return 0 };
    let inner = row.tensor.elements() / moe.experts / moe.latent.unwrap_or(recipe.hidden);
    (moe.top_k * inner).div_ceil(layout.tp.get())
}

/// Bytes of one activation: bf16 beside any weight format but fp32.
pub(super) fn activation_bytes(recipe: &Recipe) -> u64 {
    if recipe.precision.weights == Dtype::Fp32 { 4 } else { 2 }
}

/// The routing of one token through an expert layer, balanced and dropless: a server drops no
/// token, whatever capacity factor the model was trained with.
pub(super) fn routing(recipe: &Recipe, layout: &Layout, held: &[HeldLayer]) -> Option<RoutingInput> {
    let moe = recipe.moe.as_ref().filter(|_| held.iter().any(|layer| layer.layer.has(Mixer::Moe)))?;
    Some(RoutingInput {
        tokens_per_rank: 1,
        top_k: moe.top_k,
        experts: moe.experts,
        local_experts: moe.experts / layout.ep.get(),
        hidden: moe.latent.unwrap_or(recipe.hidden),
        bytes_per_element: activation_bytes(recipe),
        counts_bytes: 4,
        capacity: Capacity::Dropless { ep: layout.ep.get(), etp: layout.etp.get(), overload: 1.0 },
    })
}
