//! Under cp gated delta nets take time in order (`configs/types.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "maxtext/gated-delta-cp",
    blame: Blame::Engine,
    reads: Reads::CP,
    quotes: &[(Engine::Maxtext, "GatedDeltaNet context parallelism requires context_parallel_load_balance=False.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let note = || RULE.note("cp", "gated delta nets under cp run without causal load balance");
    (case.recipe.uses(Mixer::GatedDelta) && case.layout.cp.splits()).then(note)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=maxtext cp=2", "gated delta nets under cp run without causal load balance")
            .with(kinds::gated_delta),
        silent("llama3-8b", "engine=maxtext tp=2").with(kinds::gated_delta),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
