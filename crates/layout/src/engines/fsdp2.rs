//! Native PyTorch with `fully_shard` (torch 2.15): PP, TP, checkpointing, compile, FSDP2, EP
//! composed by the module that we emit. File names are relative to `torch/distributed`.

use super::{kv_heads, refuse_schedule, refuse_unfilled, unsupported};
use crate::legality::Case;
use crate::request::{Schedule, ZeroStage};
use diag::Finding;
use recipe::Mixer;

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
    emitted(case, findings);
}

/// What the emitted module does not build, each by name.
fn emitted(case: &Case, findings: &mut Vec<Finding>) {
    let (recipe, layout) = (case.recipe, case.layout);
    if layout.cp.splits() {
        let message = format!("the emitted module does not cut the sequence over ranks, and cp is {}", layout.cp);
        findings.push(unsupported("fsdp2/cp", "cp", message).fix("cp", vec![1]));
    }
    let is_part = layout.etp != layout.tp && layout.etp.splits();
    if recipe.uses(Mixer::Moe) && is_part {
        let message =
            format!("experts are whole or cut like everything else, and etp is {} of tp {}", layout.etp, layout.tp);
        findings.push(unsupported("fsdp2/expert-split", "etp", message).fix("etp", vec![1, layout.tp.get()]));
    }
    let tp = layout.tp.get();
    if let Some(kv) = kv_heads(case).filter(|kv| *kv < tp) {
        let message = format!("the emitted module gives whole KV heads to ranks, and tp {tp} has more ranks than {kv}");
        findings.push(unsupported("fsdp2/kv-heads", "attention", message).fix("tp", units::divisors(kv)));
    }
    if recipe.tied && layout.pp.splits() {
        let message = "the emitted module keeps tied embeddings on one stage";
        findings.push(unsupported("fsdp2/tied", "pp", message).fix("pp", vec![1]));
    }
}
