//! Sparse attention (`D`) reads latents (`models/hybrid/hybrid_layer_allocation.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/dsa-mla",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[(Engine::Megatron, "Not supported to have both Attention and MLA/DSA in one model")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.features.dsa().filter(|_| !case.recipe.is_latent())?;
    let finding = RULE.error("features.dsa", "sparse attention (`D`) may not stand with `*`");
    Some(finding.hint("switch `mla` on, or `dsa` off"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, switch_on};
    use recipe::Feature;

    pub const EXAMPLES: &[Example] = &[
        found("nam56r", "engine=megatron", "sparse attention (`D`) may not stand with `*`")
            .with(|r| r.features.dsa.as_mut().unwrap().on = true),
        silent("nam56r", "engine=megatron").with(|r| {
            switch_on(r, Feature::Mla);
            switch_on(r, Feature::Dsa);
        }),
        silent("nam56r", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
