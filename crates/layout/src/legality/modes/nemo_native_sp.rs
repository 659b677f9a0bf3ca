//! `nemo_native` is tensor parallel with sequence parallel.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mode;

pub const RULE: Rule = Rule {
    id: "mode/nemo-native-sp",
    blame: Blame::Layout,
    reads: Reads::TP_SPLITS,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    if layout.mode != Some(Mode::NemoNative) || !layout.tp.splits() || layout.sp {
        return None;
    }
    let message = "mode nemo_native is tensor parallel with sequence parallel, and sp is off";
    let finding = RULE.error("sp", message).fix("sp", vec![1]);
    Some(Finding { hint: Some("leave --no-sp out".to_string()), ..finding })
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r",
            "mode=nemo_native sp=off",
            "mode nemo_native is tensor parallel with sequence parallel, and sp is off",
        ),
        silent("nam56r", "mode=nemo_native"),
        silent("nam56r", "tp=2 sp=off"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
