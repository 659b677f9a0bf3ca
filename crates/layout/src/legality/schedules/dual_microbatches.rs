//! Both directions of DualPipe and DualPipeV fill the stages.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "schedule/dual-microbatches",
    blame: Blame::Layout,
    reads: Reads::PP.and(Reads::SCHEDULE).and(Reads::MICROBATCHES),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (pp, microbatches, schedule) = (case.layout.pp.get(), case.layout.microbatches, case.layout.schedule);
    let even = match schedule {
        Schedule::DualPipe => " and an even number",
        Schedule::DualPipeV => "",
        _ => return None,
    };
    let is_odd = schedule == Schedule::DualPipe && !microbatches.is_multiple_of(2);
    if pp == 1 || (microbatches >= 2 * pp && !is_odd) {
        return None;
    }
    let message = format!(
        "schedule `{schedule}` needs at least 2·pp = {} microbatches{even}, and there are {microbatches}",
        2 * pp
    );
    let least = microbatches.max(2 * pp).next_multiple_of(2);
    Some(RULE.error("microbatches", message).fix("microbatches", (0..4).map(|i| least + 2 * i).collect()))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "pp=4 schedule=dualpipe microbatches=6",
            "schedule `dualpipe` needs at least 2·pp = 8 microbatches and an even number, and there are 6",
        ),
        found(
            "llama3-8b",
            "pp=4 schedule=dualpipe microbatches=9",
            "schedule `dualpipe` needs at least 2·pp = 8 microbatches and an even number, and there are 9",
        ),
        found(
            "llama3-8b",
            "pp=4 schedule=dualpipev microbatches=7",
            "schedule `dualpipev` needs at least 2·pp = 8 microbatches, and there are 7",
        ),
        silent("llama3-8b", "pp=4 schedule=dualpipev microbatches=9"),
        silent("llama3-8b", "pp=4 microbatches=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
