//! Rows of launches that we wrote and Megatron's own trainer ran, one rank on one device: what the
//! case of its flags holds, against what the allocator said, and how long its kernels and its step take.
//! Collectives return at once there, so that a step is one rank's kernels and host alone.

use crate::{Figure, Judged, Part, Why, check_work, kind};
use case::options::GraphsBy;
use case::{Asked, Case, Terms};
use cost::Numbers;
use hardware::Cluster;
use ledger::{Ledger, RankJob};
use memory::fit::{Fit, HEADROOM, Verdict};
use recipe::import::megatron_args::shell_words;
use recipe::{Recipe, builtin};
use replay::{PhaseKind, Replay};
use serde_json::Value;

const SOURCE: &str = "emitted-h200";

/// On in Megatron by itself, and left alone by the launches of these rows; `launch` takes it out today.
const ACCUMULATION: &str = "gradient-accumulation-fusion";

/// Whether a row is of this kind.
pub(super) fn is_emitted(row: &Value) -> bool {
    row["flags"].is_string() && row["added"].is_array()
}

/// The job of a row: our flags, and the arguments and variables the run had besides.
pub fn case(row: &Value) -> Result<Case, Why> {
    let flags = row["flags"].as_str().ok_or("the row lacks `flags`")?;
    let mut asked = Asked::parse(&shell_words(flags))?;
    let words = |key: &str| row[key].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut besides: Vec<String> = words("added").map(str::to_string).collect();
    besides.extend(words("drop").map(|word| word.replacen("--", "--no-", 1)));
    if !flags.contains(ACCUMULATION) && !besides.iter().any(|word| word.contains(ACCUMULATION)) {
        besides.push(format!("--{ACCUMULATION}"));
    }
    let environment = row["env"].as_object().into_iter().flatten();
    besides.extend(environment.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?))));
    asked.state.engine_args.push(besides.join(" "));
    let recipe = match row["recipe"].as_str() {
        Some(text) => Recipe::parse(text).map_err(Why::refused)?,
        None => builtin::find(&asked.recipe.recipe).map_err(Why::refused)?,
    };
    let on = asked.on.clone().ok_or("the row's flags name no cluster")?;
    let cluster = Cluster::parse(&on).map_err(|finding| finding.message)?;
    Case::new(asked, recipe, Some(cluster), Terms::RUN).map_err(Why::refused)
}

/// Replays the rank of a row, unless that takes more operations of this machine than are allowed.
pub fn replay(case: &Case, row: &Value, allowed: u64) -> Result<Replay, Why> {
    let rank = row["rank"].as_u64().filter(|rank| *rank < case.layout.world).ok_or("the row lacks `rank`")?;
    let ledger = Ledger::of_case(case)?;
    let job = RankJob { recipe: &case.recipe, layout: &case.layout, stages: &case.stages, rank };
    check_work(&ledger, &job, allowed)?;
    Ok(ledger.replay(&job)?)
}

/// Judges a row.
pub(super) fn judge(row: &Value, parts: &[Part], allowed: u64) -> Judged {
    let mut judged = Judged::of_our_own(&row["name"], SOURCE);
    for part in parts {
        let done = match part {
            Part::Memory => predict(row, allowed, &mut judged),
            Part::Time => time(row, &mut judged),
        };
        if let Err(why) = done {
            judged.refuse(*part, why);
        }
    }
    judged
}

/// Kernels and step of a row that has them. The first step compiles and tunes; the last, or the last two, ran
/// under a profiler, which slows the host. Of the others, and of those of `again`, where the same launch ran once
/// more on another host, the least is what the host takes when nobody else wants its cores.
fn time(row: &Value, judged: &mut Judged) -> Result<(), Why> {
    let steps: Vec<&Value> = row["steps"].as_array().into_iter().flatten().collect();
    let is_plain = |step: &&&Value| step["kind"].as_str().is_none_or(|kind| kind == "plain");
    let profiled = usize::from(row["profile"].is_object() && steps.iter().all(|step| step["kind"].is_null()));
    let plain = steps[..steps.len().saturating_sub(profiled)].iter().filter(is_plain).skip(1);
    let again = row["again"].as_array().into_iter().flatten();
    let measured = plain.copied().chain(again).filter_map(|step| step["s"].as_f64()).min_by(f64::total_cmp);
    let Some(measured) = measured else { return Ok(()) };
    let case = case(row)?;
    judged.kind = kind(&case.source);
    let stage = row["stage"].as_u64().ok_or("the row lacks `stage`")?;
    let alone = cost::alone(&case, stage as usize, numbers(row, &case))?;
    if let Some(busy) = row["profile"]["busy_s"].as_f64() {
        judged.figures.push(Figure::kernel_time(busy, alone.kernels));
    }
    judged.figures.push(Figure::step_time(measured, alone.step));
    Ok(())
}

/// What numbers the run had, where the row says so; else from what stood in for other ranks.
fn numbers(row: &Value, case: &Case) -> Numbers {
    match row["numbers"].as_str() {
        Some("drawn") => Numbers::Drawn,
        Some(_) => Numbers::Same,
        None => Numbers::stood_in(case, false),
    }
}

fn predict(row: &Value, allowed: u64, judged: &mut Judged) -> Result<(), Why> {
    let case = case(row)?;
    judged.kind = kind(&case.source);
    if row.get("out_of_memory").is_some() {
        return ran_out(&case, allowed, judged);
    }
    let replay = replay(&case, row, allowed)?;
    judged.params_differ = row["params"].as_u64().filter(|m| *m != replay.params).map(|m| (replay.params, m));
    let steps = || row["steps"].as_array().into_iter().flatten();
    let most = |key: &str| steps().filter_map(|step| step[key].as_u64()).max();
    let fixed = replay.phase(PhaseKind::Optimizer).map_or(0, |phase| phase.allocated);
    // What passes of a graph hold lies in its pool, and nobody has it allocated while the graph runs.
    let is_counted = case.options.kernels.graphs.by == GraphsBy::None;
    judged.add_bytes(&[
        ("static", row["setup"]["alloc"].as_u64(), fixed),
        ("allocated", most("peak").filter(|_| is_counted), replay.allocated_peak()),
        ("reserved", most("reserved_peak"), replay.reserved_peak()),
    ])
}

/// A run that found no memory has no figure: we refuse it too, or are wrong by what it lacked.
fn ran_out(case: &Case, allowed: u64, judged: &mut Judged) -> Result<(), Why> {
    let ledger = Ledger::of_case(case)?;
    for stage in 0..case.layout.pp.get() {
        let rank = stage * (case.layout.world / case.layout.pp.get());
        let job = RankJob { recipe: &case.recipe, layout: &case.layout, stages: &case.stages, rank };
        check_work(&ledger, &job, allowed)?;
    }
    let fit = Fit::price(case, HEADROOM)?;
    let (held, visible) = (fit.worst().total(), case.on().device.visible_bytes());
    if fit.verdict == Verdict::DoesNotFit {
        return Err(Why::DoesNotFit { held, visible });
    }
    judged.add_bytes(&[("reserved", Some(visible), held)])
}
