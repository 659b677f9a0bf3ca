//! What torch pipelining has and torchtitan offers.

use crate::engines::refuse_schedule;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "torchtitan/schedule",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS.and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_schedule(
        &RULE,
        "torchtitan",
        &[Schedule::GPipe, Schedule::OneF1b, Schedule::Interleaved, Schedule::DualPipeV],
        case,
    )
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=torchtitan pp=4 schedule=dualpipe", "torchtitan has no schedule `dualpipe`"),
        silent("llama3-8b", "engine=torchtitan pp=4 schedule=gpipe"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
