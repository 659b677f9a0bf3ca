//! 1F1B, over virtual stages or not.

use crate::engines::refuse_schedule;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/schedule",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS.and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_schedule(&RULE, "Megatron-Core", &[Schedule::OneF1b, Schedule::Interleaved], case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=megatron pp=4 schedule=zb-h1", "Megatron-Core has no schedule `zb-h1`"),
        silent("llama3-8b", "engine=megatron pp=4 vpp=2"),
        silent("llama3-8b", "engine=megatron schedule=zb-h1"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
