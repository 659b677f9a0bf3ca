//! Experts keep their whole width on every rank (`nn/moe.py`).

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/etp",
    blame: Blame::Engine,
    reads: Reads::ETP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let etp = case.layout.etp;
    case.moe().filter(|_| etp.splits())?;
    let message = format!("experts keep their whole width on every rank, and etp is {etp}");
    Some(RULE.error("etp", message).fix("etp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "engine=nanotron tp=2", "experts keep their whole width on every rank, and etp is 2"),
        silent("mixtral-8x7b", "engine=nanotron tp=2 etp=1"),
        silent("llama3-8b", "engine=nanotron tp=2 etp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
