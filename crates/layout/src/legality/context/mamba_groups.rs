//! Mamba-2 trades time for heads: a rank's groups and cp divide one another.

use super::{groups_fit, trading_share};
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use units::divisors;

pub const RULE: Rule = Rule {
    id: "cp/mamba-groups",
    blame: Blame::Layout,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[(Engine::Megatron, "cp_size must be evenly divisible by ngroups/tp_size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let ((heads, groups), cp) = (trading_share(case)?, case.layout.cp.get());
    if groups_fit(groups, cp) {
        return None;
    }
    let message = format!("cp={cp} and {groups} Mamba groups a rank do not divide one another");
    let fits = divisors(heads).into_iter().filter(|c| groups_fit(groups, *c)).collect();
    Some(RULE.error("mamba", message).fix("cp", fits))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nemotron-h-8b", "cp=3 seq=6000", "cp=3 and 8 Mamba groups a rank do not divide one another"),
        silent("nemotron-h-8b", "cp=16"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
