//! Columns of dense MLPs are a multiple of tp.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "tp/ffn",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let mlp = case.recipe.mlp.as_ref().filter(|_| case.recipe.uses(Mixer::Mlp))?;
    RULE.must_divide("mlp", "columns", mlp.ffn, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "tp=3", "cannot split `mlp` over tp=3: 14336 columns are not a multiple of 3"),
        silent("llama3-8b", "tp=32"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
