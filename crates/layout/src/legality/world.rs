//! Ranks: the world holds a whole number of dense replicas, and of expert replicas.

use super::{Case, multiples_near, refuse};
use crate::layout::Layout;
use crate::request::LayoutRequest;
use diag::Finding;
use recipe::Mixer;
use units::gcd;

pub(super) fn check(case: &Case, findings: &mut Vec<Finding>) {
    let has_experts = case.recipe.uses(Mixer::Moe);
    findings.extend(fill(case.layout, has_experts, Typed::of(case.request)));
}

/// Which of the two was typed, and so is not to be contradicted by a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed {
    /// The number of replicas.
    Dp,
    /// The number of ranks, or neither.
    World,
    /// Both.
    Both,
}

impl Typed {
    /// What a request typed.
    pub fn of(request: &LayoutRequest) -> Typed {
        match (request.dp, request.world) {
            (Some(_), Some(_)) => Typed::Both,
            (Some(_), None) => Typed::Dp,
            (None, _) => Typed::World,
        }
    }
}

/// What keeps the degrees from filling the world.
pub fn fill(layout: &Layout, has_experts: bool, typed: Typed) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (world, dp) = (layout.world, layout.dp.get());
    let dense = layout.tp.get() * layout.cp.get() * layout.pp.get();
    if world != dense * dp {
        let message = if world.is_multiple_of(dense) {
            format!("dp={dp} with tp·cp·pp = {dense} makes {} ranks, and the world has {world}", dense * dp)
        } else {
            format!("world {world} is not a multiple of tp·cp·pp = {dense}")
        };
        let finding = refuse("world/dense", "world", message);
        findings.push(if world.is_multiple_of(dense) {
            finding.fix("dp", vec![world / dense])
        } else if typed != Typed::World {
            finding.fix("world", vec![dense * dp])
        } else {
            finding.fix("world", multiples_near(world, dense))
        });
    }
    let expert = layout.etp.get() * layout.ep.get() * layout.pp.get();
    if has_experts && !world.is_multiple_of(expert) {
        let message = format!("world {world} is not a multiple of etp·ep·pp = {expert}");
        let finding = refuse("world/expert", "world", message);
        let replicas = expert / gcd(expert, dense);
        let mut finding = if typed == Typed::Dp && world == dense * dp {
            finding.fix("dp", multiples_near(dp, replicas))
        } else {
            finding.fix("world", multiples_near(world, replicas * dense))
        };
        if layout.etp.splits() && world.is_multiple_of(layout.ep.get() * layout.pp.get()) {
            finding.hint = finding.hint.map(|hint| format!("{hint}; or keep experts whole with --etp 1"));
        }
        findings.push(finding);
    }
    findings
}
