//! Experts of a layer that takes some tokens only would exchange those alone, which nobody prices.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "mod/exchange",
    blame: Blame::Missing,
    reads: Reads::EP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let ep = case.layout.ep;
    case.recipe.features.depths().filter(|_| ep.splits())?;
    let message = format!("an exchange of some tokens over ep={ep} is not priced");
    Some(RULE.error("features.mod", message).fix("ep", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, some_tokens};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "ep=2", "an exchange of some tokens over ep=2 is not priced").with(some_tokens),
        silent("mixtral-8x7b", "dp=2").with(some_tokens),
        silent("mixtral-8x7b", "ep=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
