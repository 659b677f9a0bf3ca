//! Rows of Megatron-LM, and of what was built on it.
//!
//! Rows of Megatron-LM's own tests list arguments of its command line, so what they leave out has
//! the command line's default. Where neither norm, biases nor positions are said, a GELU model is
//! a GPT by Megatron's defaults and any other is built like Llama.

use super::model::{self, Unsaid};
use super::precision::Precision;
use super::recompute::recompute;
use super::words::{Clauses, plain};
use super::{Peaks, lay_out, need};
use crate::Why;
use case::asked::PrecisionChoice;
use case::options::{Accumulate, CrossEntropy, Dispatch, Format, Scaling};
use case::{Options, words};
use layout::{Engine, LayoutRequest, Recompute, ZeroStage};
use ledger::Ledger;
use recipe::kinds::Norm;
use recipe::{Dtype, Positions, Recipe};
use serde_json::Value;

/// Rounds of microbatches through all chunks that are replayed: the steady state repeats itself.
const ROUNDS: u64 = 3;

pub(super) fn predict(row: &Value, allowed: u64) -> Result<Peaks, Why> {
    let mut recipe = model::recipe(row, &unsaid(row)?)?;
    if let Some(moe) = &mut recipe.moe {
        moe.capacity_factor = capacity_factor(row)?;
    }
    let options = options(row, &recipe)?;
    let case = lay_out(recipe, &request(row)?, None)?.with_options(|own| *own = options);
    let ledger = Ledger::of_case(&case)?;
    let ranks = ranks(row, case.layout.world, case.layout.pp.get())?;
    Peaks::replayed(case, &ledger, &ranks, allowed)
}

/// `training/arguments.py`: LayerNorm, biases and learned positions unless told otherwise. Grouped
/// experts take no biases (`core/transformer/moe/experts.py`), and hybrid stacks no positions.
fn unsaid(row: &Value) -> Result<Unsaid, String> {
    let model = &row["model"];
    if model["activation"].as_str() != Some("gelu") || !model["mla"].is_null() {
        return Ok(Unsaid::llama());
    }
    if !model["pattern"].is_null() {
        return Ok(Unsaid { positions: Positions::None, ..Unsaid::llama() });
    }
    Ok(Unsaid {
        norm: Norm::LayerNorm,
        positions: Positions::Learned { count: need(&row["batch"], "seq")? },
        has_biases: model["experts"].is_null(),
    })
}

/// The ranks a row speaks of, in Megatron's order: stages outermost.
fn ranks(row: &Value, world: u64, pp: u64) -> Result<Vec<u64>, String> {
    let first = |stage| stage * (world / pp);
    match row["measured"]["memory_rank"].as_str() {
        Some("last global rank") => Ok(vec![world - 1]),
        Some("max over ranks") => Ok((0..pp).map(first).collect()),
        Some("max of embedding-holding nodes") => Ok(vec![0, first(pp - 1)]),
        _ => Err("the row does not say whose memory it is".to_string()),
    }
}

fn options(row: &Value, recipe: &Recipe) -> Result<Options, String> {
    if row["framework"]["name"].as_str().is_some_and(|name| plain(name) == "megatrondeepspeed") {
        // Its kernels of 2022 keep the scores of every head, and ZeRO and the pipeline are
        // DeepSpeed's (`deepspeed/runtime/pipe/engine.py`), not Megatron-Core's.
        return Err("unfused attention under DeepSpeed's pipeline is not replayed".to_string());
    }
    let mut options = Options::of(Some(Engine::Megatron), recipe);
    // What a launch of ours says and these command lines do not, unless they list it.
    options.overlap.gradients = false;
    options.overlap.weights = false;
    options.kernels.dispatch = Dispatch::AllGather;
    // Megatron's default; published runs are of images that have APEX.
    options.kernels.accumulate = Accumulate::Fused;
    options.kernels.permute_fusion = false;
    if let Some(scaling) = fp8(row)? {
        options = options.in_precision(PrecisionChoice::Scaled(scaling));
    }
    read_notes(row, &mut options)?;
    let features: Vec<&str> = row["features"].as_str().unwrap_or_default().split(';').map(str::trim).collect();
    for feature in features.iter().filter(|feature| !feature.is_empty()) {
        read_feature(feature, &mut options)?;
    }
    let is_grouped =
        features.iter().any(|feature| feature.to_ascii_lowercase().replace(' ', "-").contains("grouped-gemm"));
    if recipe.moe.is_some() && !is_grouped {
        return Err("experts one after another are not replayed, only grouped products".to_string());
    }
    Ok(options)
}

/// What only the notes say.
fn read_notes(row: &Value, options: &mut Options) -> Result<(), String> {
    let notes = Clauses::of(row["notes"].as_str().unwrap_or_default());
    if notes.say(&["te fused cross entropy"]) == Some(true) {
        // `--cross-entropy-fusion-impl te`.
        if transformer_engine(row).ok_or("the row does not say which Transformer Engine")? >= (2, 18) {
            return Err("the fp32 gradient of logits of Transformer Engine 2.18 is not replayed".to_string());
        }
        options.kernels.cross_entropy = CrossEntropy::TransformerEngine;
    }
    if notes.say(&["cp uses all to all"]) == Some(true) {
        return Err("context parallelism by all-to-all is not replayed".to_string());
    }
    if capacity_factor(row)?.is_some() {
        // It works with this dispatcher only (`core/transformer/transformer_config.py`).
        options.kernels.dispatch = Dispatch::AllToAll;
    }
    Ok(())
}

/// Tokens an expert accepts over the balanced share, which only notes say.
fn capacity_factor(row: &Value) -> Result<Option<f64>, String> {
    let notes = row["notes"].as_str().unwrap_or_default();
    let Some((_, rest)) = notes.split_once("capacity factor ") else { return Ok(None) };
    let number = rest.split(' ').next().and_then(|word| word.parse().ok());
    number.map(Some).ok_or_else(|| "the capacity factor is not a number".to_string())
}

/// Version of Transformer Engine, from `… / TE 2.11.0 / …`.
fn transformer_engine(row: &Value) -> Option<(u32, u32)> {
    let (_, rest) = row["framework"]["version"].as_str()?.split_once("TE ")?;
    let mut parts = rest.split(['.', ' ']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// One option a row lists, in Megatron's words or the row's own. What is known to move no memory is
/// passed over by name; what is left is read as a launch's `--engine-args` are.
fn read_feature(feature: &str, options: &mut Options) -> Result<(), String> {
    let refuse = |why: &str| Err(why.to_string());
    match feature.split_once('=').unwrap_or((feature, "")) {
        ("grad-reduce-in-bf16", _) => options.state.gradients = Dtype::Bf16,
        ("permute fusion", _) => options.kernels.permute_fusion = true,
        // A row's own words; which fusion it is, its notes say.
        ("cross-entropy fusion", _) if options.kernels.cross_entropy == CrossEntropy::TransformerEngine => {}
        ("moe-grouped-gemm" | "grouped GEMM" | "no-load-optim", _)
        | ("transformer-impl", "transformer_engine")
        // What `auto` picks; FlashAttention keeps the same for backward.
        | ("attention-backend", "fused" | "flash")
        | ("main-grads-dtype", "fp32")
        | ("num-distributed-optimizer-instances", "1") => {}
        // Whether scores were dropped out, which keeps a mask and a second copy of them, is not said.
        ("attention-backend", "unfused") => return refuse("unfused attention is not replayed"),
        ("transformer-impl", "local") => return refuse("Megatron's local layers are not replayed"),
        ("fp8-param-gather", _) => return refuse("weights kept in fp8 are not replayed"),
        ("fine-grained-activation-offloading", _) => return refuse("offloaded activations are not replayed"),
        ("num-distributed-optimizer-instances", _) => return refuse("several optimizer instances are not replayed"),
        ("pipeline-model-parallel-layout" | "account-for-embedding-in-pipeline-split", _) => {
            return refuse("a pipeline split by hand is not expressed");
        }
        _ => {
            words::read_priced(Some(Engine::Megatron), &[format!("--{feature}")], options)?;
        }
    }
    Ok(())
}

fn fp8(row: &Value) -> Result<Option<Scaling>, String> {
    let precision = Precision::of(row)?;
    match (precision.format, precision.scaling) {
        (Format::Bf16, _) => Ok(None),
        (_, Some(scaling)) => Ok(Some(scaling)),
        (_, None) => Err("the row's fp8 recipe is not known".to_string()),
    }
}

fn request(row: &Value) -> Result<LayoutRequest, String> {
    let (layout, batch) = (&row["layout"], &row["batch"]);
    let get = |key: &str| layout[key].as_u64();
    let zero = match get("zero") {
        Some(0) => ZeroStage::Zero,
        Some(1) => ZeroStage::One,
        Some(3) => ZeroStage::Three,
        _ => return Err("the row's ZeRO stage is not one of Megatron's".to_string()),
    };
    let pp = get("pp").unwrap_or(1);
    let (vpp, boundaries) = segments(row, pp)?;
    let microbatches = need(batch, "grad_accum")?;
    Ok(LayoutRequest {
        world: Some(need(&row["hardware"], "count")?),
        tp: Some(need(layout, "tp")?),
        sp: Some(layout["sp"].as_bool().unwrap_or(false)),
        cp: get("cp"),
        pp: Some(pp),
        vpp: Some(vpp),
        ep: get("ep"),
        // Rows repeat the command line, where it may stand without experts.
        etp: get("etp").filter(|_| !row["model"]["experts"].is_null()),
        zero: Some(zero),
        micro_batch: Some(need(batch, "micro")?),
        microbatches: Some(microbatches.min(ROUNDS * pp * vpp)),
        sequence: Some(need(batch, "seq")?),
        recompute: Some(recompute(row)?.unwrap_or(Recompute::None)),
        boundaries,
        engine: Some(Engine::Megatron),
        ..LayoutRequest::default()
    })
}

/// Chunks a stage holds, and where a hybrid pattern's own segments begin.
fn segments(row: &Value, pp: u64) -> Result<(u64, Option<Vec<u64>>), String> {
    let told = row["layout"]["vpp"].as_u64().unwrap_or(1);
    let Some(pattern) = row["model"]["pattern"].as_str().filter(|pattern| pattern.contains('|')) else {
        return Ok((told, None));
    };
    let parsed = recipe::megatron::read(pattern).map_err(|finding| finding.message)?;
    let (mut at, mut starts) = (0, Vec::new());
    for segment in &parsed.segments {
        starts.push(at);
        at += segment.len() as u64;
    }
    let chunks = starts.len() as u64;
    Ok((chunks.div_ceil(pp), Some(starts.split_off(1))))
}
