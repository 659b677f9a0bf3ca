//! Beyond the optimizer state, ZeRO is another wrapper than DDP.

use super::muon_fsdp::has_muon;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::ZeroStage;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/fsdp",
    blame: Blame::Engine,
    reads: Reads::ZERO,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let zero = case.layout.zero;
    if zero < ZeroStage::Two || has_muon(case.recipe) {
        return None;
    }
    let note = RULE.note("zero", format!("zero {zero} runs as Megatron-FSDP, with its own checkpoint format"));
    Some(note.hint("needs --ckpt-format fsdp_dtensor and CUDA_DEVICE_MAX_CONNECTIONS other than 1"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=megatron zero=3", "zero 3 runs as Megatron-FSDP, with its own checkpoint format"),
        silent("llama3-8b", "engine=megatron zero=1"),
        silent("nam56r", "engine=megatron zero=3"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
