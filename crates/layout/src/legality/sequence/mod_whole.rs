//! A layer that takes some tokens only chooses among all of a sequence, which a rank must hold.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "mod/whole-sequences",
    blame: Blame::Missing,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let axes = [("tp", case.layout.tp), ("cp", case.layout.cp)];
    let dealt = axes.into_iter().filter(|(_, degree)| degree.splits() && case.recipe.features.depths().is_some());
    dealt
        .map(|(name, degree)| {
            let message =
                format!("layers that take some tokens choose among whole sequences, and not over {name}={degree}");
            RULE.error("features.mod", message).fix(name, vec![1])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, some_tokens};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "tp=2 cp=2",
            "layers that take some tokens choose among whole sequences, and not over tp=2 | \
             layers that take some tokens choose among whole sequences, and not over cp=2",
        )
        .with(some_tokens),
        silent("llama3-8b", "dp=2 pp=2").with(some_tokens),
        silent("llama3-8b", "tp=2 cp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
