//! The global batch is a whole number of microbatches on every replica.

use super::{Case, multiples_near, refuse};
use diag::Finding;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let step = layout.micro_batch.saturating_mul(layout.dp.get());
    if layout.global_batch == step.saturating_mul(layout.microbatches) {
        return;
    }
    let (global, micro, dp, count) = (layout.global_batch, layout.micro_batch, layout.dp, layout.microbatches);
    let finding = if global.is_multiple_of(step) {
        let message = format!("gbs {global} is not mbs {micro} × dp {dp} × {count} microbatches");
        refuse("batch/global", "gbs", message).fix("microbatches", vec![global / step])
    } else {
        let message = format!("gbs {global} is not a multiple of mbs {micro} × dp {dp} = {step}");
        refuse("batch/global", "gbs", message).fix("gbs", multiples_near(global, step))
    };
    // With both typed, the count settles the batch.
    findings.push(if count != (global / step).max(1) {
        let settled = step.saturating_mul(count);
        Finding { hint: None, ..finding }.fix("gbs", vec![settled])
    } else {
        finding
    });
}
