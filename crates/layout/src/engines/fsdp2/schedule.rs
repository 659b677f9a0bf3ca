//! What torch pipelining has and the emitted module calls.

use crate::engines::refuse_schedule;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "fsdp2/schedule",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS.and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_schedule(&RULE, "torch pipelining", &[Schedule::OneF1b, Schedule::Interleaved, Schedule::DualPipeV], case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=fsdp2 pp=4 schedule=zb-h1", "torch pipelining has no schedule `zb-h1`"),
        silent("llama3-8b", "engine=fsdp2 pp=4 schedule=dualpipev"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
