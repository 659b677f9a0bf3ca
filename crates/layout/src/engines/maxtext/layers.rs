//! Layers divide over chunks (`configs/types.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "maxtext/layers",
    blame: Blame::Engine,
    reads: Reads::PP.and(Reads::VPP),
    quotes: &[(Engine::Maxtext, "must be equal to pipeline_parallel_layers ")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (layout, depth) = (case.layout, case.recipe.depth() as u64);
    if !layout.pp.splits() || depth.is_multiple_of(layout.chunks()) {
        return None;
    }
    let message = format!("{depth} layers are not a multiple of pp·vpp = {}", layout.chunks());
    let divides = |pp: &u64| depth.is_multiple_of(pp * layout.vpp.get());
    Some(RULE.error("pp", message).fix("pp", units::divisors(depth).into_iter().filter(divides).collect()))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=maxtext pp=3", "32 layers are not a multiple of pp·vpp = 3"),
        silent("llama3-8b", "engine=maxtext pp=4 vpp=2"),
        silent("llama3-8b", "engine=maxtext"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
