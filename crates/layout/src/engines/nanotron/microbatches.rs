//! 1F1B fills all stages but one (`parallel/pipeline_parallel/engine.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::{Engine, Schedule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/microbatches",
    blame: Blame::Engine,
    reads: Reads::PP.and(Reads::SCHEDULE).and(Reads::MICROBATCHES),
    quotes: &[(Engine::Nanotron, "must be at least PP_SIZE-1=")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (layout, pp) = (case.layout, case.layout.pp.get());
    let is_one_f1b = layout.pp.splits() && layout.schedule == Schedule::OneF1b;
    if !is_one_f1b || layout.microbatches + 1 >= pp {
        return None;
    }
    let message = format!("1f1b needs at least pp-1 = {} microbatches", pp - 1);
    Some(RULE.error("microbatches", message).fix("microbatches", vec![pp - 1, pp]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=nanotron pp=4 microbatches=2", "1f1b needs at least pp-1 = 3 microbatches"),
        silent("llama3-8b", "engine=nanotron pp=4 microbatches=3"),
        silent("llama3-8b", "engine=nanotron pp=4 schedule=gpipe microbatches=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
