//! `M` is Mamba-2.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::kinds::mamba::Mamba;

pub const RULE: Rule = Rule {
    id: "megatron/mamba1",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let Mamba::One(_) = case.mamba()? else { return None };
    Some(RULE.error("mamba", "Megatron-Core's `M` is Mamba-2, and the recipe has Mamba-1"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nemotron-h-8b", "engine=megatron", "Megatron-Core's `M` is Mamba-2, and the recipe has Mamba-1")
            .with(kinds::mamba1),
        silent("nemotron-h-8b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
