//! torchtitan 0.3.0. File names are relative to `torchtitan`.

use super::{kv_heads, refuse_mixers, refuse_parallel, refuse_schedule, refuse_unfilled, unsupported};
use crate::legality::Case;
use crate::request::{Recompute, Schedule, ZeroStage};
use diag::Finding;
use recipe::Mixer;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let (recipe, layout) = (case.recipe, case.layout);
    refuse_mixers("torchtitan/no-block", "torchtitan", &[Mixer::Mamba, Mixer::Recurrent], case, findings);
    refuse_parallel("torchtitan/parallel-block", "torchtitan", case, findings);
    let known = [Schedule::GPipe, Schedule::OneF1b, Schedule::Interleaved, Schedule::DualPipeV];
    refuse_schedule("torchtitan/schedule", "torchtitan", &known, case, findings);
    let tp = layout.tp.get();
    if let Some(kv) = kv_heads(case).filter(|kv| !kv.is_multiple_of(tp)) {
        // models/common/decoder.py
        let message = format!("{kv} KV heads are not a multiple of tp={tp}, and torchtitan does not replicate them");
        let finding = unsupported("torchtitan/kv-heads", "attention", message).fix("tp", units::divisors(kv));
        findings.push(finding.quote("n_kv_heads ({n_kv_heads})."));
    }
    if recipe.tied && layout.pp.splits() {
        // models/common/decoder.py
        let finding =
            unsupported("torchtitan/tied-pp", "pp", "tied embeddings cannot be cut into stages").fix("pp", vec![1]);
        findings.push(finding.quote("Weight tying is not supported with Pipeline Parallel."));
    }
    if recipe.features.mtp().is_some() && (layout.pp.splits() || layout.cp.splits()) {
        // models/deepseek_v3/mtp.py
        let finding = unsupported("torchtitan/mtp", "features.mtp", "prediction heads run without pp and cp only");
        findings.push(finding.quote("MTP does not support pipeline parallelism yet."));
    }
    if recipe.uses(Mixer::GatedDelta) && layout.cp.splits() {
        // models/qwen3_5/parallelize.py
        let finding =
            unsupported("torchtitan/gated-delta-cp", "cp", "gated delta nets cannot be cut in time").fix("cp", vec![1]);
        findings.push(finding.quote("Context Parallel is not yet supported for Qwen3.5."));
    }
    if recipe.uses(Mixer::Moe) && layout.etp.splits() && layout.ep.splits() {
        // models: no setting for it
        let message = format!("torchtitan has no expert tensor parallelism, and etp is {}", layout.etp);
        findings.push(unsupported("torchtitan/etp", "etp", message).fix("etp", vec![1]));
    }
    let shards = layout.dp.get() * layout.cp.get() * tp;
    if recipe.uses(Mixer::Moe) && !shards.is_multiple_of(layout.ep.get()) {
        // config/configs.py
        let message = format!("dp·cp·tp = {shards} is not a multiple of ep={}", layout.ep);
        let finding = unsupported("torchtitan/ep-mesh", "ep", message).fix("ep", units::divisors(shards));
        findings.push(finding.quote("so dp_shard * cp * tp == efsdp * ep."));
    }
    refuse_unfilled("torchtitan/microbatches", case, findings);
    state(case, findings);
}

fn state(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    if layout.zero == ZeroStage::One {
        // distributed/parallel_dims.py: replicas, or shards of everything.
        let message = "torchtitan replicates (zero 0) or shards weights too (zero 2, 3)";
        findings.push(unsupported("torchtitan/zero", "zero", message).fix("zero", vec![0, 2, 3]));
    }
    if layout.zero == ZeroStage::Zero && layout.ep.splits() {
        let message = format!("experts are dealt out over sharded ranks, and zero 0 shards none (ep {})", layout.ep);
        findings.push(unsupported("torchtitan/zero", "zero", message).fix("zero", vec![2, 3]));
    }
    if matches!(layout.recompute, Recompute::Selective(_)) {
        // distributed/activation_checkpoint.py
        let message = "torchtitan's selective recompute chooses operations, not the modules named";
        findings.push(unsupported("torchtitan/recompute", "recompute", message).hint("recompute may be none or full"));
    }
}
