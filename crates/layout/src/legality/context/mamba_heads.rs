//! Mamba-2 trades time for heads: a rank's heads are a multiple of cp.

use super::trading_share;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use units::divisors;

pub const RULE: Rule = Rule {
    id: "cp/mamba-heads",
    blame: Blame::Layout,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[(Engine::Megatron, "nheads must be evenly divisible by tp_size * cp_size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let ((heads, _), cp) = (trading_share(case)?, case.layout.cp.get());
    if heads.is_multiple_of(cp) {
        return None;
    }
    let message =
        format!("cp={cp} exchanges time for heads, and {heads} Mamba heads a rank are not a multiple of {cp}");
    Some(RULE.error("mamba", message).fix("cp", divisors(heads)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nemotron-h-8b",
            "cp=3 seq=6000",
            "cp=3 exchanges time for heads, and 128 Mamba heads a rank are not a multiple of 3",
        ),
        silent("nemotron-h-8b", "tp=2 cp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
