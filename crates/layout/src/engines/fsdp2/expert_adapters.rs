//! Adapters beside a bank of experts multiply in torch's grouped product, which takes rows of whole 16 bytes.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Surface;

pub const RULE: Rule = Rule {
    id: "fsdp2/expert-adapters",
    blame: Blame::Engine,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let rank = case.recipe.adapters()?.rank;
    let bytes = rank * case.recipe.precision.weights.bits() / 8;
    // In 32 bits experts multiply one after another.
    let is_grouped = case.recipe.precision.weights.bits() == 16;
    let has_bank = || case.recipe.tensors().iter().any(|t| t.surface == Surface::AdapterDown && t.acting.is_some());
    if !is_grouped || bytes.is_multiple_of(16) || !has_bank() {
        return None;
    }
    let message =
        format!("a rank of {rank} is {bytes} bytes, and the grouped product of experts takes multiples of 16");
    Some(RULE.error("adapters.rank", message).hint("use a rank that is a multiple of 8"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, adapted, found, silent};
    use recipe::Recipe;

    fn of_rank(recipe: &mut Recipe, rank: u64) {
        adapted(recipe);
        let adapters = &mut recipe.features.adapters.as_mut().unwrap().value;
        (adapters.rank, adapters.targets) = (rank, vec!["expert-in".to_string()]);
    }

    pub const EXAMPLES: &[Example] = &[
        found(
            "mixtral-8x7b",
            "engine=fsdp2",
            "a rank of 12 is 24 bytes, and the grouped product of experts takes multiples of 16",
        )
        .with(|r| of_rank(r, 12)),
        silent("mixtral-8x7b", "engine=fsdp2").with(|r| of_rank(r, 16)),
        silent("mixtral-8x7b", "engine=fsdp2").with(adapted),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
