//! Stages even in bytes or seconds are cut by whoever has prices; `layout` has none.

use super::has_layers;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Balance;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "pp/unpriced-balance",
    blame: Blame::Usage,
    reads: Reads::PP.and(Reads::VPP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (layout, balance) = (case.layout, case.layout.balance);
    let is_priced = matches!(balance, Balance::Memory | Balance::Time);
    (is_priced && layout.boundaries.is_none() && has_layers(case)).then(|| refuse(balance))
}

/// Refuses a balance that only prices can settle.
pub(crate) fn refuse(balance: Balance) -> Finding {
    let finding = RULE.error("balance", format!("stages even in {balance} are cut by what a cluster makes of them"));
    finding.hint(format!(
        "`shardwright stages --balance {balance} --on CLUSTER` says the boundaries, and `plan` tries them"
    ))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "pp=2 balance=memory", "stages even in memory are cut by what a cluster makes of them"),
        found("llama3-8b", "pp=2 balance=time", "stages even in time are cut by what a cluster makes of them"),
        silent("llama3-8b", "pp=2 balance=time boundaries=16"),
        silent("llama3-8b", "pp=2 balance=params"),
        silent("llama3-8b", "pp=8 vpp=8 balance=memory"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
