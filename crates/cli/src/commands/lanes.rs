//! `lanes`: the ways to run a model, and which one suits.

use super::case_of;
use super::plan::written::emit;
use crate::args::LanesArgs;
use crate::files::{load_cluster, load_recipe};
use crate::outcome::{Outcome, Refusal, Report};
use crate::table::{heading, item, wrap};
use case::{Asked, Terms};
use diag::{Finding, Severity, Untrusted, quote};
use launch::lanes::{Goal, LANES, Lane, Recommendation, flags, recommend, topology, usual_goal};
use layout::engines::DECLINED;
use serde_json::json;

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
    let found = recommend(&recipe, name, &cluster, goal)?;
    let json = json!({ "recipe": recipe.name, "cluster": cluster, "goal": goal.name(), "recommended": found });
    let next = next(goal, on, name, &found);
    let tried = tried(&next);
    let mut json = json;
    json["next"] = json!({ "words": next, "topology": tried.as_ref().ok() });
    let report = Report::new(advice_text(&recipe.name, on, &found, &next, tried.as_deref().ok()), json);
    Ok(match tried {
        Ok(_) => report,
        Err(refusal) => report.with_findings(&as_warnings(refusal.findings)),
    })
}

/// The launch that the advice comes to, as words behind `shardwright launch`.
fn next(goal: Goal, on: &str, name: &str, found: &Recommendation) -> Vec<String> {
    let mut words = vec![name.to_string(), "--engine".to_string(), found.lane.engine.to_string()];
    words.extend(found.mode.iter().flat_map(|mode| ["--mode".to_string(), mode.to_string()]));
    words.extend(flags(goal).iter().map(|word| word.to_string()));
    words.extend(["--on".to_string(), on.to_string()]);
    words
}

/// The topology of that launch, by which a policy keeps what was tuned for it; or why it is refused.
fn tried(words: &[String]) -> Result<String, Refusal> {
    // Words of our own read back; a recipe of a strange name may still look like a flag.
    let Ok(asked) = Asked::parse(words) else { return Err(Refusal::from(Vec::new())) };
    let case = case_of(asked, Terms::RUN)?;
    emit(&case)?;
    Ok(topology(case.on(), &case.layout))
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

fn advice_text(
    recipe: &Untrusted,
    on: &str,
    found: &Recommendation,
    next: &[String],
    topology: Option<&str>,
) -> String {
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
    text += &heading(if topology.is_some() { "Next" } else { "Next, which is refused as it stands" });
    text += &format!("  shardwright launch {} --explain\n", quote::typed_line(next));
    text + &topology.map_or(String::new(), |topology| format!("  topology {topology}\n"))
}
