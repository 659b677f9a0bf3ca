//! The world is a whole number of expert replicas.

use super::Typed;
use crate::layout::Layout;
use crate::legality::multiples_near;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use units::gcd;

pub const RULE: Rule = Rule {
    id: "world/expert",
    blame: Blame::Layout,
    reads: Reads::EXPERT_RANKS,
    quotes: &[(Engine::Megatron, "is not divisible by expert_tensor_model_pipeline_parallel size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.moe().and_then(|_| fill(case.layout, Typed::of(case.request)))
}

pub(super) fn fill(layout: &Layout, typed: Typed) -> Option<Finding> {
    let (world, dp) = (layout.world, layout.dp.get());
    let expert = layout.etp.get() * layout.ep.get() * layout.pp.get();
    if world.is_multiple_of(expert) {
        return None;
    }
    let finding = RULE.error("world", format!("world {world} is not a multiple of etp·ep·pp = {expert}"));
    let dense = layout.tp.get() * layout.cp.get() * layout.pp.get();
    let replicas = expert / gcd(expert, dense);
    let mut finding = if typed == Typed::Dp && world == dense * dp {
        finding.fix("dp", multiples_near(dp, replicas))
    } else {
        finding.fix("world", multiples_near(world, replicas * dense))
    };
    if layout.etp.splits() && world.is_multiple_of(layout.ep.get() * layout.pp.get()) {
        finding.hint = finding.hint.map(|hint| format!("{hint}; or keep experts whole with --etp 1"));
    }
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "world=4 ep=8", "world 4 is not a multiple of etp·ep·pp = 8"),
        silent("mixtral-8x7b", "world=8 ep=8"),
        silent("llama3-8b", "world=4 ep=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
