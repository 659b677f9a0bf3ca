//! Groups of Mamba-2 and Mamba-3 are a multiple of tp.

use super::heads_and_groups;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "mamba/groups-over-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[(Engine::Megatron, "ngroups must be evenly divisible by tp_size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (_, groups) = heads_and_groups(case.mamba()?)?;
    RULE.must_divide("mamba", "groups", groups, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nemotron-h-8b", "tp=16", "cannot split `mamba` over tp=16: 8 groups are not a multiple of 16"),
        silent("nemotron-h-8b", "tp=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
