//! The emitted module does not cut the sequence.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "fsdp2/cp",
    blame: Blame::Engine,
    reads: Reads::CP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let cp = case.layout.cp;
    let message = format!("the emitted module does not cut the sequence over ranks, and cp is {cp}");
    cp.splits().then(|| RULE.error("cp", message).fix("cp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=fsdp2 cp=2", "the emitted module does not cut the sequence over ranks, and cp is 2"),
        silent("llama3-8b", "engine=fsdp2 tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
