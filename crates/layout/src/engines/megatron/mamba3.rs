//! `M` is Mamba-2; a mode says what stands in place of Mamba-3, which has one input a head.

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
    let Mamba::Three(mamba) = case.mamba()? else { return None };
    if case.layout.mode.is_none() {
        let finding = RULE.error("mamba", "Megatron-Core's `M` is Mamba-2, and the recipe has Mamba-3");
        return Some(finding.hint(case.recipe.mode_hint()));
    }
    let inputs = Some(mamba.mimo_rank).filter(|inputs| *inputs > 1)?;
    let message = format!("the Mamba-3 mixer has one input a head, and the recipe gives a head {inputs}");
    Some(RULE.error("mamba.mimo_rank", message).hint("mimo_rank may be 1"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};
    use recipe::Recipe;
    use recipe::kinds::mamba::Mamba;

    pub const EXAMPLES: &[Example] = &[
        found("nam56r", "engine=megatron", "Megatron-Core's `M` is Mamba-2, and the recipe has Mamba-3"),
        found(
            "nam56r",
            "engine=megatron mode=author_dp",
            "the Mamba-3 mixer has one input a head, and the recipe gives a head 4",
        )
        .with(four_inputs),
        silent("nam56r", "engine=megatron mode=author_dp tp=2"),
        silent("nam56r", "engine=megatron mode=nemo_native"),
        silent("nemotron-h-8b", "engine=megatron"),
    ];

    fn four_inputs(recipe: &mut Recipe) {
        if let Some(Mamba::Three(mamba)) = &mut recipe.mamba {
            mamba.mimo_rank = 4;
        }
    }

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
