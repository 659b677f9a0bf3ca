//! Sequence parallelism: activations sharded along the tensor axis.

use super::{Case, multiples_near, refuse};
use diag::Finding;
use recipe::{Mixer, Positions};

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let (tp, cp) = (layout.tp.get(), layout.cp.get());
    let pieces = tp * cp;
    if layout.sp && !layout.sequence.is_multiple_of(pieces) {
        let message = format!(
            "sequence {} does not divide into tp {tp} × cp {cp} pieces, so a reduce-scatter has no even shares",
            layout.sequence
        );
        findings
            .push(refuse("sp/sequence", "sequence", message).fix("seq", multiples_near(layout.sequence, 2 * pieces)));
    }
    if let Positions::Learned { count } = case.recipe.positions
        && layout.sequence > count
    {
        let message = format!("sequence {} is longer than the {count} learned positions", layout.sequence);
        findings.push(refuse("sequence/positions", "sequence", message).fix("seq", vec![count]));
    }
    if layout.tp.splits() && !layout.sp && case.recipe.uses(Mixer::Moe) {
        let message = format!(
            "experts with tp={tp} need sequence parallelism: dispatch takes sequence-sharded tokens and must give them back so"
        );
        let finding = refuse("sp/required", "sp", message).fix("sp", vec![1]);
        findings.push(Finding { hint: Some("leave --no-sp out, or use --tp 1".to_string()), ..finding });
    }
}
