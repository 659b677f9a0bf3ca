//! `lanes`: the ways to run a model, and which one suits.

use crate::args::LanesArgs;
use crate::files::{load_cluster, load_recipe};
use crate::outcome::{Outcome, Report};
use crate::table::{heading, wrap};
use launch::lanes::{Goal, LANES, Lane, Recommendation, recommend, usual_goal};
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
    Ok(Report::new(advice_text(name, on, &found), json))
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
            text += &format!("  {key:<11}{value}\n");
        }
    }
    text
}

fn advice_text(recipe: &str, on: &str, found: &Recommendation) -> String {
    let mut text = format!("\x1b[1m{recipe}\x1b[0m on {on}: lane \x1b[1m{}\x1b[0m", found.lane.name);
    if let Some(mode) = found.mode {
        text += &format!(", mode {mode}");
    }
    text += &format!("\n{}", lane_text(found.lane));
    for (title, lines) in [("Because", &found.because), ("What would change it", &found.would_change)] {
        text += &heading(title);
        text += &lines.iter().map(|line| wrap(line, "  ", 110)).collect::<String>();
    }
    let mode = found.mode.map_or(String::new(), |mode| format!(" --mode {mode}"));
    let engine = found.lane.engine;
    text + &heading("Next") + &format!("  shardwright launch {recipe} --engine {engine}{mode} --on {on} --explain\n")
}
