//! One `activation_func` and `gated_linear_unit` for the whole model (`transformer/transformer_config.py`). A
//! shared expert's own one is a named seam under a mode.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "megatron/one-activation",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let recipe = case.recipe;
    let mlp = recipe.mlp.as_ref().filter(|_| recipe.uses(Mixer::Mlp)).map(|m| ("mlp", m.activation));
    let moe = case.moe().map(|m| ("moe", m.activation));
    let shared = case.moe().and_then(|m| m.shared.as_ref()).filter(|_| case.layout.mode.is_none());
    let shared = shared.map(|s| ("moe.shared", s.activation));
    let kinds: Vec<_> = [mlp, moe, shared].into_iter().flatten().collect();
    if kinds.iter().all(|(_, activation)| *activation == kinds[0].1) {
        return None;
    }
    let list = kinds.iter().map(|(name, activation)| format!("{name} {activation}")).collect::<Vec<_>>().join(", ");
    let message = format!("Megatron-Core has one activation for the whole model, and the recipe has {list}");
    let hint = match shared {
        Some(_) => recipe.mode_hint(),
        None => "give `[mlp]` and `[moe]` one activation, or pick another engine".to_string(),
    };
    Some(RULE.error("activation", message).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r",
            "engine=megatron",
            "Megatron-Core has one activation for the whole model, and the recipe has moe relu2, moe.shared swiglu",
        ),
        silent("nam56r", "engine=megatron mode=nemo_native"),
        silent("deepseek-v2-lite", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
