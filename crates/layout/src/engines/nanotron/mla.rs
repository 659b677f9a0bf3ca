//! There is no latent attention.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/mla",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[(Engine::Nanotron, "Unsupported model config")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.is_latent().then(|| RULE.error("attention", "nanotron has no latent attention"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("deepseek-v2-lite", "engine=nanotron", "nanotron has no latent attention"),
        silent("llama3-8b", "engine=nanotron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
