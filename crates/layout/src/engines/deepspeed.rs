//! DeepSpeed 0.19.8. File names are relative to `deepspeed`.

use super::{refuse_schedule, unsupported};
use crate::legality::Case;
use crate::request::{Recompute, Schedule, ZeroStage};
use diag::Finding;
use recipe::Mixer;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let (recipe, layout) = (case.recipe, case.layout);
    refuse_schedule("deepspeed/schedule", "DeepSpeed", &[Schedule::OneF1b, Schedule::DualPipeV], case, findings);
    if layout.pp.splits() && layout.zero >= ZeroStage::Two {
        // runtime/pipe/engine.py
        let message = format!("a pipeline runs with zero 0 or 1, and zero is {}", layout.zero);
        let finding = unsupported("deepspeed/pp-zero", "zero", message).fix("zero", vec![0, 1]);
        findings.push(finding.quote("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"));
    }
    if recipe.uses(Mixer::Moe) && layout.ep.splits() && layout.etp.splits() {
        // module_inject/auto_ep_folding.py
        let message = format!("AutoEP keeps experts whole, and etp is {}", layout.etp);
        let finding = unsupported("deepspeed/etp", "etp", message).fix("etp", vec![1]);
        findings.push(finding.quote("is reserved for expert-internal tensor parallelism and is not supported yet."));
    }
    if layout.ep.splits() && layout.tp.splits() && layout.pp.splits() {
        // module_inject/auto_ep_folding.py
        let finding =
            unsupported("deepspeed/ep-tp-pp", "pp", "ep with tp runs without a pipeline only").fix("pp", vec![1]);
        findings.push(finding.quote("AutoEP+AutoTP folding currently supports pp_size=1 only"));
    }
    if matches!(layout.recompute, Recompute::Selective(_)) {
        // runtime/activation_checkpointing/checkpointing.py wraps what a script hands it: whole layers.
        let message = "checkpointing is by whole layers, not by the modules named";
        findings.push(unsupported("deepspeed/recompute", "recompute", message).hint("recompute may be none or full"));
    }
    let stateful = [Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta];
    if layout.cp.splits() && stateful.iter().any(|m| recipe.uses(*m)) {
        let message = "Ulysses wraps attention only: a recurrence would see a part of its timeline";
        findings.push(unsupported("deepspeed/cp-recurrence", "cp", message).fix("cp", vec![1]));
    }
}
