//! Norms, embeddings and heads of other models.

use crate::engines::refuse_edges;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/norms",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_edges(&RULE, "nanotron", &[], case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, four_streams, silent};
    use recipe::kinds::{Norm, NormPlace};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=nanotron", "nanotron has no norms behind blocks")
            .with(|r| r.norm_place = NormPlace::Both),
        found("llama3-8b", "engine=nanotron", "nanotron has no norm without a scale or a shift")
            .with(|r| r.norm = Norm::LayerNormScale),
        found("llama3-8b", "engine=nanotron", "nanotron has no bias of the output head").with(|r| r.head_bias = true),
        found("llama3-8b", "engine=nanotron", "nanotron has no hyper-connections").with(four_streams),
        silent("llama3-8b", "engine=nanotron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
