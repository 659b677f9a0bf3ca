//! Every stage has a layer.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "pp/depth",
    blame: Blame::Layout,
    reads: Reads::PP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (depth, pp) = (case.recipe.depth() as u64, case.layout.pp.get());
    if pp <= depth {
        return None;
    }
    let finding = RULE.error("pp", format!("{depth} layers do not fill {pp} stages")).fix("pp", (1..=depth).collect());
    Some(Finding { hint: Some(format!("pp may be 1 to {depth}")), ..finding })
}

/// The same of chunks, said by whoever cuts the depth without having asked for legality.
pub(crate) fn too_deep(num_chunks: usize, depth: usize) -> Finding {
    RULE.error("pp", format!("{depth} layers do not fill {num_chunks} chunks"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] =
        &[found("llama3-8b", "pp=33", "32 layers do not fill 33 stages"), silent("llama3-8b", "pp=32")];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
