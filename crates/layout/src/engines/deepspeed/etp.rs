//! AutoEP keeps experts whole (`module_inject/auto_ep_folding.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "deepspeed/etp",
    blame: Blame::Engine,
    reads: Reads::EP_SPLITS.and(Reads::ETP),
    quotes: &[(Engine::Deepspeed, "is reserved for expert-internal tensor parallelism and is not supported yet.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    case.moe().filter(|_| layout.ep.splits() && layout.etp.splits())?;
    let message = format!("AutoEP keeps experts whole, and etp is {}", layout.etp);
    Some(RULE.error("etp", message).fix("etp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "engine=deepspeed tp=2 ep=2", "AutoEP keeps experts whole, and etp is 2"),
        silent("mixtral-8x7b", "engine=deepspeed tp=2 ep=2 etp=1"),
        silent("mixtral-8x7b", "engine=deepspeed tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
