//! `plan`: what to run on a cluster. Searches every legal layout that the typed flags leave open,
//! and shows the best one on a screen: memory, time, what stands beside it, and why the rest lost.

mod besides;
pub mod budget;
pub mod engines;
mod explain;
mod json;
mod others;
pub mod pools;
mod progress;
pub mod size;
mod sweep;
pub mod text;
pub mod trust;
mod ways;
pub mod written;

use super::{asked, recipe_of, seen, widths};
use crate::args::PlanArgs;
use crate::files::load_cluster;
use crate::outcome::{DOES_NOT_FIT, NO, Outcome, Refusal, Report};
use crate::pictures;
use case::asked::EngineChoice;
use case::{Asked, Options, is_about_widths, machines, options_of, wrong_world};
use diag::{Blame, Finding, Severity};
use draw::Picture;
use fleet::words::FleetText;
use hardware::{Cluster, split_pools};
use layout::{Engine, LayoutRequest, check};
use memory::fit::Overload;
use progress::Progress;
use recipe::Recipe;
use search::{
    Answer, Besides, Best, Choice, Effort, Found, Left, Nearest, Offered, OffloadChoice, Pricer, Question, Reach,
    Replays, Scope, Space, answer, lay_out, may_fit, nearest, price_all, pricers, search,
};
use std::cell::OnceCell;
use std::time::Instant;
use work::Limit;
use written::Written;

/// What is to be planned: what was typed, read.
#[derive(Clone)]
pub struct Wanted {
    asked: Asked,
    recipe: Recipe,
    cluster: Cluster,
    pinned: LayoutRequest,
    options: Options,
    /// Why it is this engine, where none was typed.
    why_engine: Option<String>,
}

/// A search done.
pub struct Solved<'a> {
    space: &'a Space<'a>,
    found: Found,
    answer: Answer,
    /// Where nothing fits and that is shown, the layout that misses by least.
    nearest: Option<Nearest>,
    seconds: f64,
    /// Seconds of cores it took, where the system says.
    cpu_seconds: Option<f64>,
    /// Layouts priced a second of a core, where that was asked for and the system says.
    priced_per_second: Option<f64>,
    threads: usize,
    /// What replays may still take.
    left: Left,
    pricers: &'a [Pricer<'a>],
    /// Priced for the text, and said again in the JSON.
    other_batches: OnceCell<Vec<(u64, f64)>>,
    /// Options that were left off, priced on the best layout once.
    besides: OnceCell<Vec<Besides>>,
    /// Where uneven routing breaks the best layout, searched for once.
    overload: OnceCell<Option<Overload>>,
}

impl Solved<'_> {
    /// Tokens a second and device of the best layout with half and twice the batch.
    fn other_batches(&self, best: &Choice) -> &[(u64, f64)] {
        self.other_batches.get_or_init(|| text::price_other_batches(best))
    }

    /// What the engine of the best layout can do besides.
    fn besides(&self, best: &Choice) -> &[Besides] {
        self.besides.get_or_init(|| search::besides(best, self.space.question.margin()))
    }

    /// How uneven routing may become before the best layout no longer fits; none where the model has no experts.
    fn overload(&self, best: &Choice) -> Option<&Overload> {
        let find = || Overload::of(&best.case, &best.fit, self.left.beside(self.pricers));
        self.overload.get_or_init(find).as_ref()
    }

    /// The best few and the frontier of the mode to run.
    fn kept(&self) -> &Best {
        &self.found.best[self.answer.modes.first().map_or(0, |mode| mode.mode)]
    }
}

/// What a search is to bring.
#[derive(Clone, Copy)]
pub struct Aim {
    scope: Scope,
    replays: Replays,
    /// Whether state on the host and options that are off by default are searched over.
    pub is_open: bool,
    misses: Misses,
}

/// What is said where nothing fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misses {
    /// Which layout misses by least.
    Nearest,
    /// That nothing does.
    Nothing,
}

impl Aim {
    /// Everything a screen shows; of a run's page, the best alone.
    fn of(args: &PlanArgs) -> Aim {
        let search = &args.search;
        let shows_more = search.top > 0 || search.stats || search.explain.is_some();
        let is_page = args.budget.tokens.is_some() && !shows_more && args.pictures.given().next().is_none();
        let keep = search.top;
        match is_page {
            true => Aim { misses: Misses::Nearest, ..Aim::alone() },
            false => {
                let (scope, replays) = (Scope::all(keep), Replays::Around);
                Aim { scope, replays, is_open: true, misses: Misses::Nearest }
            }
        }
    }

    /// The best alone, wherever its state is, where something fits.
    fn alone() -> Aim {
        Aim { is_open: true, ..Aim::fleet(f64::INFINITY) }
    }

    /// The best alone, of layouts that take at most so many seconds a sequence.
    fn fleet(most: f64) -> Aim {
        let reach = 1.0 + cost::interval::most_apart();
        Aim { scope: Scope { keep: 1, reach, most }, replays: Replays::Best, is_open: false, misses: Misses::Nothing }
    }
}

pub fn run(args: &PlanArgs) -> Outcome {
    match FleetText::parse(&args.on)? {
        FleetText::Any(devices) => size::run(args, &devices),
        FleetText::Several(clusters) => sweep::run(args, &clusters),
        FleetText::One(on) if split_pools(&on).is_some() => pools::run(args, &on),
        FleetText::One(on) if args.search.sequences.len() > 1 => sweep::run(args, &[on]),
        FleetText::One(on) => {
            if let Some(asked) = engines::asked(args, &on)? {
                return engines::run(args, &on, &asked);
            }
            let wanted = Wanted::new(args, &on, args.search.sequences.first().copied())?;
            with_solution(args, &wanted, Aim::of(args), |solved| report(args, &wanted, solved))
                .map_err(|refusal| others::named(args, &wanted, refusal))
        }
    }
}

impl Wanted {
    /// Reads what was typed, for one cluster and sequence.
    pub fn new(args: &PlanArgs, on: &str, sequence: Option<u64>) -> Result<Wanted, Refusal> {
        Wanted::on(args, on, load_cluster(on)?, sequence)
    }

    /// The same on a cluster that the text is of, or part of.
    fn on(args: &PlanArgs, on: &str, cluster: Cluster, sequence: Option<u64>) -> Result<Wanted, Refusal> {
        let recipe = recipe_of(&args.recipe)?;
        let recipe = args.state.optimizer.map_or(recipe.clone(), |choice| choice.applied(recipe));
        let mut asked = asked(&args.recipe, &args.layout, &args.state, Some(on));
        asked.layout.seq = sequence.or(asked.layout.seq);
        let (usual, why) = machines::usual_engine(&recipe, Some(&cluster));
        let why_engine = asked.layout.engine.is_none().then_some(why);
        let engine = asked.layout.engine.get_or_insert(EngineChoice::One(usual)).engine();
        if let Some(finding) = machines::refusal(engine.unwrap_or(Engine::Megatron), &cluster, &asked) {
            return Err(finding.into());
        }
        let mut pinned = asked.layout.request();
        if let Some(world) = pinned.world.take().filter(|world| *world != cluster.devices()) {
            return Err(wrong_world(world, cluster.devices(), on).into());
        }
        if args.state.offload_activations > 0.0 {
            let message = "activations on the host are not searched over";
            let finding = Finding::error("plan/offload", Blame::Usage, "offload-activations", message);
            return Err(finding.hint("`shardwright fit` prices them for one layout").into());
        }
        let (options, _) = options_of(&asked, pinned.engine, &recipe, Some(&cluster))?;
        Ok(Wanted { asked, recipe, cluster, pinned, options, why_engine })
    }

    /// Whether the state of some layout has room: where none has, nothing needs to be searched to say that nothing fits.
    fn may_fit(&self, args: &PlanArgs, aim: Aim) -> bool {
        may_fit(self.question(args, aim, &args.work.of_an_answer()))
    }

    /// What is searched; with state on the device and options off where the aim leaves them there and nothing else was
    /// typed.
    fn question<'a>(&'a self, args: &PlanArgs, aim: Aim, limit: &'a Limit) -> Question<'a> {
        let is_free = aim.is_open && args.state.offload_optimizer.is_none();
        let pinned = OffloadChoice::Pinned(args.state.offload_optimizer.unwrap_or(0.0));
        let is_offered = aim.is_open && args.state.engine_args.is_empty();
        Question {
            asked: &self.asked,
            recipe: &self.recipe,
            cluster: &self.cluster,
            pinned: &self.pinned,
            options: self.options,
            offered: if is_offered { Offered::Searched } else { Offered::Off },
            headroom: args.search.headroom.on(&self.cluster.device, &self.recipe),
            overload: args.search.overload,
            offload: if is_free { OffloadChoice::Free } else { pinned },
            reach: if args.search.max_tp_in_node { Reach::Node } else { Reach::Anywhere },
            limit,
        }
    }
}

/// Searches, and hands over what was found.
fn with_solution<T>(
    args: &PlanArgs,
    wanted: &Wanted,
    aim: Aim,
    then: impl FnOnce(&Solved) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let (start, before) = (Instant::now(), cpu_seconds());
    let limit = args.work.of_an_answer();
    let question = wanted.question(args, aim, &limit);
    let effort = if args.search.stats { Effort::Priced } else { Effort::Bounded };
    let space = lay_out(question, effort)?;
    let mut left = Left::of(&space);
    let pricers = pricers(&space);
    let priced_per_second = if args.search.stats { priced_per_second(&space, &pricers) } else { None };
    let progress = Progress::new();
    let mut found = search(&space, &pricers, (aim.scope, effort), &mut left, &|done, all| progress.show(done, all));
    progress.clear();
    if progress.is_stopped() {
        let message = "the search was stopped before its end";
        return Err(Finding::error("plan/stopped", Blame::Usage, "plan", message).into());
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = before.zip(cpu_seconds()).map(|(before, after)| after - before);
    let answer = answer(&space, &pricers, &mut found, &mut left, aim.replays);
    let is_missed = aim.misses == Misses::Nearest && answer.best().is_none();
    let nearest = if is_missed { nearest(&space, &pricers, &mut found, &mut left) } else { None };
    then(&Solved {
        space: &space,
        found,
        answer,
        nearest,
        seconds,
        cpu_seconds,
        priced_per_second,
        threads: rayon::current_num_threads(),
        left,
        pricers: &pricers,
        other_batches: OnceCell::new(),
        besides: OnceCell::new(),
        overload: OnceCell::new(),
    })
}

/// How fast every layout of a space is priced, replays and simulations apart.
fn priced_per_second(space: &Space, pricers: &[Pricer]) -> Option<f64> {
    let before = cpu_seconds();
    let priced = price_all(space, pricers).priced;
    let (before, after) = before.zip(cpu_seconds())?;
    (priced > 0).then(|| priced as f64 / (after - before).max(1e-9))
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
fn report(args: &PlanArgs, wanted: &Wanted, solved: &Solved) -> Outcome {
    let explained = args.search.explain.as_ref().map(|typed| explain::explain(solved, typed)).transpose()?;
    let written = solved.answer.best().map(Written::of);
    let seen = match solved.answer.best() {
        Some(best) => seen::write(&args.seen, &best.case, best.fit.worst().stage, &args.work.of_an_answer())?,
        None => seen::Written::default(),
    };
    let run = match (args.budget.tokens, solved.answer.best()) {
        (Some(tokens), Some(best)) => Some(budget::Run::of(&args.budget, tokens, &best.case, &best.step)?),
        _ => None,
    };
    let ways = match solved.answer.best() {
        None => ways::ways(args, wanted, solved),
        Some(_) => Vec::new(),
    };
    let mut text = match (&run, solved.answer.best()) {
        (Some(run), Some(_)) => text::page(args, wanted, solved, written.as_ref(), run),
        _ => text::screen(args, wanted, solved, written.as_ref(), &ways),
    };
    let mut json = json::of(args, wanted, solved);
    json["ways"] = ways::json(&ways);
    if let Some(run) = &run {
        json["budget"] = run.json();
    }
    if let Some((words, value)) = explained {
        text += &words;
        json["explained"] = value;
    }
    text += &seen.paragraph();
    seen.into_json(&mut json);
    if let Some(best) = solved.answer.best() {
        json["best"]["slower_widths"] = widths::json(&best.case);
    }
    let undrawn = match solved.answer.best() {
        Some(_) => pictures::write(&args.pictures, Picture::Frontier, &json).map(|()| None)?,
        None => pictures::none(&args.pictures, "no layout fits, so there is none to draw"),
    };
    let mut report = Report::new(text, json).with_findings(&solved.space.trimmed).with_findings(undrawn.as_slice());
    if let Some(best) = solved.answer.best() {
        let missing = written.map_or_else(Vec::new, |written| written.findings());
        let about_widths = best.case.findings.iter().filter(|finding| is_about_widths(finding)).cloned().collect();
        report = report.with_findings(&[best.notes.clone(), about_widths, missing].concat());
        return Ok(match run.as_ref().zip(args.budget.days).filter(|(run, days)| run.budget.days > *days) {
            Some((run, days)) => report.refused(NO, [late(run, days)]),
            None => report,
        });
    }
    if solved.found.counts.legal == 0 {
        let findings = pinned_findings(wanted, solved);
        let because = if findings.is_empty() { vec![none(wanted, solved)] } else { findings.clone() };
        let is_the_engine = findings.iter().any(|finding| matches!(finding.blame, Blame::Engine | Blame::Missing));
        let others = is_the_engine.then(|| others::note(args, wanted)).flatten();
        let report = report.with_findings(&findings).with_findings(others.as_slice());
        return Ok(report.refused(NO, because.into_iter().chain(others)));
    }
    Ok(report.refused(DOES_NOT_FIT, [none(wanted, solved)]))
}

/// That the run takes longer than it may.
fn late(run: &budget::Run, days: f64) -> Finding {
    let message = format!("it takes {} days, and {days} are allowed", budget::text::days(run.budget.days));
    Finding::error("plan/days", Blame::Layout, "days", message).hint("`--on ?xDEVICE` looks for a fleet that does it")
}

/// That there is nothing to run, for scripts; the text says it first.
fn none(wanted: &Wanted, solved: &Solved) -> Finding {
    let message = text::verdict(wanted, solved).to_lowercase();
    Finding::error("plan/none", Blame::Layout, "layout", message)
        .hint(text::ways_out(&wanted.pinned, solved.space.question.margin()))
}

/// What refuses the typed flags by themselves, with the values that would do.
fn pinned_findings(wanted: &Wanted, solved: &Solved) -> Vec<Finding> {
    let request = LayoutRequest {
        world: Some(solved.space.world),
        mode: solved.space.modes.first().and_then(|mode| mode.mode),
        ..wanted.pinned.clone()
    };
    let findings = check(&wanted.recipe, &request).findings;
    findings.into_iter().filter(|finding| finding.severity == Severity::Error).collect()
}
