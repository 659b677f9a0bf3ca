//! Adapters beside frozen weights run on the native PyTorch lane, whose program registers their hooks.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "adapters/engine",
    blame: Blame::Engine,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let engine = case.layout.engine.filter(|engine| *engine != Engine::Fsdp2)?;
    case.recipe.adapters()?;
    let message =
        format!("what `{engine}` is given here trains every weight, and the recipe's `[adapters]` freeze them");
    Some(RULE.error("adapters", message).hint("use --engine fsdp2, or --without adapters"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, adapted, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=megatron",
            "what `megatron` is given here trains every weight, and the recipe's `[adapters]` freeze them",
        )
        .with(adapted),
        found(
            "llama3-8b",
            "engine=shardwright",
            "what `shardwright` is given here trains every weight, and the recipe's `[adapters]` freeze them",
        )
        .with(adapted),
        silent("llama3-8b", "engine=fsdp2").with(adapted),
        silent("llama3-8b", "engine=megatron"),
        silent("llama3-8b", "tp=2").with(adapted),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
