//! The emitted module adds adapters to projections that every token passes.

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
    case.recipe.adapters()?;
    let tensors = case.recipe.tensors();
    let bank = tensors.iter().find(|t| t.surface == Surface::AdapterDown && t.acting.is_some())?;
    let name = recipe::adapted_module(bank);
    let name = name.strip_suffix(".lora_a").unwrap_or(&name);
    let message = format!("the emitted module has no adapters beside a bank of routed experts (`{name}`)");
    Some(RULE.error("adapters.targets", message).hint(format!("take `{name}` and its surface out of the targets")))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, adapted, found, silent};
    use recipe::Recipe;

    fn on_experts(recipe: &mut Recipe) {
        adapted(recipe);
        recipe.features.adapters.as_mut().unwrap().value.targets = vec!["expert-in".to_string()];
    }

    pub const EXAMPLES: &[Example] = &[
        found(
            "mixtral-8x7b",
            "engine=fsdp2",
            "the emitted module has no adapters beside a bank of routed experts (`moe.experts.fc1`)",
        )
        .with(on_experts),
        silent("mixtral-8x7b", "engine=fsdp2").with(adapted),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
