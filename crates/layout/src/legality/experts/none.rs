//! Axes of experts split nothing where there are none.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use units::Degree;

pub const RULE: Rule = Rule {
    id: "ep/no-experts",
    blame: Blame::Layout,
    reads: Reads::EP_SPLITS.and(Reads::ETP),
    quotes: &[(Engine::Megatron, "num_moe_experts must be non None to use expert-parallel.")],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    if case.moe().is_some() {
        return Vec::new();
    }
    let axes = [("ep", case.layout.ep), ("etp", case.layout.etp)];
    let refuse = |(key, degree): (&'static str, Degree)| {
        RULE.error(key, format!("{key}={degree} splits experts, and the recipe has none")).fix(key, vec![1])
    };
    axes.into_iter().filter(|(_, degree)| degree.splits()).map(refuse).collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "ep=2 etp=4",
            "ep=2 splits experts, and the recipe has none | etp=4 splits experts, and the recipe has none",
        ),
        silent("llama3-8b", "tp=4"),
        silent("mixtral-8x7b", "ep=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
