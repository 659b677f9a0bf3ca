//! Experts over the expert axis, their columns over the expert-tensor axis.

use super::{Case, must_divide, refuse};
use diag::Finding;
use recipe::Mixer;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let Some(moe) = case.recipe.moe.as_ref().filter(|_| case.recipe.uses(Mixer::Moe)) else {
        for (key, degree) in [("ep", layout.ep), ("etp", layout.etp)] {
            if degree.splits() {
                let message = format!("{key}={degree} splits experts, and the recipe has none");
                findings.push(refuse("ep/no-experts", key, message).fix(key, vec![1]));
            }
        }
        return;
    };
    must_divide(findings, "ep/experts", "moe", "experts", moe.experts, "ep", layout.ep.get());
    must_divide(findings, "etp/expert-ffn", "moe", "expert columns", moe.ffn, "etp", layout.etp.get());
}
