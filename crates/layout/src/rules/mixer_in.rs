//! Projections into a state-carrying mixer split segment by segment, by whole heads and groups.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "mixer/in-by-head",
    surfaces: &[Surface::MixerIn],
    quality: Quality::Strong,
    why: "projection edges are regular matrices once each segment is cut by itself",
    cannot_fix: "the recurrence between them: its state has a contract of its own",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
