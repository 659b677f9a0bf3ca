//! A sequence divides into an early and a late part for every context rank.

use crate::legality::multiples_near;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "cp/sequence",
    blame: Blame::Layout,
    reads: Reads::CP,
    quotes: &[(Engine::Megatron, "seq-length should be a multiple of 2 * context-parallel-size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (sequence, cp) = (case.layout.sequence, case.layout.cp);
    let parts = 2 * cp.get();
    if !cp.splits() || sequence.is_multiple_of(parts) {
        return None;
    }
    let message = format!(
        "sequence {sequence} does not divide into 2·cp = {parts} pieces, and causal balance gives each rank an early and a late one"
    );
    Some(RULE.error("sequence", message).fix("seq", multiples_near(sequence, parts)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "cp=4 seq=4100",
            "sequence 4100 does not divide into 2·cp = 8 pieces, and causal balance gives each rank an early and a late one",
        ),
        silent("llama3-8b", "cp=4 seq=4096"),
        silent("llama3-8b", "seq=4097"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
