//! Ranks of Megatron-Core jobs read on an H200 (`data/truth/megatron_h200.jsonl`): static memory,
//! allocated and reserved peaks. Collectives return at once there, so a step is not judged.
//!
//! The rows were taken by a loop of one's own over Megatron-Core, not by its trainer: nothing is fused
//! or overlapped unless a row says so.

use crate::{Judged, Part, Why, check_work, kind, lay_out, said};
use case::asked::PrecisionChoice;
use case::options::{Accumulate, CrossEntropy, Dispatch, Scaling};
use case::{Case, Options};
use layout::{Engine, LayoutRequest};
use ledger::megatron::{Job, LayerWise, MegatronOptions, Trainer};
use ledger::{Ledger, RankJob};
use recipe::Dtype;
use replay::Unmodelled;
use serde_json::Value;

const SOURCE: &str = "megatron-h200";

/// What a row says was run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The row's name.
    pub name: String,
    /// The job.
    pub case: Case,
    /// The rank whose memory was read.
    pub rank: u64,
    /// Steps that were run.
    pub steps: u32,
}

impl Run {
    /// Reads the `case` object of a row.
    pub fn read(said: &Value) -> Result<Run, Why> {
        if let Some(spec) = said["spec"].as_str().filter(|spec| *spec != "te") {
            return Err(format!("layers of the `{spec}` spec are not Transformer Engine's").into());
        }
        if let Some(optimizer) = said["opt"].as_str().filter(|o| *o != "adam") {
            return Err(format!("a row stepped by `{optimizer}` is not Adam's").into());
        }
        let mut recipe = said::recipe(said)?;
        if let Some(moe) = &mut recipe.moe {
            moe.capacity_factor = said["capacity"].as_f64();
            moe.router.dtype = width(said["model"]["router_fp32"].as_bool() == Some(true));
        }
        let mut options = Options::of(Some(Engine::Megatron), &recipe);
        options.kernels.permute_fusion = false;
        set_options(&mut options, said)?;
        // The vocabulary is padded by Megatron's trainer, which these ranks did not have.
        let request = LayoutRequest { vocab_multiple: Some(1), ..said::request(said, Some(Engine::Megatron))? };
        let case = lay_out(recipe, &request, None)?;
        Ok(Run {
            name: said["name"].as_str().unwrap_or("unnamed").to_string(),
            case: case.with_options(|own| *own = options),
            rank: said["rank"].as_u64().unwrap_or(0),
            steps: said["steps"].as_u64().map_or(3, |n| n.clamp(1, 8) as u32),
        })
    }

    /// What its ledger is told: the case's options, and what no launch of ours can say.
    pub fn options(&self) -> Result<MegatronOptions, Unmodelled> {
        let Ledger::Megatron(options) = Ledger::of_case(&self.case)? else {
            return Err(Unmodelled::new("the row's engine", "it is not Megatron-Core"));
        };
        // The loop around Megatron-Core was one's own, and it handed the layer-wise optimizer a layout.
        Ok(MegatronOptions { trainer: Trainer::Core, layer_wise: LayerWise::Layout, steps: self.steps, ..options })
    }

    /// The rank to replay.
    pub fn job<'a>(&'a self, options: &'a MegatronOptions) -> Job<'a> {
        let Case { recipe, layout, stages, .. } = &self.case;
        Job { recipe, layout, stages, rank: self.rank, options }
    }
}

fn width(is_fp32: bool) -> Dtype {
    if is_fp32 { Dtype::Fp32 } else { Dtype::Bf16 }
}

/// What a row says, over what Megatron-Core does by itself: no fusion and no overlap.
fn set_options(options: &mut Options, said: &Value) -> Result<(), Why> {
    let flag = |key: &str, default| said[key].as_bool().unwrap_or(default);
    let unknown = |word: &str| Why::Row(format!("the row names an option we do not know: `{word}`"));
    options.state.gradients = width(flag("grad_fp32", true));
    options.overlap.gradients = flag("overlap", false);
    options.overlap.weights = false;
    options.kernels.accumulate = Accumulate::Separate;
    options.kernels.rope_fusion = false;
    if flag("ce_fusion", false) {
        options.kernels.cross_entropy = CrossEntropy::Native;
    }
    if let Some(word) = said["dispatcher"].as_str() {
        options.kernels.dispatch = Dispatch::from_name(word).ok_or_else(|| unknown(word))?;
    }
    if let Some(word) = said["fp8"].as_str() {
        let scaling = Scaling::from_name(word).or_else(|| Scaling::from_name(&format!("fp8-{word}")));
        *options = options.in_precision(PrecisionChoice::Scaled(scaling.ok_or_else(|| unknown(word))?));
    }
    Ok(())
}

/// Judges a row with a `case`: memory only.
pub(super) fn judge(row: &Value, parts: &[Part], allowed: u64) -> Judged {
    let mut judged = Judged::of_our_own(&row["case"]["name"], SOURCE);
    if !parts.contains(&Part::Memory) {
        return judged;
    }
    if let Err(why) = predict(row, allowed, &mut judged) {
        judged.refuse(Part::Memory, why);
    }
    judged
}

fn predict(row: &Value, allowed: u64, judged: &mut Judged) -> Result<(), Why> {
    let run = Run::read(&row["case"])?;
    judged.kind = kind(&run.case.recipe);
    if row.get("error").is_some() {
        return Err("the run failed and measured nothing".into());
    }
    let options = run.options()?;
    let job = run.job(&options);
    let rank = RankJob { recipe: job.recipe, layout: job.layout, stages: job.stages, rank: job.rank };
    check_work(&Ledger::Megatron(options.clone()), &rank, allowed)?;
    let replay = ledger::megatron::replay(&job)?;
    let fixed = replay.phase(replay::PhaseKind::Optimizer).map_or(0, |phase| phase.allocated);
    let pairs = [
        ("static", row["optimizer"]["alloc"].as_u64(), fixed),
        ("allocated", highest(row, "peak", is_step), replay.allocated_peak()),
        ("reserved", highest(row, "reserved_peak", |_| true), replay.reserved_peak()),
    ];
    judged.add_bytes(&pairs)?;
    judged.params_differ = row["params"].as_u64().filter(|m| *m != replay.params).map(|m| (replay.params, m));
    Ok(())
}

fn is_step(phase: &str) -> bool {
    phase.starts_with("fwdbwd") || (phase.starts_with("opt") && phase != "optimizer")
}

/// The highest value of a key over the phases that count.
fn highest(row: &Value, key: &str, counts: fn(&str) -> bool) -> Option<u64> {
    let phases = row.as_object()?.iter().filter(|(name, _)| counts(name));
    phases.filter_map(|(_, phase)| phase.get(key)?.as_u64()).max()
}
