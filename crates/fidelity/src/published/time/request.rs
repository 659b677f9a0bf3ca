//! The layout of a row, for its whole step.

use super::super::need;
use super::depth::boundaries;
use super::engine::Family;
use super::recipes::Recipe as Told;
use layout::{LayoutRequest, Recompute, ZeroStage};
use recipe::Recipe;
use serde_json::Value;

/// The layout as asked for.
pub(super) fn request(
    row: &Value,
    family: Family,
    recipe: &Recipe,
    told: Option<&Told>,
) -> Result<LayoutRequest, String> {
    let (layout, batch) = (&row["layout"], &row["batch"]);
    let get = |key: &str| layout[key].as_u64();
    let tp = need(layout, "tp")?;
    let pp = get("pp").unwrap_or(1);
    let vpp = get("vpp").filter(|_| pp > 1).unwrap_or(1);
    let has_experts = recipe.moe.is_some();
    Ok(LayoutRequest {
        world: Some(need(&row["hardware"], "count")?),
        tp: Some(tp),
        // Experts with tp always shard the sequence.
        sp: Some(tp > 1 && (layout["sp"].as_bool().unwrap_or(family.shards_sequence()) || has_experts)),
        cp: get("cp"),
        pp: Some(pp),
        vpp: Some(vpp),
        ep: get("ep").filter(|_| has_experts),
        // Whole experts unless a row says otherwise, as every recipe with experts has it.
        etp: Some(get("etp").filter(|_| has_experts).unwrap_or(1)),
        dp: get("dp"),
        zero: Some(zero(row, family)?),
        micro_batch: Some(micro_batch(row, family, pp)?),
        global_batch: Some(need(batch, "global")?),
        sequence: Some(need(batch, "seq")?),
        recompute: Some(recompute(row, family, told)?),
        boundaries: boundaries(family, recipe, pp.saturating_mul(vpp)),
        engine: family.engine(),
        ..LayoutRequest::default()
    })
}

/// torchtitan gives the local batch, which its pipeline cuts into single sequences
/// (`pipeline_parallel_microbatch_size`). Unsaid, it follows from the batch, the replicas and how often gradients are
/// accumulated.
fn micro_batch(row: &Value, family: Family, pp: u64) -> Result<u64, String> {
    let (batch, layout) = (&row["batch"], &row["layout"]);
    let told = match (batch["micro"].as_u64(), batch["grad_accum"].as_u64()) {
        (Some(micro), _) => micro,
        (None, Some(times)) => {
            let degree = |key: &str| layout[key].as_u64().unwrap_or(1).max(1);
            let ranks = degree("tp").saturating_mul(degree("cp")).saturating_mul(pp.max(1));
            let replicas = layout["dp"].as_u64().unwrap_or(need(&row["hardware"], "count")? / ranks);
            let (global, each) = (need(batch, "global")?, replicas.saturating_mul(times));
            if each == 0 || !global.is_multiple_of(each) {
                return Err("the row lacks `micro`, and its batch does not divide over its replicas".to_string());
            }
            global / each
        }
        (None, None) => return Err("the row lacks `micro`".to_string()),
    };
    Ok(if family == Family::Torchtitan && pp > 1 { 1 } else { told })
}

/// Unsaid, state is shared out as the engine does by itself: the optimizer's in every recipe of Megatron's perf tables,
/// all of it under FSDP (`FULL_SHARD`, `reshard_after_forward`), none of it in nanotron (`config/config.py`
/// `zero_stage: 0`) and Megatron-LM of old.
fn zero(row: &Value, family: Family) -> Result<ZeroStage, String> {
    use Family::{Automodel, Composer, Fms, Fsdp, Megatron, MegatronOfOld, Nanotron, Torchtitan};
    match (row["layout"]["zero"].as_u64(), family) {
        (Some(0), _) | (None, MegatronOfOld | Nanotron) => Ok(ZeroStage::Zero),
        (Some(1), _) | (None, Megatron) => Ok(ZeroStage::One),
        (Some(2), _) => Ok(ZeroStage::Two),
        (Some(3), _) | (None, Composer | Fms | Fsdp | Automodel | Torchtitan) => Ok(ZeroStage::Three),
        _ => Err("the row does not say its ZeRO stage".to_string()),
    }
}

fn recompute(row: &Value, family: Family, told: Option<&Told>) -> Result<Recompute, String> {
    if row["recompute"].as_str() == Some("selective") && family != Family::Megatron {
        return Err("the row does not say what is computed again".to_string());
    }
    let said = super::super::recompute::recompute(row)?;
    let told = told.and_then(|told| told.recompute.as_deref());
    match (said, told) {
        (Some(said), _) => Ok(said),
        (None, Some(modules)) if modules.starts_with("selective:") => Recompute::parse(&modules.replace(',', "+")),
        // MaxText's own configuration of these runs (`configs/models/gpu/llama3_70b.yml` remat_policy).
        (None, None) if family == Family::Maxtext => Ok(Recompute::Full),
        // `full:n` is part of a step's layers, which is weighed where the step is priced.
        (None, _) => Ok(Recompute::None),
    }
}
