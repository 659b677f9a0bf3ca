//! Step times of published runs.
//!
//! A row becomes a [`Case`] on its cluster, with what its engine was told, or a reason why it cannot.
//! What is measured is the step time; where a row has none, tokens a second and device over
//! its own batch. TFLOP/s are never read: sources count them differently (with or without
//! recompute, causal attention whole or halved), and every row has one of the other two.

mod builds;
mod cluster;
mod complete;
mod depth;
mod engine;
mod features;
mod options;
mod recipes;
mod request;

use super::precision::Precision;
use super::{lay_out, model, need};
use crate::{Figure, Pricing, Why};
use case::offers::{WORTH, offers};
use case::{Case, Options};
use cost::Step;
use engine::Family;
use layout::Recompute;
use ledger::Ledger;
use recipe::{Dtype, Recipe};
use recipes::Recipe as Told;
use serde_json::Value;

/// A row's step as measured, and as priced with its breakdown.
pub struct Priced {
    /// Seconds, as measured.
    pub measured: f64,
    /// The job the row is read as.
    pub case: Case,
    /// Its step.
    pub step: Step,
}

/// Judges the time of a row's step.
pub(super) fn judge(row: &Value, pricing: Pricing) -> Result<Timed, Why> {
    let Priced { measured, case, step } = priced(row, pricing)?;
    let figure = Figure::step_time(measured, step.seconds);
    let undecided = builds::undecided(row, Family::of(row)?, [measured, step.seconds])?;
    Ok(Timed { figure, class: cost::Class::of(&case), undecided })
}

/// Prices a row's step.
pub(super) fn priced(row: &Value, pricing: Pricing) -> Result<Priced, Why> {
    let measured = measured(row)?;
    let told = recipes::of(row);
    let case = case(row, pricing, told.as_ref(), None)?;
    let mut step = cost::step(&case)?;
    if let Some(share) = told.as_ref().and_then(|told| recomputed_share(row, told, &case)) {
        let whole = self::case(row, pricing, told.as_ref(), Some(Recompute::Full))?;
        step.seconds += share * (cost::step(&whole)?.seconds - step.seconds);
    }
    let peaks = case.on().device.peaks.iter().filter(|peak| peak.format == case.options.format.name());
    let most = peaks.map(|peak| peak.flops).fold(0.0, f64::max) * case.layout.world as f64;
    if step.model_flops / measured > most {
        return Err("the row contradicts itself: its step would take more than the devices' peak".into());
    }
    Ok(Priced { measured, case, step })
}

/// A step as measured and as priced, with what decides how far its price is to be trusted.
pub(super) struct Timed {
    pub figure: Figure,
    pub class: cost::Class,
    pub undecided: Option<&'static str>,
}

/// The job of a row, as it was run or as `plan` would have it run; `again` instead of what it computes again.
fn case(row: &Value, pricing: Pricing, told: Option<&Told>, again: Option<Recompute>) -> Result<Case, Why> {
    let family = Family::of(row)?;
    let cluster = cluster::cluster(row)?;
    let said = complete::complete(row);
    let mut recipe = model::recipe(&said, &complete::unsaid(&said, family)?)?;
    set_gradients(&mut recipe, row, family);
    let mut request = request::request(row, family, &recipe, told)?;
    request.recompute = again.or(request.recompute);
    let case = lay_out(recipe, &request, Some(cluster))?;
    let mut options = case.options;
    let precision = Precision::of(row)?;
    (options.format, options.scaling) = (precision.format, precision.scaling);
    options::set_day(&mut options, row, family, &case);
    let mut as_run = options;
    options::set(&mut as_run, row, family, &case, told)?;
    match pricing {
        Pricing::AsRun => options = as_run,
        // Whether DeepEP or HybridEP is installed is the site's affair, as its network is.
        Pricing::AsPlanned => {
            options.kernels.dispatch = as_run.kernels.dispatch;
            options = offered(&case, options, &as_run);
        }
    }
    Ok(case.with_options(|own| *own = options))
}

/// With what `plan` offers besides: each where it is worth it and somebody replays its memory. What needs something
/// installed was installed where the row ran it. Whether it fits is not asked, since the row did.
fn offered(case: &Case, options: Options, as_run: &Options) -> Options {
    let with = |options: &Options| case.with_options(|own| *own = *options);
    let seconds = |options: &Options| cost::step(&with(options)).map(|step| step.seconds);
    let unmet = |options: &Options| case::unmet(&case.recipe, &case.layout, options, case.cluster.as_ref());
    let is_replayed = |options: &Options| Ledger::of_case(&with(options)).is_ok();
    let stands = (unmet(&options), is_replayed(&options));
    let mut best = (options, seconds(&options).unwrap_or(f64::INFINITY));
    for offer in offers(&case.recipe, &case.layout, &options, case.cluster.as_ref()) {
        let told = |mut options: Options| options::read(&offer.args, &mut options).ok().map(|()| options);
        let is_there = offer.needs.is_none() || told(*as_run).is_some_and(|told| told == *as_run);
        let Some(next) = told(best.0).filter(|next| is_there && (unmet(next), is_replayed(next)) == stands) else {
            continue;
        };
        if let Ok(least) = seconds(&next)
            && least < best.1 * (1.0 - WORTH)
        {
            best = (next, least);
        }
    }
    best.0
}

/// Of all layers, those that a recipe computes again in full: its `full:n` are n of every chunk of the pipeline
/// (`recompute_method = "block"`). Time is linear in them where chunks are alike.
fn recomputed_share(row: &Value, told: &Told, case: &Case) -> Option<f64> {
    let layers: u64 = told.recompute.as_deref()?.strip_prefix("full:")?.parse().ok()?;
    let chunks = case.layout.pp.get() * case.layout.vpp.get();
    row["recompute"].is_null().then(|| ((layers * chunks) as f64 / case.recipe.depth() as f64).min(1.0))
}

/// The format gradients are reduced in, where the engine does not reduce what Megatron's ledger
/// says.
fn set_gradients(recipe: &mut Recipe, row: &Value, family: Family) {
    let is_bridge = engine::named(row).say(&["megatron bridge"]) == Some(true);
    let is_pure = options::notes(row).say(&["mode pure"]) == Some(true);
    recipe.precision.gradients = match family {
        // `perf_recipes/_common.py`: grad_reduce_in_fp32 is off.
        Family::Megatron if is_bridge => Dtype::Bf16,
        // Composer's PURE reduces in the compute format (`mosaic_fsdp_utils.py` get_mixed_precision);
        // MaxText's gradients are of its compute format.
        Family::Composer if is_pure => Dtype::Bf16,
        Family::Maxtext => Dtype::Bf16,
        _ => recipe.precision.gradients,
    };
}

/// Tokens of a step for each device.
pub(super) fn tokens_per_device(row: &Value) -> Result<f64, String> {
    let (batch, hardware) = (&row["batch"], &row["hardware"]);
    let tokens = need(batch, "global")? as f64 * need(batch, "seq")? as f64;
    Ok(tokens / need(hardware, "count")?.max(1) as f64)
}

/// Seconds of a step, as measured.
fn measured(row: &Value) -> Result<f64, String> {
    let measured = &row["measured"];
    let rate = || Some(tokens_per_device(row).ok()? / measured["tokens_per_s_per_gpu"].as_f64()?);
    let seconds = measured["step_time_s"].as_f64().or_else(rate);
    seconds.filter(|s| s.is_finite() && *s > 0.0).ok_or_else(|| "the row holds no time of a step".to_string())
}
