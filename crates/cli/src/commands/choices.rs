//! `choices`: every axis with the values it could take in this job's place.

use super::{asked, model_line_at, recipe_of};
use crate::args::ChoicesArgs;
use crate::files::load_cluster;
use crate::outcome::{Outcome, Report};
use crate::table::wrap;
use case::{Axis, Choices, Tried};
use diag::{Finding, RuleId};
use serde_json::{Value, json};

pub fn run(args: &ChoicesArgs) -> Outcome {
    let (recipe, cluster) = (recipe_of(&args.recipe)?, load_cluster(&args.on)?);
    let choices = Choices::of(&asked(&args.recipe, &args.layout, &args.state, Some(&args.on)), &recipe, &cluster);
    let legal = choices.refusals.is_empty();
    let mut text = format!("{}\n", model_line_at(&recipe, args.layout.seq));
    text += match legal {
        true => "\x1b[1;32mlegal\x1b[0m as it stands; one change at a time:\n",
        false => "\x1b[1;31mnot legal\x1b[0m as it stands (`shardwright check` says why); one change at a time:\n",
    };
    text += &choices.axes.iter().map(axis_text).collect::<String>();
    let json = json!({
        "recipe": recipe.name, "legal": legal, "findings": choices.refusals,
        "axes": choices.axes.iter().map(axis_json).collect::<Vec<_>>(),
    });
    Ok(Report::new(text, json))
}

fn axis_json(axis: &Axis) -> Value {
    json!({
        "axis": axis.flag, "now": axis.now, "typed": axis.is_typed,
        "values": axis.values.iter().map(tried_json).collect::<Vec<_>>(),
    })
}

fn tried_json(tried: &Tried) -> Value {
    json!({ "value": tried.value, "legal": tried.refusals.is_empty(), "brings": tried.brings, "findings": tried.refusals })
}

/// A word as it is typed.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "the recipe's".to_string(),
        Value::Bool(true) => "on".to_string(),
        Value::Bool(false) => "off".to_string(),
        Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

/// An axis in a few lines: what it is, what it may be, and by which rule it may not be the rest.
fn axis_text(axis: &Axis) -> String {
    let legal: Vec<String> =
        axis.values.iter().filter(|tried| tried.refusals.is_empty()).map(|tried| word(&tried.value)).collect();
    let may_be = if legal.is_empty() { "nothing else as things stand".to_string() } else { legal.join(", ") };
    // Bold last: what is wrapped is quoted, escapes with it.
    let said = wrap(&format!("{} is {}, may be {may_be}", axis.flag, word(&axis.now)), "", 80);
    let mut out = said.replacen(axis.flag, &format!("\x1b[1m{}\x1b[0m", axis.flag), 1);
    let mut by_rule: Vec<(RuleId, Vec<String>, &Finding)> = Vec::new();
    for tried in &axis.values {
        let Some(first) = tried.refusals.first() else { continue };
        match by_rule.iter_mut().find(|(rule, ..)| *rule == first.rule) {
            Some((_, values, _)) => values.push(word(&tried.value)),
            None => by_rule.push((first.rule, vec![word(&tried.value)], first)),
        }
    }
    for (rule, values, finding) in by_rule {
        let of = if values.len() == 1 { String::new() } else { format!(" (of {})", values[0]) };
        out += &wrap(&format!("not {}: {}{of} [{rule}]", values.join(", "), finding.message), "  ", 80);
    }
    out
}
