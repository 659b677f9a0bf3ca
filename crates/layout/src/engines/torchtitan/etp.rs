//! No setting cuts an expert's matrices.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "torchtitan/etp",
    blame: Blame::Engine,
    reads: Reads::EP_SPLITS.and(Reads::ETP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    case.moe().filter(|_| layout.etp.splits() && layout.ep.splits())?;
    let message = format!("torchtitan has no expert tensor parallelism, and etp is {}", layout.etp);
    Some(RULE.error("etp", message).fix("etp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "mixtral-8x7b",
            "engine=torchtitan tp=2 ep=2",
            "torchtitan has no expert tensor parallelism, and etp is 2",
        ),
        silent("mixtral-8x7b", "engine=torchtitan tp=2 ep=2 etp=1"),
        silent("mixtral-8x7b", "engine=torchtitan tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
