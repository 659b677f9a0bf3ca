//! Sparse attention gathers keys over cp (`transformer/transformer_config.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/dsa-cp",
    blame: Blame::Engine,
    reads: Reads::CP,
    quotes: &[(Engine::Megatron, "DSAttention context parallelism currently supports cp_comm_type=allgather only.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.features.dsa().filter(|_| case.layout.cp.splits())?;
    Some(RULE.note("cp", "context parallelism under sparse attention must gather, not ring"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nam56r", "engine=megatron cp=2", "context parallelism under sparse attention must gather, not ring")
            .with(|r| r.features.dsa.as_mut().unwrap().on = true),
        silent("nam56r", "engine=megatron tp=2").with(|r| r.features.dsa.as_mut().unwrap().on = true),
        silent("nam56r", "engine=megatron cp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
