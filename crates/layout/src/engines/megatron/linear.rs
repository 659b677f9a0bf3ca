//! Linear mixers and shared blocks, which its hybrid stack has no symbol for.

use crate::engines::refuse_mixers;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "megatron/linear",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    refuse_mixers(&RULE, "Megatron-Core", &[Mixer::Linear, Mixer::Shared], case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=megatron", "Megatron-Core has no linear block (`L`, layers 32)").with(kinds::linear),
        found("llama3-8b", "engine=megatron", "Megatron-Core has no shared block (`S`, layers 32, 33)")
            .with(kinds::shared),
        silent("llama3-8b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
