//! Heads of Mamba-2 and Mamba-3 are a multiple of tp. They are a multiple of groups, so groups decide; both are
//! named when both fail.

use super::heads_and_groups;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "mamba/heads-over-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[(Engine::Megatron, "nheads must be evenly divisble by tp_size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (heads, _) = heads_and_groups(case.mamba()?)?;
    RULE.must_divide("mamba", "heads", heads, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nam56r-mini", "tp=16", "cannot split `mamba` over tp=16: 56 heads are not a multiple of 16"),
        found("nemotron-h-8b", "tp=3", "cannot split `mamba` over tp=3: 128 heads are not a multiple of 3"),
        silent("nam56r-mini", "tp=8"),
        silent("nam56r-mini", "tp=16").with(kinds::mamba1),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
