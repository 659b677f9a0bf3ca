//! DualPipe mirrors stages in pairs.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "schedule/dualpipe-even",
    blame: Blame::Layout,
    reads: Reads::PP.and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let pp = case.layout.pp.get();
    if case.layout.schedule != Schedule::DualPipe || pp == 1 || pp.is_multiple_of(2) {
        return None;
    }
    let message = format!("schedule `dualpipe` mirrors stages in pairs, and pp {pp} is odd");
    Some(RULE.error("pp", message).fix("pp", vec![pp - 1, pp + 1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "pp=3 schedule=dualpipe", "schedule `dualpipe` mirrors stages in pairs, and pp 3 is odd"),
        silent("llama3-8b", "pp=4 schedule=dualpipe"),
        silent("llama3-8b", "pp=3 schedule=dualpipev"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
