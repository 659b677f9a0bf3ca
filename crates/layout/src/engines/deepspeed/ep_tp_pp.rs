//! AutoEP with AutoTP runs on one stage (`module_inject/auto_ep_folding.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "deepspeed/ep-tp-pp",
    blame: Blame::Engine,
    reads: Reads::TP_SPLITS.and(Reads::EP_SPLITS).and(Reads::PP_SPLITS),
    quotes: &[(Engine::Deepspeed, "AutoEP+AutoTP folding currently supports pp_size=1 only")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    let finding = || RULE.error("pp", "ep with tp runs without a pipeline only").fix("pp", vec![1]);
    (layout.ep.splits() && layout.tp.splits() && layout.pp.splits()).then(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "engine=deepspeed tp=2 ep=2 pp=2", "ep with tp runs without a pipeline only"),
        silent("mixtral-8x7b", "engine=deepspeed tp=2 ep=2"),
        silent("mixtral-8x7b", "engine=deepspeed ep=2 pp=2"),
        silent("mixtral-8x7b", "engine=deepspeed tp=2 pp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
