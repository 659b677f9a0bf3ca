//! Rows of launches that we wrote and Megatron's own trainer ran, one rank on one device: what the
//! case of its flags holds, against what the allocator said. Collectives return at once there, so a
//! step is not judged.

use crate::{Judged, Part, Why, check_work, kind};
use case::{Asked, Case, Terms};
use hardware::Cluster;
use ledger::{Ledger, RankJob};
use memory::fit::{Fit, HEADROOM, Verdict};
use recipe::builtin;
use recipe::import::megatron_args::shell_words;
use replay::{PhaseKind, Replay};
use serde_json::Value;

const SOURCE: &str = "emitted-h200";

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
    let environment = row["env"].as_object().into_iter().flatten();
    besides.extend(environment.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?))));
    asked.state.engine_args.push(besides.join(" "));
    let recipe = builtin::find(&asked.recipe.recipe).map_err(Why::refused)?;
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

/// Judges a row: memory only.
pub(super) fn judge(row: &Value, parts: &[Part], allowed: u64) -> Judged {
    let mut judged = Judged::of_our_own(&row["name"], SOURCE);
    if !parts.contains(&Part::Memory) {
        return judged;
    }
    if let Err(why) = predict(row, allowed, &mut judged) {
        judged.refuse(Part::Memory, why);
    }
    judged
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
    judged.add_bytes(&[
        ("static", row["setup"]["alloc"].as_u64(), fixed),
        ("allocated", most("peak"), replay.allocated_peak()),
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
