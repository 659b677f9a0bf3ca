//! nanotron, main of April 2026. File names are relative to `src/nanotron`.

use super::{kv_heads, refuse_mixers, refuse_parallel, refuse_schedule, unsupported};
use crate::legality::Case;
use crate::request::{Schedule, ZeroStage};
use diag::Finding;
use recipe::Mixer;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let (recipe, layout) = (case.recipe, case.layout);
    let missing = [Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta];
    refuse_mixers("nanotron/no-block", "nanotron", &missing, case, findings);
    refuse_parallel("nanotron/parallel-block", "nanotron", case, findings);
    refuse_schedule("nanotron/schedule", "nanotron", &[Schedule::OneF1b, Schedule::GPipe], case, findings);
    if recipe.is_latent() {
        let finding = unsupported("nanotron/mla", "attention", "nanotron has no latent attention");
        findings.push(finding.quote("Unsupported model config"));
    }
    if recipe.features.mtp().is_some() {
        findings.push(unsupported("nanotron/mtp", "features.mtp", "nanotron has no prediction heads"));
    }
    if layout.ep.splits() {
        // parallel/context.py: ranks are reshaped to ep·world places
        let message = format!("ep={} cannot run: ranks are reshaped to ep times the world", layout.ep);
        let finding = unsupported("nanotron/ep", "ep", message).fix("ep", vec![1]);
        findings.push(finding.quote("# TODO: ep should be a subset of dp"));
    }
    if recipe.uses(Mixer::Moe) && layout.etp.splits() {
        // nn/moe.py: full intermediate width per rank
        let message = format!("experts keep their whole width on every rank, and etp is {}", layout.etp);
        findings.push(unsupported("nanotron/etp", "etp", message).fix("etp", vec![1]));
    }
    let tp = layout.tp.get();
    if let Some(kv) = kv_heads(case).filter(|kv| *kv < tp) {
        // config/config.py
        let message = format!("{kv} KV heads are fewer than tp={tp}");
        let finding = unsupported("nanotron/kv-heads", "attention", message).fix("tp", units::divisors(kv));
        findings.push(finding.quote("must be >= tp"));
    }
    if layout.zero >= ZeroStage::Two {
        // optim/zero.py
        let message = format!("zero {} is not there; the optimizer state alone can be shared out", layout.zero);
        findings.push(unsupported("nanotron/zero", "zero", message).fix("zero", vec![0, 1]));
    }
    let one_f1b = layout.pp.splits() && layout.schedule == Schedule::OneF1b;
    if one_f1b && layout.microbatches + 1 < layout.pp.get() {
        // parallel/pipeline_parallel/engine.py
        let message = format!("1f1b needs at least pp-1 = {} microbatches", layout.pp.get() - 1);
        let finding = unsupported("nanotron/microbatches", "microbatches", message);
        findings.push(
            finding
                .fix("microbatches", vec![layout.pp.get() - 1, layout.pp.get()])
                .quote("must be at least PP_SIZE-1="),
        );
    }
}
