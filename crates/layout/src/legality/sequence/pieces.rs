//! Under sequence parallelism a sequence divides over tp and cp.

use crate::legality::multiples_near;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "sp/sequence",
    blame: Blame::Layout,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[(Engine::Megatron, "First dimension of the tensor should be divisible by tensor parallel size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    let (tp, cp) = (layout.tp.get(), layout.cp.get());
    let pieces = tp * cp;
    if !layout.sp || layout.sequence.is_multiple_of(pieces) {
        return None;
    }
    let message = format!(
        "sequence {} does not divide into tp {tp} × cp {cp} pieces, so a reduce-scatter has no even shares",
        layout.sequence
    );
    Some(RULE.error("sequence", message).fix("seq", multiples_near(layout.sequence, 2 * pieces)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "tp=4 seq=4098",
            "sequence 4098 does not divide into tp 4 × cp 1 pieces, so a reduce-scatter has no even shares",
        ),
        silent("llama3-8b", "tp=4 seq=4098 sp=off"),
        silent("llama3-8b", "tp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
