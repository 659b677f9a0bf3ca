//! `M` is Mamba-2; a mode says what stands in place of Mamba-3.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::kinds::mamba::Mamba;

pub const RULE: Rule = Rule {
    id: "megatron/mamba3",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (Mamba::Three(_), None) = (case.mamba()?, case.layout.mode) else { return None };
    let finding = RULE.error("mamba", "Megatron-Core's `M` is Mamba-2, and the recipe has Mamba-3");
    Some(finding.hint(case.recipe.mode_hint()))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nam56r", "engine=megatron", "Megatron-Core's `M` is Mamba-2, and the recipe has Mamba-3"),
        silent("nam56r", "engine=megatron mode=nemo_native"),
        silent("nemotron-h-8b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
