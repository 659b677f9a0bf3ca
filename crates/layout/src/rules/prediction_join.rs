//! The projection that joins hidden state and next embedding is cut by output column and gathered.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "mtp/join-columns",
    surfaces: &[Surface::PredictionJoin],
    quality: Quality::Good,
    why: "regular, on the last stage only",
    cannot_fix: "pipeline depth: prediction heads stay on the objective's stage",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
