//! Ranks are reshaped to ep·world places (`parallel/context.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/ep",
    blame: Blame::Engine,
    reads: Reads::EP_SPLITS,
    quotes: &[(Engine::Nanotron, "# TODO: ep should be a subset of dp")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let ep = case.layout.ep;
    let message = format!("ep={ep} cannot run: ranks are reshaped to ep times the world");
    ep.splits().then(|| RULE.error("ep", message).fix("ep", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "engine=nanotron ep=2", "ep=2 cannot run: ranks are reshaped to ep times the world"),
        silent("mixtral-8x7b", "engine=nanotron tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
