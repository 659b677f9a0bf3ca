//! The global batch is a whole number of microbatches on every replica.

use super::{Case, refuse};
use diag::Finding;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let step = layout.micro_batch.saturating_mul(layout.dp.get());
    if layout.global_batch == step.saturating_mul(layout.microbatches) {
        return;
    }
    let (global, micro, dp, count) = (layout.global_batch, layout.micro_batch, layout.dp, layout.microbatches);
    let message = if global.is_multiple_of(step) {
        format!("gbs {global} is not mbs {micro} × dp {dp} × {count} microbatches")
    } else {
        format!("gbs {global} is not a multiple of mbs {micro} × dp {dp} = {step}")
    };
    let settled = step.saturating_mul(count);
    let hint = format!("gbs may be {settled} with {count} microbatches; any other must be a multiple of {step}");
    findings.push(refuse("batch/global", "gbs", message).fix("gbs", vec![settled]).hint(hint));
}
