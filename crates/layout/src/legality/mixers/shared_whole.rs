//! A block that several layers share runs whole: no engine here sums its parts over tensor ranks, or hands its keys around a ring.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "shared/whole",
    blame: Blame::Missing,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    if !case.recipe.uses(Mixer::Shared) {
        return Vec::new();
    }
    let layout = case.layout;
    let why = [
        ("tp", layout.tp, "would cut a block that nobody sums over ranks"),
        ("cp", layout.cp, "would cut a block in time, whose keys nobody hands around"),
    ];
    let cut = why.into_iter().filter(|(_, degree, _)| degree.splits());
    cut.map(|(axis, degree, why)| RULE.error("shared", format!("{axis}={degree} {why}")).fix(axis, vec![1])).collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "tp=2", "tp=2 would cut a block that nobody sums over ranks").with(kinds::shared),
        found("llama3-8b", "cp=2", "cp=2 would cut a block in time, whose keys nobody hands around")
            .with(kinds::shared),
        silent("llama3-8b", "dp=2").with(kinds::shared),
        silent("llama3-8b", "tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
