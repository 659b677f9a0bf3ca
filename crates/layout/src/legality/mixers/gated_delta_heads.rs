//! Key heads of gated delta nets are a multiple of tp; value heads are a multiple of key heads, so key
//! heads decide.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "gated-delta/heads-over-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    RULE.must_divide("gated_delta", "key heads", case.gated_delta()?.key_heads, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "tp=8", "cannot split `gated_delta` over tp=8: 4 key heads are not a multiple of 8")
            .with(kinds::gated_delta),
        silent("llama3-8b", "tp=4").with(kinds::gated_delta),
        silent("llama3-8b", "tp=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
