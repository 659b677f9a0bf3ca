//! Ulysses exchanges heads of attention alone.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "deepspeed/cp-recurrence",
    blame: Blame::Engine,
    reads: Reads::CP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let mut stateful = [Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta, Mixer::Linear].into_iter();
    if !case.layout.cp.splits() || !stateful.any(|mixer| case.recipe.uses(mixer)) {
        return None;
    }
    let message = "Ulysses wraps attention only: a recurrence would see a part of its timeline";
    Some(RULE.error("cp", message).fix("cp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nemotron-h-8b",
            "engine=deepspeed cp=2",
            "Ulysses wraps attention only: a recurrence would see a part of its timeline",
        ),
        silent("nemotron-h-8b", "engine=deepspeed tp=2"),
        silent("llama3-8b", "engine=deepspeed cp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
