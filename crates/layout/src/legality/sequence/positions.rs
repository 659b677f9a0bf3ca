//! No token stands behind the last learned position.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Positions;

pub const RULE: Rule = Rule {
    id: "sequence/positions",
    blame: Blame::Layout,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let Positions::Learned { count } = case.recipe.positions else { return None };
    if case.layout.sequence <= count {
        return None;
    }
    let message = format!("sequence {} is longer than the {count} learned positions", case.layout.sequence);
    Some(RULE.error("sequence", message).fix("seq", vec![count]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("gpt3-175b", "seq=4096", "sequence 4096 is longer than the 2048 learned positions"),
        silent("gpt3-175b", "seq=2048"),
        silent("llama3-8b", "seq=65536"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
