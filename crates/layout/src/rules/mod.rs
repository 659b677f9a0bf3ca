//! Split rules, one a file: which surfaces it decides, how they are cut, how well that works and
//! what the cut cannot fix. A rule looks at a tensor's units and a layout's engine, never at ranks.

mod adapter;
mod attention_head_vectors;
mod attention_in;
mod attention_latent;
mod attention_out;
mod depth_router;
mod engram;
#[cfg(test)]
mod example;
mod expert_bank;
mod expert_latent;
mod hyper_connection;
mod indexer;
mod mixer_conv;
mod mixer_helper;
mod mixer_in;
mod mixer_norm;
mod mixer_out;
mod mixer_scalar;
mod mlp;
mod norm;
mod positions;
mod prediction_join;
mod router;
mod shared_block;
mod shared_expert;
mod shared_expert_gate;
mod side_embedding;
mod vocab_parallel;

use crate::axis::Axis;
use crate::layout::Layout;
use diag::RuleId;
use recipe::{Mixer, Recipe, Surface, Tensor};

/// How well a surface splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quality {
    /// Regular: cut aggressively.
    Excellent,
    /// Cuts well with one thing to mind.
    Strong,
    /// Cuts once something beside it is settled.
    Good,
    /// Cuts with help from a collective of its own.
    Partial,
    /// Belongs to an owner that somebody must name.
    Explicit,
    /// No axis cuts it.
    Replicated,
}

impl Quality {
    /// As reported.
    pub fn name(self) -> &'static str {
        match self {
            Quality::Excellent => "excellent",
            Quality::Strong => "strong",
            Quality::Good => "good",
            Quality::Partial => "partial",
            Quality::Explicit => "explicit",
            Quality::Replicated => "replicated",
        }
    }
}

/// Where a cut may fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Between units, segment by segment.
    Units,
    /// Anywhere, evenly over the packed rows as Megatron packs them (each group's queries, then
    /// its key and value); activations are gathered to make heads whole.
    Rows,
}

/// One dimension cut over one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Dimension of the tensor.
    pub dim: usize,
    /// Axis of the mesh.
    pub axis: Axis,
    /// Where the cut falls.
    pub how: How,
}

/// A split rule.
#[derive(Debug)]
pub struct Rule {
    /// Stable; scripts match on it.
    pub id: RuleId,
    /// Surfaces it decides.
    pub surfaces: &'static [Surface],
    /// How well they split.
    pub quality: Quality,
    /// Why so well or ill.
    pub why: &'static str,
    /// What the split cannot fix; empty when there is nothing to say.
    pub cannot_fix: &'static str,
    /// The cuts of a tensor, before degrees of one are dropped.
    pub decide: fn(&Tensor, &Layout) -> Vec<Cut>,
    /// Tensors, and what a rank holds of them.
    #[cfg(test)]
    pub examples: &'static [example::Example],
}

/// A surface that is no tensor: how it splits, why, and what splitting cannot fix.
#[derive(Clone, Copy, Debug)]
pub struct StateSurface {
    /// As listed beside the rules.
    pub name: &'static str,
    /// Whether a recipe has it.
    pub applies: fn(&Recipe) -> bool,
    /// How well it splits.
    pub quality: Quality,
    /// What makes it split so well or ill.
    pub why: &'static str,
    /// What the split cannot fix.
    pub cannot_fix: &'static str,
}

/// Surfaces that are depth, control flow or state rather than weights.
pub const STATE_SURFACES: &[StateSurface] = &[
    StateSurface {
        name: "depth",
        applies: |_| true,
        quality: Quality::Strong,
        why: "whole layers go to stages, and virtual stages interleave them, once boundaries mean something",
        cannot_fix: "a layer too wide, and what the edge stages own besides",
    },
    StateSurface {
        name: "token routing",
        applies: |recipe| recipe.uses(Mixer::Moe),
        quality: Quality::Partial,
        why: "data-dependent: counts, dispatch and combine follow the live distribution of tokens",
        cannot_fix: "imbalance between experts, and the scratch it needs",
    },
    StateSurface {
        name: "experts without tokens",
        applies: |recipe| recipe.uses(Mixer::Moe),
        quality: Quality::Explicit,
        why: "gradients and reductions must exist though no token came",
        cannot_fix: "an assumption that every expert always acts",
    },
    StateSurface {
        name: "auxiliary losses",
        applies: |recipe| recipe.uses(Mixer::Moe),
        quality: Quality::Explicit,
        why: "they arise on every stage with experts and are scaled and reported from there",
        cannot_fix: "a loss that only the last stage sees",
    },
    StateSurface {
        name: "recurrent state",
        applies: |recipe| Mixer::ALL.iter().any(|m| m.carries_state() && recipe.uses(*m)),
        quality: Quality::Partial,
        why: "heads split over tp; time only with the boundary state carried or heads exchanged",
        cannot_fix: "a non-linear recurrence that must run in order",
    },
    StateSurface {
        name: "prediction suffix",
        applies: |recipe| recipe.features.mtp().is_some(),
        quality: Quality::Explicit,
        why: "it belongs to the objective's stage, with a copy of the embedding",
        cannot_fix: "the weight of the last stage",
    },
];

/// Every rule, one for each surface.
pub const ALL: &[&Rule] = &[
    &vocab_parallel::RULE,
    &positions::RULE,
    &side_embedding::RULE,
    &hyper_connection::RULE,
    &depth_router::RULE,
    &engram::RULE,
    &norm::RULE,
    &attention_in::RULE,
    &attention_latent::RULE,
    &attention_out::RULE,
    &attention_head_vectors::RULE,
    &indexer::RULE,
    &mlp::RULE,
    &router::RULE,
    &expert_bank::RULE,
    &expert_latent::RULE,
    &shared_expert::RULE,
    &shared_expert_gate::RULE,
    &mixer_in::RULE,
    &mixer_conv::RULE,
    &mixer_scalar::RULE,
    &mixer_norm::RULE,
    &mixer_helper::RULE,
    &mixer_out::RULE,
    &prediction_join::RULE,
    &shared_block::RULE,
    &adapter::RULE,
];

/// The rule that decides a surface.
pub fn of(surface: Surface) -> &'static Rule {
    ALL.iter().find(|rule| rule.surfaces.contains(&surface)).expect("every surface has a rule: tested")
}

/// Cuts the first dimension that is made of units, over `axis`.
fn cut_units(tensor: &Tensor, axis: Axis) -> Vec<Cut> {
    let dim = (0..tensor.dims.len()).find(|&dim| tensor.dims[dim].is_cuttable());
    dim.map(|dim| Cut { dim, axis, how: How::Units }).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_holds_its_examples() {
        ALL.iter().for_each(|rule| rule.hold());
    }

    #[test]
    fn every_surface_has_exactly_one_rule() {
        for &(word, surface) in Surface::ALL {
            let deciding: Vec<_> = ALL.iter().filter(|r| r.surfaces.contains(&surface)).map(|r| r.id).collect();
            assert_eq!(deciding.len(), 1, "{word} is decided by {deciding:?}");
        }
    }
}
