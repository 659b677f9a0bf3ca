//! Linear mixers of other kinds are cut neither over heads nor in time.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "linear/whole",
    blame: Blame::Missing,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (tp, cp) = (case.layout.tp, case.layout.cp);
    if !case.recipe.uses(Mixer::Linear) || !(tp.splits() || cp.splits()) {
        return None;
    }
    let axis = if tp.splits() { "tp" } else { "cp" };
    let message =
        format!("no rule cuts `linear` blocks over {axis}: every rank of a replica would hold the whole of them");
    Some(RULE.error("linear", message).fix(axis, vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "tp=2",
            "no rule cuts `linear` blocks over tp: every rank of a replica would hold the whole of them",
        )
        .with(kinds::linear),
        found(
            "llama3-8b",
            "cp=2",
            "no rule cuts `linear` blocks over cp: every rank of a replica would hold the whole of them",
        )
        .with(kinds::linear),
        silent("llama3-8b", "dp=2").with(kinds::linear),
        silent("llama3-8b", "tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
