//! Experts under tensor parallelism take tokens that are sharded along the sequence.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "sp/required",
    blame: Blame::Layout,
    reads: Reads::TP_SPLITS,
    quotes: &[(Engine::Megatron, "During training, performance may degrade if MoE and tensor parallelism")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    case.moe()?;
    if !layout.tp.splits() || layout.sp {
        return None;
    }
    let message = format!(
        "experts with tp={} need sequence parallelism: dispatch takes sequence-sharded tokens and must give them back so",
        layout.tp
    );
    let finding = RULE.error("sp", message).fix("sp", vec![1]);
    Some(Finding { hint: Some("leave --no-sp out, or use --tp 1".to_string()), ..finding })
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "mixtral-8x7b",
            "tp=2 sp=off",
            "experts with tp=2 need sequence parallelism: dispatch takes sequence-sharded tokens and must give them back so",
        ),
        silent("mixtral-8x7b", "tp=2"),
        silent("llama3-8b", "tp=2 sp=off"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
