//! Linear mixers of other kinds are not cut in time, and lightning attention not over heads either: its norm runs over
//! all of them (`modeling_minimax.py`, MiniMaxLightningAttention), and nobody sums it over ranks.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;
use recipe::kinds::linear::Linear;

pub const RULE: Rule = Rule {
    id: "linear/whole",
    blame: Blame::Missing,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (tp, cp) = (case.layout.tp, case.layout.cp);
    let linear = case.recipe.linear.as_ref().filter(|_| case.recipe.uses(Mixer::Linear))?;
    if tp.splits() && matches!(linear, Linear::Lightning(_)) {
        let message = format!("lightning attention's norm runs over all heads, and nobody sums it over tp={tp}");
        return Some(RULE.error("linear", message).fix("tp", vec![1]));
    }
    let message = format!("no rule cuts `linear` blocks in time: cp={cp} would have to hand their states on");
    cp.splits().then(|| RULE.error("linear", message).fix("cp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "tp=2", "lightning attention's norm runs over all heads, and nobody sums it over tp=2")
            .with(kinds::lightning),
        found("llama3-8b", "cp=2", "no rule cuts `linear` blocks in time: cp=2 would have to hand their states on")
            .with(kinds::linear),
        silent("llama3-8b", "tp=2").with(kinds::linear),
        silent("llama3-8b", "dp=2").with(kinds::lightning),
        silent("llama3-8b", "tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
