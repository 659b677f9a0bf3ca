//! There is no recurrent block; a mode says what stands in its place.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "megatron/recurrent",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    if !case.recipe.uses(Mixer::Recurrent) || case.layout.mode.is_some() {
        return None;
    }
    let layers = recipe::megatron::numbers(&case.recipe.layers_with(Mixer::Recurrent));
    let finding = RULE.error("recurrent", format!("Megatron-Core has no recurrent block (`R`, layers {layers})"));
    Some(finding.hint(case.recipe.mode_hint()))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nam56r-mini", "engine=megatron", "Megatron-Core has no recurrent block (`R`, layers 11)"),
        silent("nam56r-mini", "engine=megatron mode=nemo_native"),
        silent("llama3-8b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
