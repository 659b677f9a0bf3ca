//! Typed boundaries make as many chunks as there are, each with a layer.

use super::has_layers;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "pp/boundaries",
    blame: Blame::Layout,
    reads: Reads::PP.and(Reads::VPP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (given, num_chunks) = (case.layout.boundaries.as_ref()?, case.layout.chunks() as usize);
    if !has_layers(case) {
        return None;
    }
    starts(given, num_chunks, case.recipe.depth()).err()
}

/// Chunk starts from typed boundaries: the first layer of every chunk but the first.
pub(crate) fn starts(given: &[u64], num_chunks: usize, depth: usize) -> Result<Vec<usize>, Finding> {
    let refuse = |message: String| {
        let hint = format!("give {} rising layer numbers below {depth}, one for each cut", num_chunks - 1);
        Err(RULE.error("boundaries", message).hint(hint))
    };
    let makes = given.len() + 1;
    if makes != num_chunks {
        return refuse(format!("{} boundaries make {makes} chunks, and pp·vpp is {num_chunks}", given.len()));
    }
    let mut starts = vec![0];
    for &start in given {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        if start <= starts[starts.len() - 1] || start >= depth {
            return refuse(format!("boundary {start} leaves a chunk without layers"));
        }
        starts.push(start);
    }
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "pp=2 boundaries=8,16", "2 boundaries make 3 chunks, and pp·vpp is 2"),
        found("llama3-8b", "pp=3 boundaries=16,8", "boundary 8 leaves a chunk without layers"),
        found("llama3-8b", "pp=2 boundaries=32", "boundary 32 leaves a chunk without layers"),
        silent("llama3-8b", "pp=3 boundaries=8,16"),
        silent("llama3-8b", "pp=3"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
