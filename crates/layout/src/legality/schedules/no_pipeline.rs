//! One stage has no order of its own.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "schedule/no-pipeline",
    blame: Blame::Layout,
    reads: Reads::PP_SPLITS.and(Reads::VPP).and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

pub(super) fn check(case: &Case) -> Option<Finding> {
    let (schedule, vpp) = (case.layout.schedule, case.layout.vpp);
    if case.layout.pp.splits() || (!vpp.splits() && schedule == Schedule::OneF1b) {
        return None;
    }
    let message = format!("schedule `{schedule}` with vpp {vpp} orders a pipeline, and pp is 1");
    Some(RULE.error("schedule", message).fix("pp", vec![2, 4, 8]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "vpp=2", "schedule `interleaved` with vpp 2 orders a pipeline, and pp is 1"),
        found("llama3-8b", "schedule=zb-h1", "schedule `zb-h1` with vpp 1 orders a pipeline, and pp is 1"),
        silent("llama3-8b", "pp=2 schedule=zb-h1"),
        silent("llama3-8b", ""),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
