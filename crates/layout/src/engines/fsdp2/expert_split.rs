//! The emitted module keeps experts whole or cuts them over all of tp.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "fsdp2/expert-split",
    blame: Blame::Engine,
    reads: Reads::TP.and(Reads::ETP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (tp, etp) = (case.layout.tp, case.layout.etp);
    case.moe().filter(|_| etp != tp && etp.splits())?;
    let message = format!("experts are whole or cut like everything else, and etp is {etp} of tp {tp}");
    Some(RULE.error("etp", message).fix("etp", vec![1, tp.get()]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "mixtral-8x7b",
            "engine=fsdp2 tp=4 etp=2",
            "experts are whole or cut like everything else, and etp is 2 of tp 4",
        ),
        silent("mixtral-8x7b", "engine=fsdp2 tp=4 etp=1"),
        silent("mixtral-8x7b", "engine=fsdp2 tp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
