//! Layers that do not divide over chunks.

use super::chunks;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Balance;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "pp/uneven",
    blame: Blame::Layout,
    reads: Reads::PP.and(Reads::VPP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    if layout.boundaries.is_some() || layout.balance != Balance::Layers {
        return None;
    }
    let counts: Vec<usize> = chunks(case)?.into_iter().map(|layers| layers.len()).collect();
    let (least, most) = (counts.iter().min()?, counts.iter().max()?);
    if least == most {
        return None;
    }
    let depth = case.recipe.depth();
    let message = format!("{depth} layers over {} chunks come out uneven: {least} to {most} a chunk", counts.len());
    Some(RULE.note("pp", message).hint("spare layers go to the middle; --balance or --boundaries say otherwise"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "pp=3", "32 layers over 3 chunks come out uneven: 10 to 11 a chunk"),
        silent("llama3-8b", "pp=4"),
        silent("llama3-8b", "pp=3 balance=params"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
