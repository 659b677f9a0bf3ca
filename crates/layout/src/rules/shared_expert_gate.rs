//! One scalar a token; every rank computes it.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "moe/shared-gate-replicated",
    surfaces: &[Surface::SharedExpertGate],
    quality: Quality::Replicated,
    why: "a vector as long as the hidden state",
    cannot_fix: "",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] =
        &[held("deepseek-v2-lite", "tp=4", "layers.1.moe.shared.gate.weight", "replicated: 1×2048")
            .with(|r| r.moe.as_mut().unwrap().shared.as_mut().unwrap().gate = true)];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
