//! What its pipeline engine has.

use crate::engines::refuse_schedule;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "deepspeed/schedule",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS.and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_schedule(&RULE, "DeepSpeed", &[Schedule::OneF1b], case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=deepspeed pp=4 vpp=2", "DeepSpeed has no schedule `interleaved`"),
        found("llama3-8b", "engine=deepspeed pp=4 vpp=2 schedule=dualpipev", "DeepSpeed has no schedule `dualpipev`"),
        silent("llama3-8b", "engine=deepspeed pp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
