//! Schedules that run one chunk a stage.

use super::ordered;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "schedule/one-chunk",
    blame: Blame::Layout,
    reads: Reads::PP_SPLITS.and(Reads::VPP).and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (schedule, vpp) = (ordered(case)?.schedule, case.layout.vpp);
    let runs_one = matches!(schedule, Schedule::GPipe | Schedule::OneF1b | Schedule::ZbH1 | Schedule::DualPipe);
    if !runs_one || !vpp.splits() {
        return None;
    }
    let message = format!("schedule `{schedule}` runs one chunk a stage, and vpp is {vpp}");
    let finding = RULE.error("schedule", message).fix("vpp", vec![1]);
    Some(Finding { hint: Some("vpp may be 1, or the schedule `interleaved`".to_string()), ..finding })
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "pp=2 vpp=2 schedule=1f1b", "schedule `1f1b` runs one chunk a stage, and vpp is 2"),
        silent("llama3-8b", "pp=2 vpp=2"),
        silent("llama3-8b", "vpp=2 schedule=1f1b"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
