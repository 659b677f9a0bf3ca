//! Muon steps whole matrices, which Megatron-FSDP does not hold (`training/arguments.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::{Engine, ZeroStage};
use diag::{Blame, Finding};
use recipe::{Optimizer, Recipe};

pub const RULE: Rule = Rule {
    id: "megatron/muon-fsdp",
    blame: Blame::Engine,
    reads: Reads::ZERO,
    quotes: &[(Engine::Megatron, "Emerging optimizer does not support Megatron-FSDP for now.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let zero = case.layout.zero;
    if zero < ZeroStage::Two || !has_muon(case.recipe) {
        return None;
    }
    let message = format!("Muon runs with Megatron's layer-wise optimizer, not with FSDP (zero {zero})");
    Some(RULE.error("zero", message).fix("zero", vec![0, 1]))
}

pub(super) fn has_muon(recipe: &Recipe) -> bool {
    recipe.tensors().iter().any(|tensor| tensor.optimizer == Optimizer::Muon)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r",
            "engine=megatron zero=2",
            "Muon runs with Megatron's layer-wise optimizer, not with FSDP (zero 2)",
        ),
        silent("nam56r", "engine=megatron zero=1"),
        silent("llama3-8b", "engine=megatron zero=3"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
