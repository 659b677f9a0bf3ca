//! `fit` over pools: every stage against the memory of the devices it runs on.

use super::{
    class_json, classes_text, lines_text, overload_json, phases, seconds, step_json, unmodelled, verdict_colour,
};
use crate::args::FitArgs;
use crate::commands::plan::pools::{stages_json, stages_table};
use crate::commands::{asked, case_text, layout_json};
use crate::files::{load_pools, load_recipe};
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::table::{heading, wrap};
use case::{Pooled, Terms};
use cost::{Step, Unpriced};
use diag::{Blame, Finding};
use memory::fit::{HostUse, Overload, PooledFit, Verdict};
use serde_json::{Value, json};
use units::{Bytes, count};

pub fn run(args: &FitArgs) -> Outcome {
    refuse_others(args)?;
    let asked = asked(&args.recipe, &args.layout, &args.state, Some(&args.on));
    let recipe = load_recipe(&asked.recipe.recipe)?;
    let job = Pooled::new(&asked, &recipe, load_pools(&args.on)?, Terms::RUN)?;
    let headroom: Vec<Bytes> =
        job.pools.iter().map(|pool| args.headroom.on(&pool.device, &job.first().source)).collect();
    let limit = args.work.of_an_answer();
    super::allowed(job.first(), &limit, 1)?;
    let fit = PooledFit::price(&job, &headroom).map_err(|e| unmodelled(&e))?;
    let step = cost::pooled_step(&job);
    let overload = Overload::of_pools(&job, &fit, limit.operations);
    let text = verdict_text(&job, &fit)
        + &overload.as_ref().map_or(String::new(), |overload| wrap(&overload.words(), "", 80))
        + &hosts_text(&job, &fit)
        + &step_text(&step)
        + "\n"
        + &case_text(job.first())
        + "\n"
        + &heading("Which pool runs what")
        + &stages_table(&job, &fit.classes, step.as_ref().ok()).render()
        + &lines_text(fit.worst())
        + &classes_text(&fit.classes)
        + &phases::text(fit.worst())
        + &heading("Not in any number above")
        + &fit.unmodelled.iter().map(|line| format!("  {line}\n")).collect::<String>()
        + "  levers: what one change saves is tried on one kind of device\n";
    let mut json = json_of(&job, &fit, &step);
    json["overload"] = overload.as_ref().map_or(Value::Null, |overload| overload_json(overload, &[]));
    let report = Report::new(text, json).with_findings(&job.first().findings);
    Ok(match fit.verdict {
        Verdict::DoesNotFit => report.refused(DOES_NOT_FIT, [does_not_fit(&job, &fit)]),
        Verdict::Fits | Verdict::Tight => report,
    })
}

/// Flags whose answer is about one kind of device.
fn refuse_others(args: &FitArgs) -> Result<(), Refusal> {
    let one = [
        ("--serve", args.serving.serve),
        ("--checklist", args.checklist),
        ("--routing", args.routing),
        ("--overload", !args.overload.is_empty()),
        ("--price-per-device-hour", args.price_per_device_hour.is_some()),
    ];
    let named = one.iter().find(|(_, is_typed)| *is_typed).map(|(flag, _)| *flag);
    let drawn = args.pictures.given().next().map(|(flag, _)| flag);
    let Some(flag) = named.or(drawn).or(args.seen.first()) else { return Ok(()) };
    let message = format!("`{flag}` is about one kind of device, and pools are several");
    let hint = "ask it of one pool alone";
    Err(Finding::error("pools/flag", Blame::Usage, flag, message).hint(hint).into())
}

fn verdict_text(job: &Pooled, fit: &PooledFit) -> String {
    let worst = fit.worst();
    let pool = job.pool_of[worst.stage];
    let device = &job.pools[pool].device;
    let left = match u64::try_from(worst.headroom) {
        Ok(left) => format!("{} left", Bytes(left)),
        Err(_) => format!("{} over", Bytes(worst.headroom.unsigned_abs())),
    };
    let text = format!(
        "the worst ranks are stage {}'s ({}-{}) on {}, holding {} of {} ({left}, {} asked for)",
        worst.stage,
        worst.first_rank,
        worst.first_rank + worst.num_ranks - 1,
        device.name,
        Bytes(worst.total()),
        Bytes(device.visible_bytes()),
        fit.headroom[pool],
    );
    let title = format!("{}{}\x1b[0m on {}\n", verdict_colour(fit.verdict), fit.verdict.name(), job.typed());
    title + &wrap(&text, "", 80) + &format!("the peak stands in {} during {}\n", worst.peak_origin, worst.peak_phase)
}

fn hosts_text(job: &Pooled, fit: &PooledFit) -> String {
    let line = |(pool, host): (usize, &HostUse)| {
        let has = match host.has_bytes {
            Some(has) => format!("of {} that it usually has", Bytes(has)),
            None => "and nobody says what it has".to_string(),
        };
        let name = &job.pools[pool].device.name;
        format!("the host of a node of {name} keeps {} for its devices, {has}\n", Bytes(host.node_bytes))
    };
    fit.hosts.iter().enumerate().filter(|(_, host)| host.node_bytes > 0).map(line).collect()
}

fn step_text(step: &Result<Step, Unpriced>) -> String {
    match step {
        Ok(step) => wrap(
            &format!(
                "a step takes {}, with no interval since nobody has published steps on unlike devices: {} tokens/s a \
                 device, bound by {} on its busiest stage",
                seconds(step.seconds),
                count(step.tokens_per_second_per_device as u64),
                step.bound
            ),
            "",
            80,
        ),
        Err(reason) => wrap(&format!("no time for a step: {reason}"), "", 80),
    }
}

fn does_not_fit(job: &Pooled, fit: &PooledFit) -> Finding {
    let worst = fit.worst();
    let device = &job.pools[job.pool_of[worst.stage]].device;
    let (held, shown) = (Bytes(worst.total()), Bytes(device.visible_bytes()));
    let message = format!("stage {} holds {held} of the {shown} that {} shows", worst.stage, device.name);
    let hint = "fewer layers on its stage with --boundaries, or more of an axis; `plan` cuts by each pool's memory";
    Finding::error("fit/does-not-fit", Blame::Layout, "memory", message).hint(hint)
}

fn json_of(job: &Pooled, fit: &PooledFit, step: &Result<Step, Unpriced>) -> Value {
    let case = job.first();
    let pool = |(index, pool): (usize, &hardware::Cluster)| {
        json!({ "on": pool.typed(), "device": pool.device.name, "devices": pool.devices(), "network": pool.network,
            "visible_bytes": pool.device.visible_bytes(), "headroom_bytes": fit.headroom[index], "host": fit.hosts[index] })
    };
    json!({
        "recipe": case.recipe.name, "layout": layout_json(&case.layout, &case.defaults), "engine": case.engine().name(),
        "pools": job.pools.iter().enumerate().map(pool).collect::<Vec<_>>(), "verdict": fit.verdict,
        "stages": stages_json(job, &fit.classes, step.as_ref().ok()),
        "rank_classes": fit.classes.iter().map(class_json).collect::<Vec<_>>(), "worst": fit.worst,
        "unmodelled": fit.unmodelled, "step": step_json(step), "seams": case.seams, "findings": case.findings,
    })
}
