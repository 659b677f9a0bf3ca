//! Interleaving needs chunks to interleave.

use super::ordered;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "schedule/chunks",
    blame: Blame::Layout,
    reads: Reads::PP_SPLITS.and(Reads::VPP).and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = ordered(case)?;
    if layout.schedule != Schedule::Interleaved || layout.vpp.splits() {
        return None;
    }
    let message = "schedule `interleaved` runs several chunks a stage, and vpp is 1";
    Some(RULE.error("schedule", message).fix("vpp", vec![2, 3, 4]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "pp=2 schedule=interleaved",
            "schedule `interleaved` runs several chunks a stage, and vpp is 1",
        ),
        silent("llama3-8b", "pp=2 vpp=2 schedule=interleaved"),
        silent("llama3-8b", "schedule=interleaved"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
