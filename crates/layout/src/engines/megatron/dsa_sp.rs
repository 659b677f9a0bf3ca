//! Sparse attention under tp takes tokens sharded along the sequence
//! (`transformer/experimental_attention_variant/absorbed_mla.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/dsa-sp",
    blame: Blame::Engine,
    reads: Reads::TP_SPLITS,
    quotes: &[(Engine::Megatron, "AbsorbedMLA requires sequence_parallel when tensor_model_parallel_size > 1")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.features.dsa().filter(|_| case.layout.tp.splits() && !case.layout.sp)?;
    Some(RULE.error("sp", "sparse attention with tp needs sequence parallelism").fix("sp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nam56r", "engine=megatron tp=2 sp=off", "sparse attention with tp needs sequence parallelism")
            .with(|r| r.features.dsa.as_mut().unwrap().on = true),
        silent("nam56r", "engine=megatron tp=2").with(|r| r.features.dsa.as_mut().unwrap().on = true),
        silent("nam56r", "engine=megatron tp=2 sp=off"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
