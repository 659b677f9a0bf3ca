//! Gated delta nets trade time for heads: a rank's key heads are a multiple of cp.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use units::divisors;

pub const RULE: Rule = Rule {
    id: "cp/gated-delta-heads",
    blame: Blame::Layout,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (key_heads, tp, cp) = (case.gated_delta()?.key_heads, case.layout.tp.get(), case.layout.cp.get());
    let heads = key_heads / tp;
    if !case.layout.cp.splits() || !key_heads.is_multiple_of(tp) || heads.is_multiple_of(cp) {
        return None;
    }
    let message = format!("cp={cp} exchanges time for heads, and {heads} key heads a rank are not a multiple of {cp}");
    Some(RULE.error("gated_delta", message).fix("cp", divisors(heads)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "tp=2 cp=4",
            "cp=4 exchanges time for heads, and 2 key heads a rank are not a multiple of 4",
        )
        .with(kinds::gated_delta),
        silent("llama3-8b", "tp=2 cp=2").with(kinds::gated_delta),
        silent("llama3-8b", "tp=4").with(kinds::gated_delta),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
