//! Interleaving takes microbatches in rounds of pp.

use crate::legality::multiples_near;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::{Engine, Schedule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "schedule/interleaved-microbatches",
    blame: Blame::Layout,
    reads: Reads::PP.and(Reads::SCHEDULE).and(Reads::MICROBATCHES),
    quotes: &[(Engine::Megatron, "or larger than or equal to the pipeline-parallel size, but it is ")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (pp, microbatches) = (case.layout.pp.get(), case.layout.microbatches);
    if case.layout.schedule != Schedule::Interleaved || microbatches.is_multiple_of(pp) {
        return None;
    }
    let message =
        format!("schedule `interleaved` needs microbatches in rounds of pp {pp}, and there are {microbatches}");
    Some(RULE.error("microbatches", message).fix("microbatches", multiples_near(microbatches, pp)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "pp=4 vpp=2 microbatches=6",
            "schedule `interleaved` needs microbatches in rounds of pp 4, and there are 6",
        ),
        silent("llama3-8b", "pp=4 vpp=2 microbatches=8"),
        silent("llama3-8b", "pp=4 microbatches=6"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
