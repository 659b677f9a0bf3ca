//! Token rows are padded until every tensor-parallel rank holds as many.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "tp/vocab-padding",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (vocab, layout) = (case.recipe.vocab, case.layout);
    let padded = layout.padded_vocab(vocab);
    if padded == vocab {
        return None;
    }
    let message = format!(
        "the vocabulary is padded from {vocab} to {padded} rows, a multiple of tp {} × {}",
        layout.tp, layout.vocab_multiple
    );
    Some(RULE.note("vocab", message).hint("per-rank counts include the padding; --vocab-multiple sets the step"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "deepseek-v3",
            "tp=4 vocab-multiple=128",
            "the vocabulary is padded from 129280 to 129536 rows, a multiple of tp 4 × 128",
        ),
        silent("deepseek-v3", "tp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
