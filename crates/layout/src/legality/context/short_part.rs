//! A convolution's tail lies within one part of the timeline.

use super::Parts;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "cp/short-part",
    blame: Blame::Layout,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let Some(Parts { tokens, tails, fits, .. }) = Parts::of(case) else { return Vec::new() };
    let refuse = |(object, tail): (&str, u64)| {
        let message =
            format!("a part of {tokens} tokens is shorter than the {tail} that `{object}`'s convolution looks back");
        RULE.error(object, message).fix("seq", fits.clone())
    };
    tails.into_iter().filter(|(_, tail)| tokens < *tail).map(refuse).collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::check;
    use crate::legality::example::request;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r-mini",
            "cp=2 seq=8 engine=shardwright",
            "a part of 2 tokens is shorter than the 3 that `recurrent`'s convolution looks back",
        ),
        found(
            "nemotron-h-8b",
            "tp=8 cp=2 seq=8 engine=shardwright",
            "a part of 2 tokens is shorter than the 3 that `mamba`'s convolution looks back",
        ),
        silent("nemotron-h-8b", "cp=2 seq=8 engine=shardwright"),
        silent("nam56r-mini", "cp=2 seq=32 engine=shardwright"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }

    #[test]
    fn what_mends_it_fits_the_borders_of_depth_too() {
        let mut recipe = recipe::builtin::find("nam56r-mini").unwrap();
        recipe.recurrent.as_mut().unwrap().depth_carry = Some(2);
        for sequence in [8, 20] {
            let found = check(&recipe, &request(&format!("cp=2 engine=shardwright seq={sequence}"))).findings;
            let mended = found[0].fix.as_ref().unwrap().values[0];
            assert!(check(&recipe, &request(&format!("cp=2 engine=shardwright seq={mended}"))).is_legal());
        }
    }
}
