//! Model operations of a step, whatever the machine does besides: recompute, padding and masked
//! scores are not counted.

use crate::ops::{Shape, core_flops};
use case::options::Options;
use layout::Layout;
use recipe::{Mixer, Place, Recipe, Role, Surface, Tensor};
use serde::Serialize;

/// How operations are counted. Rates under different conventions do not compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Convention {
    /// Six for each weight that multiplies a token (four for a frozen one), plus three times the forward of every mixer's
    /// core, of attention only the scores a causal mask leaves.
    MaskedScores,
    /// The same with all scores, masked or not, as PaLM and llm-foundry count.
    AllScores,
}

/// Operations that products of weights take for one token, forward and backward: what no layout does with less.
pub fn products_per_token(recipe: &Recipe) -> f64 {
    let multiplies = |role: Role| matches!(role, Role::Matrix | Role::Expert | Role::Router | Role::Head);
    // Of a layer that takes some tokens only, all but the router is multiplied by those.
    let taken = recipe.features.depths().map_or(1.0, |depths| depths.capacity);
    let share = |tensor: &Tensor| match tensor.place {
        Place::Layer(layer) if recipe.layers[layer].is_partial && tensor.surface != Surface::DepthRouter => taken,
        _ => 1.0,
    };
    let mut passes: f64 = 0.0;
    let heads = 1 + recipe.features.mtp().map_or(0, |mtp| mtp.depth);
    let uses = recipe.count(Mixer::Shared) as f64;
    for tensor in recipe.tensors() {
        // Forward, towards the input, and towards the weight where it is trained: two operations each.
        let each = if tensor.is_frozen { 4.0 } else { 6.0 };
        let is_head = tensor.place == Place::Head;
        let is_tied_head = recipe.tied && tensor.surface == Surface::TokenEmbedding;
        if is_head || is_tied_head {
            passes += each * (tensor.elements() * heads) as f64;
        } else if multiplies(tensor.role) {
            // Blocks that layers share stand outside of them, and multiply at every use.
            let uses = match tensor.place {
                Place::Embedding => recipe.shared.as_ref().map_or(0.0, |shared| uses / shared.blocks as f64),
                _ => 1.0,
            };
            passes += each * share(&tensor) * tensor.active_elements() as f64 * uses;
        }
    }
    passes
}

/// Operations of a whole step over all ranks.
pub(crate) fn of_step(recipe: &Recipe, layout: &Layout, options: &Options, convention: Convention) -> f64 {
    let tokens = (layout.global_batch * layout.sequence) as f64;
    let passes = products_per_token(recipe);
    let shape = Shape::new(recipe, layout, options);
    let per_token = |flops: f64| flops * shape.tp / shape.tokens;
    let mut cores = 0.0;
    for mixer in [Mixer::Attention, Mixer::Mamba, Mixer::GatedDelta, Mixer::Linear, Mixer::Shared] {
        cores += per_token(core_flops(shape, mixer, convention));
    }
    tokens * (passes + 3.0 * cores)
}
