//! Its two pipeline engines.

use crate::engines::refuse_schedule;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/schedule",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS.and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_schedule(&RULE, "nanotron", &[Schedule::OneF1b, Schedule::GPipe], case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=nanotron pp=4 vpp=2", "nanotron has no schedule `interleaved`"),
        silent("llama3-8b", "engine=nanotron pp=4 schedule=gpipe"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
