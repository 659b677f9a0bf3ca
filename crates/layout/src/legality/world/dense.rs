//! The world is a whole number of dense replicas, and as many as dp says.

use super::Typed;
use crate::layout::Layout;
use crate::legality::multiples_near;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "world/dense",
    blame: Blame::Layout,
    reads: Reads::DENSE_RANKS,
    quotes: &[(Engine::Megatron, "is not divisible by total_model_size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    fill(case.layout, Typed::of(case.request))
}

pub(super) fn fill(layout: &Layout, typed: Typed) -> Option<Finding> {
    let (world, dp) = (layout.world, layout.dp.get());
    let dense = layout.tp.get() * layout.cp.get() * layout.pp.get();
    if world == dense * dp {
        return None;
    }
    if world.is_multiple_of(dense) {
        let message = format!("dp={dp} with tp·cp·pp = {dense} makes {} ranks, and the world has {world}", dense * dp);
        return Some(RULE.error("world", message).fix("dp", vec![world / dense]));
    }
    let finding = RULE.error("world", format!("world {world} is not a multiple of tp·cp·pp = {dense}"));
    let fits = if typed == Typed::World { multiples_near(world, dense) } else { vec![dense * dp] };
    Some(finding.fix("world", fits))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "world=10 tp=4", "world 10 is not a multiple of tp·cp·pp = 4"),
        found("llama3-8b", "world=8 tp=2 dp=2", "dp=2 with tp·cp·pp = 2 makes 4 ranks, and the world has 8"),
        silent("llama3-8b", "world=8 tp=2 dp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
