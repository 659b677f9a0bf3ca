//! `lanes`: the ways to run a model, and which one suits.

use super::case_of;
use super::launch::verdict;
use super::plan::engines::{NOTHING_FITS, Row, compared, to_take};
use super::plan::text::seconds;
use super::plan::written::emit;
use crate::args::{LanesArgs, PlanArgs};
use crate::files::{load_cluster, load_recipe};
use crate::outcome::{Outcome, Refusal, Report};
use crate::table::{heading, item, wrap};
use case::asked::{EngineChoice, LayoutArgs};
use case::machines::Suited;
use case::{Case, Terms};
use diag::{Blame, Finding, Severity, Untrusted, quote};
use launch::lanes::{self, Goal, LANES, Lane, Recommendation, topology, usual_goal};
use layout::Engine;
use layout::engines::DECLINED;
use memory::fit::{Fit, HEADROOM};
use recipe::Mode;
use search::NO_LEDGER;
use serde_json::json;
use units::Bytes;

pub fn run(args: &LanesArgs) -> Outcome {
    let Some(name) = &args.recipe else {
        let mut text: String = LANES.iter().map(lane_text).collect();
        for (engine, why) in DECLINED {
            text += &(format!("\n\x1b[1m{engine}\x1b[0m  declined\n") + &wrap(why, "  ", 100));
        }
        let declined: Vec<_> = DECLINED.iter().map(|(name, why)| json!({ "engine": name, "reason": why })).collect();
        return Ok(Report::new(text, json!({ "lanes": LANES, "declined": declined })));
    };
    let recipe = load_recipe(name)?;
    let usual = if args.goal == Some(Goal::Tpu) { "8xTPU-v6e" } else { "8xH200" };
    let on = args.on.as_deref().unwrap_or(usual);
    let cluster = load_cluster(on)?;
    let goal = args.goal.unwrap_or(usual_goal(&cluster));
    let asked = lanes::Asked { recipe: &recipe, typed: name, cluster: &cluster, goal };
    let advice = advised(&asked, on)?;
    let Advice { found, next, topology, findings } = &advice;
    let json = json!({
        "recipe": recipe.name, "cluster": cluster, "goal": goal.name(), "recommended": found,
        "next": { "command": next.command(), "words": next.words(), "topology": topology },
    });
    let text = advice_text(&recipe.name, on, &advice);
    Ok(Report::new(text, json).with_findings(&as_warnings(findings.clone())))
}

/// What is printed for a recipe.
struct Advice {
    found: Recommendation,
    next: Next,
    /// What a policy keeps tuned constants by, where there is a launch.
    topology: Option<String>,
    findings: Vec<Finding>,
}

/// A command that runs as it is printed, without its name.
enum Next {
    Launch(Vec<String>),
    /// Nothing fits, or nothing is written down: what would do is `plan`'s to say.
    Plan(Vec<String>),
}

impl Next {
    fn command(&self) -> &'static str {
        match self {
            Next::Launch(_) => "launch",
            Next::Plan(_) => "plan",
        }
    }

    fn words(&self) -> &[String] {
        match self {
            Next::Launch(words) | Next::Plan(words) => words,
        }
    }
}

/// Searches as `plan` does under each engine that suits, and takes the one that `plan` takes.
fn advised(asked: &lanes::Asked, on: &str) -> Result<Advice, Refusal> {
    let Suited { engines, why } = lanes::engines(asked)?;
    let args = question(asked, on, &engines);
    let rows = compared(&args, on, &engines);
    let mut because = vec![why];
    if let Some((row, best)) = to_take(&rows) {
        because.extend(rows.iter().filter(|_| rows.len() > 1).map(compared_text));
        because.push(format!("its best layout: {}", best.flags));
        because.extend(best.mode.map(|mode| mode_text(mode, &best.lacks)));
        let found = lanes::recommend(asked, row.engine, best.mode, because);
        let (next, topology) = match &best.launch {
            Some(words) => (Next::Launch(words.clone()), Some(best.topology.clone())),
            None => (Next::Plan(args.words()), None),
        };
        return Ok(Advice { found, next, topology, findings: best.findings.clone() });
    }
    if let [row] = rows.as_slice()
        && let Err(refusal) = &row.found
    {
        if refusal.findings.iter().any(|finding| finding.rule == NO_LEDGER) {
            return Ok(unpriced(asked, &args, row, because));
        }
        if refusal.findings.iter().all(|finding| finding.rule != NOTHING_FITS) {
            return Err(Refusal::from(refusal.findings.clone()));
        }
    }
    because.extend(rows.iter().map(compared_text));
    let found = lanes::recommend(asked, engines[0], None, because);
    Ok(Advice { found, next: Next::Plan(args.words()), topology: None, findings: Vec::new() })
}

/// The same as a question to `plan`: an engine is typed where the goal is not the usual one.
fn question(asked: &lanes::Asked, on: &str, engines: &[Engine]) -> PlanArgs {
    let mut job = case::Asked::default();
    job.recipe.recipe = asked.typed.to_string();
    lanes::pin(asked.goal, &mut job);
    let is_usual = asked.goal == usual_goal(asked.cluster);
    job.layout.engine = engines.first().filter(|_| !is_usual).map(|engine| EngineChoice::One(*engine));
    PlanArgs::of(job, on)
}

/// An engine that nothing is priced for: the launch it would be, memory unknown, where what is counted of it fits.
fn unpriced(asked: &lanes::Asked, args: &PlanArgs, row: &Row, mut because: Vec<String>) -> Advice {
    because.push(format!("no layouts are compared: {}", row.why().unwrap_or_default()));
    let typed = case::Asked {
        recipe: args.recipe.clone(),
        on: Some(args.on.clone()),
        layout: LayoutArgs { engine: Some(EngineChoice::One(row.engine)), ..args.layout.clone() },
        state: args.state.clone(),
    };
    match written(typed.clone()) {
        Ok(case) => {
            let mut words = typed.words();
            words.push("--override-memory".to_string());
            let found = lanes::recommend(asked, row.engine, case.layout.mode, because);
            let topology = Some(topology(case.on(), &case.layout));
            Advice { found, next: Next::Launch(words), topology, findings: Vec::new() }
        }
        Err(refusal) => Advice {
            found: lanes::recommend(asked, row.engine, None, because),
            next: Next::Plan(args.words()),
            topology: None,
            findings: refusal.findings,
        },
    }
}

/// A job that `launch` writes down, and whose counted bytes a device holds.
fn written(asked: case::Asked) -> Result<Case, Refusal> {
    let case = case_of(asked, Terms::RUN)?;
    emit(&case)?;
    let memory = verdict(&case, &Fit::price(&case, HEADROOM), false);
    if memory.does_not_fit() {
        let message = format!("the plan does not fit: {}", memory.detail);
        return Err(Finding::error("launch/memory", Blame::Layout, "memory", message).into());
    }
    Ok(case)
}

/// One engine's step and headroom, or why it was not searched.
fn compared_text(row: &Row) -> String {
    match &row.found {
        Ok(best) => {
            let left = Bytes(best.headroom.max(0) as u64);
            format!("{}: a step of {}, {left} left on the fullest rank", row.engine, seconds(best.seconds))
        }
        Err(_) => format!("{}: {}", row.engine, row.why().unwrap_or_default()),
    }
}

fn mode_text(mode: Mode, lacks: &[&str]) -> String {
    match lacks {
        [] => format!("mode {mode} gives nothing up"),
        lacks => format!("mode {mode} gives up {}; `plan` says what the other modes take", lacks.join(", ")),
    }
}

/// Refusals of a command that is only printed.
fn as_warnings(findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().map(|finding| Finding { severity: Severity::Warning, ..finding }).collect()
}

fn lane_text(lane: &Lane) -> String {
    let modes: Vec<&str> = lane.modes.iter().map(|m| m.name()).collect();
    let mut text = format!("\n\x1b[1m{}\x1b[0m  --engine {}\n", lane.name, lane.engine);
    for (key, value) in [
        ("wrapper", lane.wrapper),
        ("optimizer", lane.optimizer),
        ("compile", lane.compile),
        ("dispatcher", lane.dispatcher),
        ("modes", &modes.join(", ")),
        ("because", lane.reason),
        ("not for", lane.not_for),
    ] {
        if !value.is_empty() {
            text += &item(&format!("  {key:<11}"), value, 200);
        }
    }
    text
}

fn advice_text(recipe: &Untrusted, on: &str, advice: &Advice) -> String {
    let Advice { found, next, topology, .. } = advice;
    let mut text = format!(
        "\x1b[1m{}\x1b[0m on {}: lane \x1b[1m{}\x1b[0m",
        recipe.terminal(),
        quote::terminal(on),
        found.lane.name
    );
    if let Some(mode) = found.mode {
        text += &format!(", mode {mode}");
    }
    text += &format!("\n{}", lane_text(found.lane));
    for (title, lines) in [("Because", &found.because), ("What would change it", &found.would_change)] {
        text += &heading(title);
        text += &lines.iter().map(|line| wrap(line, "  ", 110)).collect::<String>();
    }
    let line = quote::typed_line(next.words());
    text += &match next {
        Next::Launch(_) => heading("Next") + &format!("  shardwright launch {line} --explain\n"),
        Next::Plan(_) => {
            heading("Next: there is nothing to launch as it stands, and `plan` says why and what would do")
                + &format!("  shardwright plan {line}\n")
        }
    };
    text + &topology.as_ref().map_or(String::new(), |topology| format!("  topology {topology}\n"))
}
