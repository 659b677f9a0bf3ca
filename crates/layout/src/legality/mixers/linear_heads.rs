//! Heads, or the channels of a short convolution, go to tensor ranks whole.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "linear/heads-over-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let linear = case.recipe.linear.as_ref().filter(|_| case.recipe.uses(Mixer::Linear))?;
    let (what, count) = linear.units(case.recipe.hidden);
    RULE.must_divide("linear", what, count, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "tp=8", "cannot split `linear` over tp=8: 4 heads are not a multiple of 8")
            .with(kinds::mlstm),
        silent("llama3-8b", "tp=4").with(kinds::mlstm),
        silent("llama3-8b", "tp=8").with(kinds::linear),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
