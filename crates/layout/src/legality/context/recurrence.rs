//! Mixers that can neither exchange heads nor carry state over a cut in time. Where the engine's own
//! mixers carry it, what the recipe says of another implementation does not count.

use crate::activations::carries_time;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::kinds::mamba::Mamba;

/// `cp/recurrence`: a mixer whose state nobody carries over a cut in time.
pub const RULE: Rule = Rule {
    id: "cp/recurrence",
    blame: Blame::Layout,
    reads: Reads::CP,
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let cp = case.layout.cp;
    let mut found = Vec::new();
    if !cp.splits() {
        return found;
    }
    let mut refuse = |object: &str, why: &str| {
        let message = format!("cp={cp} cuts time through `{object}`, whose state nobody carries: {why}");
        found.push(RULE.error(object, message).fix("cp", vec![1]));
    };
    match case.mamba() {
        Some(Mamba::One(_)) => refuse("mamba", "Mamba-1's scan takes no initial state"),
        Some(Mamba::Three(m)) if !carries_time(m.state_carry, case.layout) => {
            refuse("mamba", "its rotation and trapezoidal step reach across the cut (`mamba.state_carry`)");
        }
        _ => {}
    }
    if case.recurrent().is_some_and(|r| !carries_time(r.state_carry, case.layout)) {
        refuse("recurrent", "its step is non-linear, so the next part waits for it (`recurrent.state_carry`)");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::request;
    use crate::legality::example::{Example, found, silent};
    use crate::{activations, check};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r",
            "cp=2",
            "cp=2 cuts time through `mamba`, whose state nobody carries: its rotation and trapezoidal step reach across the cut (`mamba.state_carry`) | cp=2 cuts time through `recurrent`, whose state nobody carries: its step is non-linear, so the next part waits for it (`recurrent.state_carry`)",
        ),
        found(
            "nam56r",
            "cp=2 engine=megatron",
            "cp=2 cuts time through `mamba`, whose state nobody carries: its rotation and trapezoidal step reach across the cut (`mamba.state_carry`) | cp=2 cuts time through `recurrent`, whose state nobody carries: its step is non-linear, so the next part waits for it (`recurrent.state_carry`)",
        ),
        found(
            "nemotron-h-8b",
            "cp=2 engine=shardwright",
            "cp=2 cuts time through `mamba`, whose state nobody carries: Mamba-1's scan takes no initial state",
        )
        .with(kinds::mamba1),
        silent("nam56r", "cp=2 engine=shardwright"),
        silent("nam56r", "tp=2"),
        silent("nemotron-h-8b", "cp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }

    #[test]
    fn our_engine_hands_every_state_on() {
        let ours = check(&recipe::builtin::find("nam56r").unwrap(), &request("cp=2 engine=shardwright"));
        assert!(ours.is_legal() && ours.findings.iter().all(|f| f.severity < diag::Severity::Warning), "{ours:#?}");
        let contracts = activations::contracts(&ours.recipe, &ours.layout.unwrap());
        assert!(contracts.iter().all(|c| c.under_cp.contains("handed")), "{contracts:#?}");
    }
}
