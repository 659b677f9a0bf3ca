//! `plan`: what to run on a cluster. Searches every legal layout that the typed flags leave open,
//! and shows the best one on a screen: memory, time, what stands beside it, and why the rest lost.

mod explain;
mod json;
mod progress;
mod sweep;
mod text;
mod written;

use super::fit::{check_state, recipe_under, tell};
use crate::args::{EngineChoice, PlanArgs};
use crate::files::load_cluster;
use crate::outcome::{DOES_NOT_FIT, NO, Outcome, Refusal, Report};
use diag::{Blame, Finding, Severity};
use hardware::Cluster;
use layout::{Engine, Layout, LayoutRequest, check};
use ledger::Ledger;
use progress::Progress;
use recipe::Recipe;
use replay::Unmodelled;
use search::{Answer, Effort, Found, OffloadChoice, Question, Reach, Space, answer, lay_out, pricers, search};
use std::time::Instant;
use units::Bytes;
use written::Written;

/// Layouts kept in case the replay refuses the first.
const KEPT: usize = 24;

/// How often the sums are asked to be more careful, when the replay refuses all that were kept.
const ROUNDS: usize = 3;

/// What was typed, read.
pub struct Asked {
    recipe: Recipe,
    cluster: Cluster,
    pinned: LayoutRequest,
    /// Whether the engine was typed.
    engine_typed: bool,
}

/// A search done.
pub struct Solved<'a> {
    space: &'a Space<'a>,
    found: Found,
    answer: Answer,
    seconds: f64,
    /// Seconds of cores it took, where the system says.
    cpu_seconds: Option<f64>,
    threads: usize,
    caution: Bytes,
}

pub fn run(args: &PlanArgs) -> Outcome {
    let clusters = sweep::clusters(&args.on)?;
    if clusters.len() > 1 || args.search.sequences.len() > 1 {
        return sweep::run(args, &clusters);
    }
    let sequence = args.search.sequences.first().copied();
    let asked = Asked::new(args, &args.on, sequence)?;
    with_solution(args, &asked, |solved| report(args, &asked, solved))
}

impl Asked {
    /// Reads what was typed, for one cluster and sequence.
    pub fn new(args: &PlanArgs, on: &str, sequence: Option<u64>) -> Result<Asked, Refusal> {
        let recipe = recipe_under(&args.recipe, &args.state)?;
        let cluster = load_cluster(on)?;
        check_state(&args.state, &cluster)?;
        let mut pinned = args.layout.request();
        if let Some(world) = pinned.world.filter(|world| *world != cluster.devices()) {
            let message = format!("`--world {world}` is not the {} devices of `{on}`", cluster.devices());
            return Err(Finding::error("plan/world", Blame::Usage, "world", message).hint("leave --world out").into());
        }
        pinned.world = None;
        pinned.sequence = sequence.or(pinned.sequence);
        let engine_typed = args.layout.engine.is_some();
        pinned.engine = args.layout.engine.unwrap_or(EngineChoice::One(Engine::Megatron)).engine();
        if args.state.offload_activations > 0.0 {
            let message = "activations on the host are not searched over";
            let finding = Finding::error("plan/offload", Blame::Usage, "offload-activations", message);
            return Err(finding.hint("`shardwright fit` prices them for one layout").into());
        }
        Ok(Asked { recipe, cluster, pinned, engine_typed })
    }
}

/// The time's view of a typed format.
fn format_of(args: &PlanArgs) -> Option<cost::Format> {
    let word = args.state.precision.format();
    cost::Format::ALL.iter().find(|(name, _)| *name == word).map(|(_, format)| *format)
}

/// Searches, and hands over what was found.
fn with_solution<T>(
    args: &PlanArgs,
    asked: &Asked,
    then: impl FnOnce(&Solved) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let ledger = |recipe: &Recipe, layout: &Layout| -> Result<Ledger, Unmodelled> {
        let mut ledger = Ledger::of(layout.engine, recipe, layout)?;
        let refused = |refusal: Refusal| {
            let why = refusal.findings.first().map_or(String::new(), |finding| finding.message.clone());
            Unmodelled::new("what was typed", why)
        };
        tell(&mut ledger, &args.state).map_err(refused)?;
        Ok(ledger)
    };
    let mut options = cost::Options::of(asked.pinned.engine, &asked.recipe);
    options.format = format_of(args).unwrap_or(options.format);
    let offload = args.state.offload_optimizer.map_or(OffloadChoice::Free, OffloadChoice::Pinned);
    let mut caution = Bytes(0);
    let (start, before) = (Instant::now(), cpu_seconds());
    for round in 1.. {
        let question = Question {
            recipe: &asked.recipe,
            cluster: &asked.cluster,
            pinned: &asked.pinned,
            headroom: args.search.keep_headroom.bytes(asked.cluster.device.visible_bytes()),
            caution,
            offload,
            reach: if args.search.max_tp_in_node { Reach::Node } else { Reach::Anywhere },
            ledger: &ledger,
            options,
        };
        let space = lay_out(question)?;
        let pricers = pricers(&space);
        let progress = Progress::new();
        let keep = KEPT.max(args.search.top);
        let effort = if args.search.stats { Effort::Priced } else { Effort::Bounded };
        let found = search(&space, &pricers, keep, effort, &|done, all| progress.show(done, all));
        progress.clear();
        let seconds = start.elapsed().as_secs_f64();
        let cpu_seconds = before.zip(cpu_seconds()).map(|(before, after)| after - before);
        let answer = answer(&space, &pricers, &found);
        let missing = answer.unseated.iter().map(|unseated| unseated.missing).max().unwrap_or(0);
        if answer.best.is_none() && missing > 0 && round < ROUNDS {
            caution = Bytes(caution.0 + missing);
            continue;
        }
        let threads = rayon::current_num_threads();
        return then(&Solved { space: &space, found, answer, seconds, cpu_seconds, threads, caution });
    }
    unreachable!("the last round returns")
}

/// Seconds that all threads of this process have run, where the system says.
fn cpu_seconds() -> Option<f64> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let ran = |thread: std::fs::DirEntry| -> Option<f64> {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(threads.flatten().filter_map(ran).sum::<f64>() / 1e9)
}

/// What was found, as text and JSON.
fn report(args: &PlanArgs, asked: &Asked, solved: &Solved) -> Outcome {
    let explained = args.search.explain.as_ref().map(|typed| explain::explain(asked, solved, typed)).transpose()?;
    let written = solved.answer.best.as_ref().map(|best| Written::of(asked, solved, best));
    let mut text = text::screen(args, asked, solved, written.as_ref());
    let mut json = json::of(args, asked, solved);
    if let Some((words, value)) = explained {
        text += &words;
        json["explained"] = value;
    }
    let mut report = Report::new(text, json);
    if let Some(best) = &solved.answer.best {
        let missing = written.map_or_else(Vec::new, |written| written.findings());
        report = report.with_findings(&[best.notes.clone(), missing].concat());
    } else if solved.found.counts.legal == 0 {
        report = report.with_findings(&pinned_findings(asked, solved));
    }
    report.exit = match &solved.answer.best {
        Some(_) => 0,
        None if solved.found.counts.legal == 0 => NO,
        None => DOES_NOT_FIT,
    };
    Ok(report)
}

/// What refuses the typed flags by themselves, with the values that would do.
fn pinned_findings(asked: &Asked, solved: &Solved) -> Vec<Finding> {
    let request = LayoutRequest {
        world: Some(solved.space.world),
        mode: solved.space.realms.first().and_then(|realm| realm.mode),
        ..asked.pinned.clone()
    };
    let findings = check(&asked.recipe, &request).findings;
    findings.into_iter().filter(|finding| finding.severity == Severity::Error).collect()
}
