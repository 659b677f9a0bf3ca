//! `rehearse`: the plan executed on small dimensions, on all ranks and on one.

mod kept;
mod processes;
mod text;

use super::{asked, case_of, layout_json};
use crate::args::{RehearsalArgs, RehearseArgs};
use crate::files::read_text;
use crate::outcome::{NO, Outcome, Refusal, Report};
use case::Terms;
use case::asked::{EngineChoice, StateArgs};
use comm::Comm;
use diag::{Blame, Finding, quote};
use layout::Engine;
use runtime::rehearse::{
    Ask, Ending, Outcome as Ran, Parity, Prepared, Ranks, Rehearsal, Source, prepare, rehearse, rehearse_between,
};
use runtime::report::{Line, PhaseLine};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Seconds a rank waits for another: a fault is made to be seen soon, while a step of many ranks
/// on few cores may take its time.
const PATIENCE: f64 = 60.0;
const PATIENCE_WITH_FAULT: f64 = 5.0;

pub fn run(args: &RehearseArgs) -> Outcome {
    let patience = if args.how.inject.is_some() { PATIENCE_WITH_FAULT } else { PATIENCE };
    let deadline = deadline(args.how.deadline.unwrap_or(patience));
    match args.how.ranks {
        Ranks::Threads => on_ranks(args, deadline?, None, &mut None),
        Ranks::Mpi => processes::run(args, deadline),
    }
}

/// What a report begins with, however the run ends.
struct Begun {
    head: String,
    json: Value,
}

/// A rehearsal on threads, or on the ranks that `comm` is one of.
fn on_ranks(args: &RehearseArgs, deadline: Duration, comm: Option<&Comm>, begun: &mut Option<Begun>) -> Outcome {
    let state = StateArgs { optimizer: args.how.optimizer, ..StateArgs::default() };
    let mut asked = asked(&args.recipe, &args.layout, &state, None);
    // Our own runtime rehearses, and what it carries over a cut in time no other engine has to.
    asked.layout.engine.get_or_insert(EngineChoice::One(Engine::Shardwright));
    let case = case_of(asked.clone(), Terms::SPLIT)?;
    let request = args.layout.request();
    let limit = args.work.limit();
    let args = &args.how;
    let ask = Ask {
        recipe: &case.source,
        request: &request,
        dims: args.dims.clone().unwrap_or_default(),
        steps: args.steps,
        number: args.dtype,
        seed: args.seed,
        source: source(args)?,
        inject: args.inject,
        deadline,
        ranks: args.ranks,
        load: args.load.as_deref(),
        save: args.save.as_deref(),
        stats: args.stats.is_some() || args.receipts.is_some(),
        limit,
    };
    let prepared = prepare(&ask)?;
    comm.map_or(Ok(()), |comm| processes::fits(comm, &prepared))?;
    let begun = begun.insert(Begun { head: text::head(&ask, &prepared), json: common_json(&ask, &prepared) });
    let ran = match comm {
        None => rehearse(&ask, &prepared, &progress(&ask, &prepared))?,
        Some(comm) if comm.rank() == 0 => rehearse_between(&ask, &prepared, comm, &progress(&ask, &prepared))?,
        Some(comm) => rehearse_between(&ask, &prepared, comm, &|_| {})?,
    };
    let report = match ran {
        Ran::Ran(rehearsal) => {
            let mut report = finished(&ask, &prepared, begun, &rehearsal);
            for path in args.stats.iter().map(|path| kept::stats(path, &prepared, &rehearsal)) {
                let written: Vec<String> = path?.iter().map(|path| quote::shown(path).to_string()).collect();
                report.text += &format!("norms in {}\n", written.join(" and "));
            }
            if let Some(folder) = &args.receipts {
                kept::receipts(folder, &ask, &prepared, &rehearsal, &asked)?;
                let typed = |name: &str| quote::typed(folder.join(name).as_os_str());
                let (one, all) = (typed("one-rank.json"), typed("all-ranks.json"));
                report.text += &format!("two receipts; where they part:\n  shardwright receipt localise {one} {all}\n");
            }
            report
        }
        Ran::Ended(endings, seconds) => ended(begun, &endings, seconds),
        // The first process says everything, warnings too.
        Ran::Elsewhere => return Ok(Report::default()),
    };
    clear_progress();
    Ok(report.with_findings(&prepared.notes))
}

fn source(args: &RehearsalArgs) -> Result<Source, Refusal> {
    let Some(path) = &args.text else { return Ok(Source::Synthetic) };
    let text = read_text(path)?;
    if text.len() < 2 {
        let message = format!("`{}` is too short to learn from", path.display());
        let finding = Finding::error("rehearse/text", Blame::Usage, path.display().to_string(), message);
        return Err(finding.hint("without --text a synthetic sequence is learned").into());
    }
    Ok(Source::Text(text.into_bytes()))
}

fn deadline(seconds: f64) -> Result<Duration, Refusal> {
    let fits = (0.01..=3600.0).contains(&seconds);
    fits.then(|| Duration::from_secs_f64(seconds)).ok_or_else(|| {
        let message = format!("a deadline of {seconds} seconds is outside 0.01 to 3600");
        Finding::error("rehearse/deadline", Blame::Usage, "deadline", message).into()
    })
}

/// A line on the terminal that says how far it is.
fn progress(ask: &Ask, prepared: &Prepared) -> impl Fn(u64) + Sync + use<> {
    let (steps, world) = (ask.steps, prepared.layout.world);
    let is_seen = std::io::stderr().is_terminal();
    move |done: u64| {
        if !is_seen {
            return;
        }
        let (where_, step) =
            if done < steps { ("one rank".to_string(), done) } else { (format!("{world} ranks"), done - steps) };
        let filled = (20 * (done + 1) / (2 * steps)) as usize;
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(20 - filled.min(20)));
        let _ = write!(std::io::stderr(), "\r\x1b[K{bar} {where_}: step {} of {steps}", step + 1);
        let _ = std::io::stderr().flush();
    }
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

fn finished(ask: &Ask, prepared: &Prepared, begun: &Begun, rehearsal: &Rehearsal) -> Report {
    let text = begun.head.clone() + &text::body(ask, prepared, rehearsal);
    let report = Report::new(text, json(begun.json.clone(), rehearsal));
    if rehearsal.parity.passes() {
        return report;
    }
    report.refused(NO, [differs(&rehearsal.parity)])
}

/// A split that computes something else, for scripts; the text says it last, below the figures.
fn differs(parity: &Parity) -> Finding {
    let message = format!(
        "the ranks do not compute what one computes: losses differ by {:.1e}, gradients by {:.1e}, weights by {:.1e}, \
         and {:.1e} is allowed",
        parity.loss,
        parity.gradient(),
        parity.weight(),
        parity.tolerance
    );
    let hint = "the tensors that differ most are listed; --dtype f64 tells a mistake from rounding";
    Finding::error("rehearse/parity", Blame::Layout, "parity", message).hint(hint)
}

fn common_json(ask: &Ask, prepared: &Prepared) -> Value {
    let shrunk: Vec<Value> =
        prepared.changes.iter().map(|c| json!({ "size": c.what, "from": c.from, "to": c.to })).collect();
    let checked = layout::check(&prepared.recipe, ask.request);
    json!({
        "recipe": prepared.recipe.name, "layout": layout_json(&prepared.layout, &checked.derived), "shrunk": shrunk,
        "steps": ask.steps, "dtype": ask.number.name(), "seed": prepared.start.seed(), "notes": prepared.notes,
        "loaded": ask.load, "first_step": prepared.start.step(), "saved": saved(ask, prepared),
        "predicted_work": { "bytes": prepared.work.bytes, "operations": prepared.work.operations },
    })
}

/// The checkpoint a run ends with.
fn saved(ask: &Ask, prepared: &Prepared) -> Option<std::path::PathBuf> {
    let last = prepared.start.step() + ask.steps;
    ask.save.map(|folder| folder.join(format!("step-{last}")))
}

fn json(mut out: Value, r: &Rehearsal) -> Value {
    let worst = |all: &[runtime::rehearse::Worst]| {
        let shown = all.iter().take(text::WORST).filter(|w| w.difference > 0.0);
        shown.map(|w| json!({ "tensor": w.path, "difference": number(w.difference) })).collect::<Vec<_>>()
    };
    let load = |l: &runtime::rehearse::Load| {
        json!({ "expert_layer": l.layer, "tokens": l.tokens,
            "without_tokens": l.tokens.iter().filter(|n| **n == 0).count() })
    };
    out["parity"] = json!({
        "pass": r.parity.passes(), "tolerance": r.parity.tolerance, "judged_steps": r.parity.steps,
        "loss": number(r.parity.loss), "gradient": number(r.parity.gradient()), "weight": number(r.parity.weight()),
        "drift": number(r.parity.drift),
        "worst_gradients": worst(&r.parity.gradients), "worst_weights": worst(&r.parity.weights),
    });
    out["losses"] = json!({ "one_rank": r.one, "all_ranks": r.many });
    out["traffic"] = r
        .traffic
        .iter()
        .map(|m| json!({ "axis": m.axis, "predicted_bytes": m.predicted_bytes, "moved_bytes": m.moved_bytes }))
        .collect();
    out["memory"] = r
        .memory
        .iter()
        .map(|l| {
            json!({ "rank": l.rank, "line": l.line.name(), "predicted_bytes": l.predicted_bytes,
                "held_bytes": l.held_bytes, "balanced_bytes": l.balanced_bytes })
        })
        .collect();
    out["phases"] = r.phases.iter().map(phase_json).collect();
    out["router_load"] = r.load.iter().map(load).collect();
    out["seconds"] = json!({ "one_rank": r.seconds.0, "all_ranks": r.seconds.1 });
    out
}

fn phase_json(p: &PhaseLine) -> Value {
    let line = |(line, predicted, held): &(Line, u64, u64)| json!({ "line": line.name(), "predicted_bytes": predicted, "held_bytes": held });
    json!({
        "rank": p.rank, "phase": p.phase.name(), "predicted_peak_bytes": p.predicted_peak_bytes,
        "peak_bytes": p.peak_bytes, "other_bytes": p.other_bytes, "lines": p.lines.iter().map(line).collect::<Vec<_>>(),
    })
}

/// A difference as JSON has it: what is no number there is written as a word.
fn number(difference: f64) -> Value {
    if difference.is_finite() { json!(difference) } else { json!("infinite") }
}

fn ended(begun: &Begun, endings: &[Ending], seconds: f64) -> Report {
    let mut json = begun.json.clone();
    let ending = |e: &Ending| json!({ "ranks": e.ranks, "finding": e.finding });
    json["ended"] = endings.iter().map(ending).collect();
    json["seconds"] = json!({ "all_ranks": seconds });
    let because = endings.iter().map(|ending| ending.finding.clone());
    Report::new(begun.head.clone() + &text::endings(endings, seconds), json).refused(NO, because)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_that_computes_something_else_is_named() {
        let gradients = vec![runtime::rehearse::Worst { path: "layers.0.mlp.fc1.weight".to_string(), difference: 0.5 }];
        let parity = Parity { tolerance: 1e-9, steps: 1, loss: 0.1, drift: 0.1, gradients, weights: Vec::new() };
        assert!(!parity.passes());
        let finding = differs(&parity);
        assert_eq!(finding.rule, "rehearse/parity");
        assert!(finding.message.contains("losses differ by 1.0e-1, gradients by 5.0e-1"), "{}", finding.message);
    }
}
