//! A plan for machines.

use super::text::{difference, flags_of, given_up, misfits, refuted};
use super::trust::slower;
use super::{Solved, Wanted, besides};
use crate::args::PlanArgs;
use crate::commands::fit::overload_json;
use crate::commands::typed;
use cost::{Class, interval};
use diag::quote::typed_line;
use launch::header::Header;
use layout::Layout;
use memory::fit::{AtOverload, Overloaded, RankClass};
use search::{Choice, ModeAnswer, Neighbour, Simulated, decides};
use serde_json::{Map, Value, json};

/// Everything that is shown, and what a screen has no room for.
pub fn of(args: &PlanArgs, wanted: &Wanted, solved: &Solved) -> Value {
    let (found, answer) = (&solved.found, &solved.answer);
    let counts = wanted.recipe.counts().all;
    let kept = solved.kept();
    let frontier: Vec<Value> = kept.frontier.iter().map(|s| simulated(solved, s)).collect();
    let top: Vec<Value> = kept.top.iter().take(args.search.top.max(1)).map(|s| simulated(solved, s)).collect();
    let near = |n: &Neighbour| answer.best().map(|best| neighbour(solved, best, n));
    json!({
        "recipe": wanted.recipe.name, "cluster": wanted.cluster, "total": counts.total, "active": counts.active,
        "engine": wanted.pinned.engine.map(|engine| engine.name()), "why_engine": wanted.why_engine, "gbs_assumed": !solved.space.is_batch_typed,
        "other_batches": answer.best().map(|best| solved.other_batches(best).iter()
            .map(|(gbs, rate)| json!({ "gbs": gbs, "tokens_per_second_per_device": rate })).collect::<Vec<_>>()),
        "besides": answer.best().map(|best| besides::json(solved, best)),
        "seq": solved.space.sequence, "headroom_bytes": solved.space.question.headroom,
        "overload": solved.space.question.overload,
        "best": answer.best().map(|choice| shown(solved, choice)),
        "nearest": solved.nearest.as_ref().map(|nearest| json!({
            "flags": typed_line(solved.space.words(&nearest.point)), "missing_bytes": nearest.missing,
        })),
        "fastest": answer.modes.first().and_then(|mode| mode.fastest.as_deref()).map(best),
        "proof": answer.modes.first().filter(|mode| mode.fastest.is_some()).map(|mode| proof(solved, mode)),
        "modes": answer.modes.iter().map(|mode| mode_json(solved, mode)).collect::<Vec<_>>(),
        "alternatives": answer.neighbours.iter().filter_map(near).collect::<Vec<_>>(),
        "told_apart": answer.modes.first().map(|mode| &mode.apart),
        "equal": answer.modes.first().and_then(|mode| Some((mode.best.as_ref()?, &mode.equal)))
            .map(|(best, equals)| equals.iter().map(|one| equal(best, one)).collect::<Vec<_>>()),
        "frontier": frontier, "top": top,
        "refuted": refuted(solved).map(|(one, why)| json!({
            "flags": typed_line(solved.space.words(&one.point)),
            "why": why.why, "missing_bytes": why.missing,
        })).collect::<Vec<_>>(),
        "rejected": rejected(solved),
        "worst_stage": worst_stage(solved),
        "unpriced": found.tally.unpriced,
        "stats": stats(args, solved),
    })
}

/// How far it is proved that nothing is faster.
fn proof(solved: &Solved, mode: &ModeAnswer) -> Value {
    let left_out: Vec<&str> = solved.space.trimmed.iter().map(|finding| finding.object.as_str()).collect();
    let is_proved = mode.unproved == 0.0 && left_out.is_empty();
    json!({ "is_proved": is_proved, "faster_at_most": mode.unproved, "left_out": left_out })
}

/// What was looked at; only with `--stats` how long that took, since an answer is the same on any machine.
fn stats(args: &PlanArgs, solved: &Solved) -> Value {
    let found = &solved.found;
    let mut stats = json!({
        "enumerated": found.counts.enumerated, "legal": found.counts.legal, "priced": found.tally.priced,
        "bounded": found.tally.bounded, "unseen": found.tally.unseen, "fit": found.tally.fit, "simulated": found.simulated,
    });
    if args.search.stats {
        stats["seconds"] = json!(solved.seconds);
        stats["cpu_seconds"] = json!(solved.cpu_seconds);
        stats["threads"] = json!(solved.threads);
        stats["priced_per_second_per_core"] = json!(solved.priced_per_second);
    }
    stats
}

/// Layouts refused, by rule or line; those that only lost, by how.
fn rejected(solved: &Solved) -> Value {
    let found = &solved.found;
    let mut map = Map::new();
    map.extend(found.counts.refused.iter().map(|(rule, number)| (rule.to_string(), json!(number))));
    map.extend(misfits(solved).into_iter().map(|(line, number)| (line, json!(number))));
    map.insert("slower-by-bound".to_string(), json!(found.tally.bounded));
    let frontier = solved.kept().frontier.len() as u64;
    map.insert("dominated".to_string(), json!(found.tally.fit.saturating_sub(frontier)));
    Value::Object(map)
}

/// Where the stage stands that keeps a layout from fitting.
fn worst_stage(solved: &Solved) -> Value {
    let [only, first, middle, last] = solved.found.tally.misfit_at;
    json!({ "only": only, "first": first, "middle": middle, "last": last })
}

/// The degrees and policies of a layout.
pub fn layout_of(layout: &Layout, offload: f64, flags: &str) -> Value {
    let mut value = case::layout_json(layout);
    value["flags"] = json!(flags);
    value["offload_optimizer"] = json!(offload);
    value
}

fn best(choice: &Choice) -> Value {
    let stage = |class: &RankClass| {
        json!({ "stage": class.stage, "example_rank": class.first_rank, "rank_params": class.params,
            "total_bytes": class.total(), "allocated_peak_bytes": class.allocated_peak,
            "reserved_peak_bytes": class.reserved_peak, "headroom_bytes": class.headroom,
            "host_bytes": class.offload.host_bytes })
    };
    json!({
        "layout": layout_of(&choice.case.layout, choice.case.options.offload, &flags_of(&choice.case)), "flags": typed(&choice.case),
        "case": choice.case.to_json(), "step": choice.step, "header": Header::of(&choice.case), "host": choice.fit.host, "verdict": choice.fit.verdict, "complexity": choice.complexity,
        "headroom_bytes": choice.fit.tightest().headroom,
        "stages": choice.fit.classes.iter().map(stage).collect::<Vec<_>>(),
        "layers": choice.case.stages.layer_counts(),
        "notes": choice.notes,
    })
}

/// The layout to run, with the routing under which it fits.
fn shown(solved: &Solved, choice: &Choice) -> Value {
    let mut value = best(choice);
    let at = |Overloaded { factor, class }: &Overloaded| AtOverload {
        factor: *factor,
        total: class.total(),
        headroom: class.headroom,
    };
    let asked: Vec<AtOverload> = choice.fit.overloaded.iter().map(at).collect();
    value["overload"] = solved.overload(choice).map_or(Value::Null, |overload| overload_json(overload, &asked));
    value
}

fn simulated(solved: &Solved, one: &Simulated) -> Value {
    let layout = solved.space.layout(&one.point);
    let tokens = layout.sequence as f64 / one.per_sequence / layout.world as f64;
    let offload = solved.space.question.offload.share(one.point.offload);
    let seconds = one.per_sequence * layout.global_batch as f64;
    // Layouts of one search differ in nothing that intervals are made of, but for stages.
    let mut exact =
        solved.answer.modes.iter().flat_map(|mode| mode.fastest.iter().chain(&mode.best).chain(&mode.equal));
    let exact = exact.find(|choice| choice.point == one.point).map(|choice| choice.fit.tightest().headroom);
    let class = solved.answer.best().map(|best| Class { pipeline: layout.pp.splits(), ..Class::of(&best.case) });
    json!({
        "layout": layout_of(&layout, offload, &typed_line(solved.space.words(&one.point))), "seconds": seconds,
        "interval": class.map(|class| interval::interval(&class, seconds)),
        "tokens_per_second_per_device": tokens, "headroom_bytes": exact.unwrap_or(one.headroom),
        "is_replayed": exact.is_some(), "complexity": one.complexity,
    })
}

/// A mode's best beside the others': what it gives up, and what that gains.
fn mode_json(solved: &Solved, answer: &ModeAnswer) -> Value {
    let mode = &solved.space.modes[answer.mode];
    json!({
        "mode": mode.mode.map(|mode| mode.name()), "gives_up": given_up(mode),
        "needs": mode.brought().map(|seam| seam.name).collect::<Vec<_>>(),
        "best": answer.best.as_ref().map(|best| json!({
            "flags": typed(&best.case), "seconds": best.step.seconds, "interval": best.step.interval,
            "tokens_per_second_per_device": best.step.tokens_per_second_per_device,
            "total_bytes": best.fit.worst().total(), "headroom_bytes": best.fit.tightest().headroom,
        })),
    })
}

/// A layout that cannot be told from the best, and the part of a step that would tell them.
fn equal(best: &Choice, one: &Choice) -> Value {
    json!({
        "flags": typed(&one.case), "seconds": one.step.seconds, "slower": slower(best, one),
        "headroom_bytes": one.fit.tightest().headroom, "complexity": one.complexity,
        "decides": decides(&best.step, &one.step)
            .map(|(part, best, here)| json!({ "part": part, "best_seconds": best, "seconds": here })),
    })
}

fn neighbour(solved: &Solved, best: &Choice, one: &Neighbour) -> Value {
    json!({
        "axis": one.axis, "change": difference(solved, best, &one.point), "flags": typed_line(solved.space.words(&one.point)), "seconds": one.seconds,
        "slower": one.slower, "headroom_bytes": one.headroom,
    })
}
