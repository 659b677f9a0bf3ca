//! Native PyTorch with `fully_shard` (torch 2.15): PP, TP, checkpointing, compile, FSDP2, EP
//! composed by the module that we emit. File names are relative to `torch/distributed`.

use super::{refuse_schedule, refuse_unfilled, unsupported};
use crate::legality::Case;
use crate::request::{Schedule, ZeroStage};
use diag::Finding;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let known = [Schedule::OneF1b, Schedule::Interleaved, Schedule::DualPipeV];
    refuse_schedule("fsdp2/schedule", "torch pipelining", &known, case, findings);
    if layout.zero < ZeroStage::Two {
        let message = format!("fully_shard shards weights, gradients and optimizer state, and zero is {}", layout.zero);
        let finding = unsupported("fsdp2/zero", "zero", message).fix("zero", vec![2, 3]);
        findings.push(Finding {
            hint: Some("zero may be 3, or 2 (weights kept gathered after forward)".to_string()),
            ..finding
        });
    }
    if layout.etp.splits() && layout.ep.splits() {
        // fsdp/_fully_shard/_fsdp_param.py allows it, the emitted module does not build it.
        let message = format!("the emitted module splits whole experts only, and etp is {}", layout.etp);
        findings.push(unsupported("fsdp2/etp", "etp", message).fix("etp", vec![1]));
    }
    refuse_unfilled("fsdp2/microbatches", case, findings);
}
