//! Channels of Mamba-1 are a multiple of tp, and heads where it has several.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::kinds::mamba::Mamba;

pub const RULE: Rule = Rule {
    id: "mamba/channels-over-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let Mamba::One(mamba) = case.mamba()? else { return None };
    let (what, count) = if mamba.heads > 1 { ("heads", mamba.heads) } else { ("channels", mamba.inner) };
    RULE.must_divide("mamba", what, count, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nam56r-mini", "tp=8", "cannot split `mamba` over tp=8: 60 channels are not a multiple of 8")
            .with(kinds::mamba1),
        found("nam56r-mini", "tp=4", "cannot split `mamba` over tp=4: 2 heads are not a multiple of 4")
            .with(kinds::mamba1_of_heads),
        silent("nam56r-mini", "tp=4").with(kinds::mamba1),
        silent("nam56r-mini", "tp=3"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
