//! Its pipeline is circular: it stands for 1F1B and interleaving, and for nothing else.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Schedule;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "maxtext/schedule",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS.and(Reads::SCHEDULE),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    if !case.layout.pp.splits() {
        return None;
    }
    Some(match case.layout.schedule {
        Schedule::OneF1b | Schedule::Interleaved => {
            RULE.note("schedule", "MaxText runs its own circular pipeline in place of the named schedule")
        }
        other => RULE.error("schedule", format!("MaxText has no schedule `{other}`: its pipeline is circular")),
    })
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=maxtext pp=4",
            "MaxText runs its own circular pipeline in place of the named schedule",
        ),
        found(
            "llama3-8b",
            "engine=maxtext pp=4 schedule=zb-h1",
            "MaxText has no schedule `zb-h1`: its pipeline is circular",
        ),
        silent("llama3-8b", "engine=maxtext tp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
