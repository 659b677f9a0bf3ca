//! `receipt compare`: like with like, layer by layer.

use super::sides::{SideArgs, changes_heading, changes_text, gib};
use super::{percent, short};
use crate::outcome::{NO, Outcome, Report};
use crate::table::{Table, heading, wrap};
use ::receipt::Receipt;
use ::receipt::compare::{Basis, Comparison, Losses, Sameness, Speed, compare};
use ::receipt::gate::kind_name;
use ::receipt::statistics::{ALPHA, Summary, Welch};
use clap::Args;
use diag::{Blame, Finding};
use serde_json::{Value, json};

/// Arguments of `receipt compare`.
#[derive(Args)]
pub struct CompareArgs {
    #[command(flatten)]
    pub sides: SideArgs,
}

pub fn run(args: &CompareArgs) -> Outcome {
    let (old, new) = args.sides.read()?;
    let found = compare(&old, &new)?;
    let mut text = who("old", &old) + &who("new", &new);
    text += &(changes_heading(found.layer) + &changes_text(&found.changes));
    text += &refusals(&found);
    text += &found.speed.as_ref().map_or(String::new(), speed);
    text += &memory(&found);
    text += &found.losses.as_ref().map_or(String::new(), losses);
    let ids = |side: &[Receipt]| side.iter().map(Receipt::id).collect::<Vec<_>>();
    let mut json = serde_json::to_value(&found).unwrap_or(Value::Null);
    json["old"] = json!(ids(&old));
    json["new"] = json!(ids(&new));
    let report = Report::new(text, json);
    match unlike(&found) {
        Some(finding) => Ok(report.with_findings(std::slice::from_ref(&finding)).refused(NO, [finding])),
        None => Ok(report),
    }
}

/// The refusal of a comparison that says nothing of throughput.
fn unlike(found: &Comparison) -> Option<Finding> {
    let why = found.refused.throughput.first()?;
    let message = format!("their throughput is not compared: {why}");
    let hint = "runs of one recipe, mode, feature bundle and lane are compared; the table says where these part";
    Some(Finding::error("receipt/unlike", Blame::Usage, "compare", message).hint(hint))
}

fn who(which: &str, side: &[Receipt]) -> String {
    let Some(first) = side.first() else { return String::new() };
    let identity = &first.identity;
    let ids: Vec<String> = side.iter().map(|receipt| short(&receipt.id()).to_string()).collect();
    let mut words = vec![identity.recipe.clone(), first.kind.name().to_string()];
    words.extend(identity.mode.clone());
    words.extend(identity.lane.clone().map(|lane| format!("lane {lane}")));
    words.extend(identity.topology.clone());
    format!("\x1b[1m{which}\x1b[0m  {}\n", words.join(", ")) + &wrap(&ids.join(" "), "     ", 100)
}

fn refusals(found: &Comparison) -> String {
    let mut out = String::new();
    let lists =
        [("throughput", &found.refused.throughput), ("memory", &found.refused.memory), ("losses", &found.refused.loss)];
    for (what, why) in lists.into_iter().filter(|(_, why)| !why.is_empty()) {
        out += &wrap(&format!("{what} may not be compared: {}", why.join("; ")), "  ", 100);
    }
    if !found.refused.unknown.is_empty() && found.losses.is_some() {
        let unknown = found.refused.unknown.join(" and ");
        let words =
            format!("not both runs say their {unknown}: equal losses are equal, unequal ones may come from that");
        out += &wrap(&words, "  ", 100);
    }
    if out.is_empty() { out } else { heading("What may not be compared") + &out }
}

fn noise(summary: &Summary) -> String {
    summary.deviation.map_or(String::new(), |d| format!("± {:.4}", d))
}

fn tested(test: Option<&Welch>, of: &str) -> String {
    match test {
        None => format!("one value a side: no test of {of}"),
        Some(test) => {
            let word = if test.differs() { "they differ" } else { "no difference is shown" };
            let p = if test.p < 1e-4 { format!("{:.0e}", test.p) } else { format!("{:.4}", test.p) };
            format!("{word}: p {p} against {ALPHA} (Welch's t {:.2}, {:.1} degrees of freedom)", test.t, test.freedom)
        }
    }
}

fn speed(found: &Speed) -> String {
    let mut table = Table::new(&["", "old", "", "new", "", "change"]).right(&[1, 3, 5]);
    let seconds = |s: f64| format!("{s:.4} s");
    table.row([
        "seconds a step, median",
        &seconds(found.old.median),
        &noise(&found.old),
        &seconds(found.new.median),
        &noise(&found.new),
        &found.change.map_or("other batch".to_string(), percent),
    ]);
    if let (Some((old, new)), Some(change)) = (found.tokens_per_second, found.throughput_change()) {
        table.row(["tokens a second", &format!("{old:.0}"), "", &format!("{new:.0}"), "", &percent(change)]);
    }
    let basis = match found.basis {
        Basis::Runs => format!("medians of {} and {} runs", found.old.count, found.new.count),
        Basis::Steps => format!(
            "{} and {} steps of one run a side, which say how steady it was and not how far another start is off",
            found.old.count, found.new.count
        ),
    };
    heading("Throughput")
        + &table.render()
        + &wrap(&format!("{}; {basis}", tested(found.test.as_ref(), "means")), "  ", 100)
}

fn memory(found: &Comparison) -> String {
    let mut out = String::new();
    if !found.memory.is_empty() {
        let mut table = Table::new(&["peak", "ranks", "old", "new", "change", ""]).right(&[2, 3, 4]);
        for row in &found.memory {
            let word = if row.shows() { "" } else { "within rounding" };
            table.row([kind_name(row.kind), &row.class, &gib(row.old), &gib(row.new), &percent(row.change()), word]);
        }
        out += &(heading("Memory, measured") + &table.render());
    }
    if !found.lines.is_empty() {
        let mut table = Table::new(&["line", "ranks", "old", "new"]).right(&[2, 3]);
        for row in found.lines.iter().take(12) {
            table.row([row.line.as_str(), &row.class, &gib(row.old), &gib(row.new)]);
        }
        out += &(heading("Lines that were predicted otherwise, at the peak") + &table.render());
    }
    out
}

fn losses(found: &Losses) -> String {
    let tier = match &found.same {
        Sameness::Bits => "bit for bit the same".to_string(),
        Sameness::Printed { digits } => {
            format!("the same in all {digits} digits that the log prints; it cannot show whether the bits are")
        }
        Sameness::Order => "the same within the order of accumulation".to_string(),
        Sameness::Statistically => {
            "statistically the same: late means of several runs cannot be told apart".to_string()
        }
        Sameness::Different => "different: late means of several runs differ".to_string(),
        Sameness::Undecided => {
            "further apart than the order of accumulation explains; several runs a side tell whether it is noise"
                .to_string()
        }
    };
    let mut out = heading("Loss")
        + &wrap(&format!("{tier} ({} common steps, at most {:.1e} apart)", found.steps, found.largest), "  ", 100);
    if let Some(parted) = &found.parted {
        let words = format!(
            "they part at step {}: {:.6} and {:.6}, where {:.1e} is allowed",
            parted.step, parted.old, parted.new, parted.allowed
        );
        out += &wrap(&words, "  ", 100);
    }
    if found.other_seed {
        out += "  their seeds differ, so that only several runs a side can show them the same\n";
    }
    if let Some((old, new)) = &found.late {
        let words =
            format!("late mean {:.6} and {:.6}; {}", old.mean, new.mean, tested(found.test.as_ref(), "late means"));
        out += &wrap(&words, "  ", 100);
    }
    out
}
