//! The hybrid `G` does not set the variant that the output norm's recompute asks for
//! (`transformer/transformer_config.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::{Engine, RecomputeModule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "megatron/gdn-recompute",
    blame: Blame::Engine,
    reads: Reads::RECOMPUTE,
    quotes: &[(Engine::Megatron, "gdn_norm_out in recompute_modules is only supported with")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let is_named = case.layout.recompute.names(RecomputeModule::GdnNormOut);
    let finding = || RULE.error("recompute", "gdn_norm_out cannot be recomputed in a hybrid stack");
    (is_named && case.recipe.has(Mixer::GatedDelta)).then(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=megatron recompute=selective:gdn_norm_out",
            "gdn_norm_out cannot be recomputed in a hybrid stack",
        )
        .with(kinds::gated_delta),
        silent("llama3-8b", "engine=megatron recompute=selective:layernorm").with(kinds::gated_delta),
        silent("llama3-8b", "engine=megatron recompute=selective:gdn_norm_out"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
