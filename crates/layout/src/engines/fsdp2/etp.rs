//! The emitted module splits whole experts; `fsdp/_fully_shard/_fsdp_param.py` would allow more.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "fsdp2/etp",
    blame: Blame::Engine,
    reads: Reads::EP_SPLITS.and(Reads::ETP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    if !layout.etp.splits() || !layout.ep.splits() {
        return None;
    }
    let message = format!("the emitted module splits whole experts only, and etp is {}", layout.etp);
    Some(RULE.error("etp", message).fix("etp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "engine=fsdp2 tp=2 ep=2", "the emitted module splits whole experts only, and etp is 2"),
        silent("mixtral-8x7b", "engine=fsdp2 tp=2 ep=2 etp=1"),
        silent("mixtral-8x7b", "engine=fsdp2 tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
