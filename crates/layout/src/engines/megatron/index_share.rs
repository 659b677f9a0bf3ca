//! Layers that read another's choice stand on its stage (`models/gpt/experimental_attention_variant_module_specs.py`).
//! Cuts at indexers alone would do, and are not looked for.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/index-share",
    blame: Blame::Engine,
    reads: Reads::PP,
    quotes: &[(Engine::Megatron, "Cross-layer top-k sharing does not cross PP boundaries.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.features.dsa().filter(|dsa| !dsa.reuse.is_empty() && case.layout.pp.splits())?;
    let finding = RULE.error("features.dsa.reuse", "a choice of tokens does not cross from stage to stage");
    Some(finding.hint("pp may be 1, or take `reuse` out"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, switch_on};
    use recipe::Feature;

    pub const EXAMPLES: &[Example] = &[
        found("nam56r", "engine=megatron pp=2", "a choice of tokens does not cross from stage to stage").with(|r| {
            switch_on(r, Feature::Dsa);
            r.features.dsa.as_mut().unwrap().value.reuse = vec![2];
        }),
        silent("nam56r", "engine=megatron").with(|r| {
            switch_on(r, Feature::Dsa);
            r.features.dsa.as_mut().unwrap().value.reuse = vec![2];
        }),
        silent("nam56r", "engine=megatron pp=2").with(|r| switch_on(r, Feature::Dsa)),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
