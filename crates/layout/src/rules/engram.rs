//! An engram branch stands between tensor-parallel regions, and hashes know no axis that cuts its rows.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "engram/replicated",
    surfaces: &[Surface::Engram],
    quality: Quality::Replicated,
    why: "a lookup by hashes of tokens and projections onto the hidden width, read by whole tokens",
    cannot_fix: "their size: sharded state makes tables smaller between passes, and every pass gathers them",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::branched;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] = &[
        held("llama3-8b", "dp=2", "layers.1.engram.table.weight", "replicated: 100000×64").with(branched),
        held("llama3-8b", "dp=2", "layers.1.engram.key.weight", "replicated: 4096×1024").with(branched),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
