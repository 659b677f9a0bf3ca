//! Cuts that recurrent state crosses on its way up the depth.

use super::chunks;
use crate::legality::{Case, Check, Reads, Rule};
use crate::stages::StageSeam;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "pp/state-seam",
    blame: Blame::Layout,
    reads: Reads::PP.and(Reads::VPP),
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let chunks = chunks(case).unwrap_or_default();
    let cuts = chunks.iter().skip(1).map(|layers| layers.start);
    let seams = cuts.filter_map(|layer| StageSeam::at(case.recipe, layer, case.layout.sequence));
    let note = |seam: StageSeam| {
        let message = format!("the cut before layer {} carries recurrent state: {}", seam.before, seam.contract);
        RULE.note("recurrent", message)
    };
    seams.filter(|seam| seam.state_elements > 0).map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nam56r", "pp=2", "the cut before layer 26 carries recurrent state: recurrent state crosses with the activations: 2883584 elements a sequence; experts stand at the cut; their auxiliary loss is counted on their own stage").with(|r| r.recurrent.as_mut().unwrap().depth_carry = Some(64)),
        silent("nam56r", "pp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
