//! The global batch is a whole number of microbatches on every replica.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "batch/global",
    blame: Blame::Layout,
    reads: Reads::BATCH,
    quotes: &[(Engine::Megatron, "is not divisible by micro batch size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    let step = layout.micro_batch.saturating_mul(layout.dp.get());
    let (global, micro, dp, count) = (layout.global_batch, layout.micro_batch, layout.dp, layout.microbatches);
    let settled = step.saturating_mul(count);
    if global == settled {
        return None;
    }
    let message = if global.is_multiple_of(step) {
        format!("gbs {global} is not mbs {micro} × dp {dp} × {count} microbatches")
    } else {
        format!("gbs {global} is not a multiple of mbs {micro} × dp {dp} = {step}")
    };
    let hint = format!("gbs may be {settled} with {count} microbatches; any other must be a multiple of {step}");
    Some(RULE.error("gbs", message).fix("gbs", vec![settled]).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "dp=4 mbs=2 gbs=12", "gbs 12 is not a multiple of mbs 2 × dp 4 = 8"),
        found("llama3-8b", "dp=4 mbs=2 gbs=16 microbatches=3", "gbs 16 is not mbs 2 × dp 4 × 3 microbatches"),
        silent("llama3-8b", "dp=4 mbs=2 gbs=16"),
        silent("llama3-8b", "dp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
