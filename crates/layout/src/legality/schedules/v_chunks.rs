//! The V of DualPipeV has two sides.

use super::ordered;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "schedule/v-chunks",
    blame: Blame::Layout,
    reads: Reads::PP_SPLITS.and(Reads::VPP).and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (layout, vpp) = (ordered(case)?, case.layout.vpp);
    if layout.schedule != Schedule::DualPipeV || vpp.get() == 2 {
        return None;
    }
    let message = format!("schedule `dualpipev` folds exactly two chunks onto a stage, and vpp is {vpp}");
    Some(RULE.error("schedule", message).fix("vpp", vec![2]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "pp=2 vpp=3 schedule=dualpipev",
            "schedule `dualpipev` folds exactly two chunks onto a stage, and vpp is 3",
        ),
        silent("llama3-8b", "pp=2 schedule=dualpipev"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
