//! Replicas, or shards of everything (`distributed/parallel_dims.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::ZeroStage;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "torchtitan/zero",
    blame: Blame::Engine,
    reads: Reads::ZERO.and(Reads::EP_SPLITS),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    match layout.zero {
        ZeroStage::One => {
            let message = "torchtitan replicates (zero 0) or shards weights too (zero 2, 3)";
            Some(RULE.error("zero", message).fix("zero", vec![0, 2, 3]))
        }
        ZeroStage::Zero if layout.ep.splits() => {
            let ep = layout.ep;
            let message = format!("experts are dealt out over sharded ranks, and zero 0 shards none (ep {ep})");
            Some(RULE.error("zero", message).fix("zero", vec![2, 3]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "mixtral-8x7b",
            "engine=torchtitan zero=1",
            "torchtitan replicates (zero 0) or shards weights too (zero 2, 3)",
        ),
        found(
            "mixtral-8x7b",
            "engine=torchtitan zero=0 ep=2",
            "experts are dealt out over sharded ranks, and zero 0 shards none (ep 2)",
        ),
        silent("mixtral-8x7b", "engine=torchtitan zero=0"),
        silent("mixtral-8x7b", "engine=torchtitan zero=3 ep=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
