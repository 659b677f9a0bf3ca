//! `nemo_native` is compared with others at tp 2.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mode;

pub const RULE: Rule = Rule {
    id: "mode/nemo-native-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (layout, tp) = (case.layout, case.layout.tp.get());
    let is_refused = tp > 1 && !layout.sp;
    if layout.mode != Some(Mode::NemoNative) || is_refused || tp == 2 {
        return None;
    }
    let message = format!("mode nemo_native is pinned to tp 2, and a run at tp {tp} is not comparable with it");
    Some(RULE.warning("tp", message).hint("tp may be 2"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r",
            "mode=nemo_native tp=4",
            "mode nemo_native is pinned to tp 2, and a run at tp 4 is not comparable with it",
        ),
        silent("nam56r", "mode=nemo_native"),
        silent("nam56r", "mode=nemo_native tp=4 sp=off"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
