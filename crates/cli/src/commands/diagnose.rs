//! `diagnose`: from a symptom to the axis to look at, or to the family where no axis is at fault.

use super::receipt::{named, nan_order};
use crate::args::DiagnoseArgs;
use crate::outcome::{Outcome, Report};
use crate::table::{heading, item, wrap};
use ::receipt::Receipt;
use ::receipt::symptoms::symptoms;
use diag::{Blame, Finding};
use layout::diagnose::{At, Family, Match, all, diagnose};
use serde_json::json;

pub fn run(args: &DiagnoseArgs) -> Outcome {
    if let Some(name) = &args.receipt {
        return of_receipt(&named(&args.store.open()?, name)?.1);
    }
    let symptom = args.symptom.join(" ");
    let matches = diagnose(&symptom);
    let Some(best) = matches.first() else { return Err(unknown().into()) };
    let tied: Vec<&Match> = matches.iter().take_while(|m| m.score == best.score).collect();
    let also: Vec<&Match> = matches.iter().skip(tied.len()).take(3).collect();
    let mut text = tied.iter().map(|found| one(found)).collect::<Vec<_>>().join("\n");
    if text.contains("nam56r") {
        text += "\n\x1b[2mnam56r and its flags stand for your recipe, layout and cluster\x1b[0m\n";
    }
    if !also.is_empty() {
        let names: Vec<_> = also.iter().map(|m| m.diagnosis.place).collect();
        text += &format!("\x1b[2malso possible: {}\x1b[0m\n", names.join("; "));
    }
    let listed = |list: &[&Match]| list.iter().map(|m| json!(m.diagnosis)).collect::<Vec<_>>();
    let at = best.diagnosis.at;
    let json = json!({
        "symptom": symptom, "axis": at.axis(), "family": at.family(), "matches": listed(&tied), "also": listed(&also),
    });
    Ok(Report::new(text, json))
}

/// What a receipt shows, each with the diagnosis it is known by.
fn of_receipt(receipt: &Receipt) -> Outcome {
    let symptoms = symptoms(receipt);
    let (mut text, mut json) = (String::new(), Vec::new());
    for symptom in &symptoms {
        let known = match symptom.diagnosis {
            Some(id) => all().find(|known| known.id == id).map(|diagnosis| Match { diagnosis, score: 0 }),
            None => diagnose(&symptom.words).into_iter().next(),
        };
        text += &format!("\x1b[1mseen\x1b[0m  {}", wrap(&symptom.seen, "      ", 100).trim_start());
        text += &known.map_or("no known failure has these words\n".to_string(), |found| one(&found));
        if symptom.diagnosis == Some("not-a-number") {
            text += &nan_order();
        }
        text += "\n";
        json.push(json!({ "seen": symptom.seen, "diagnosis": known.map(|found| json!(found.diagnosis)) }));
    }
    if symptoms.is_empty() {
        text = "nothing that this receipt records went wrong\n".to_string();
    } else if text.contains("nam56r") && receipt.identity.recipe != "nam56r" {
        text += "\x1b[2mnam56r and its flags stand for your recipe, layout and cluster\x1b[0m\n";
    }
    Ok(Report::new(text, json!({ "receipt": receipt.id(), "symptoms": json })))
}

fn one(found: &Match) -> String {
    let d = found.diagnosis;
    let at = match d.at {
        At::Axis(axis) => format!("axis {axis}"),
        At::Family(family) => format!("family {}", family.name()),
    };
    let mut text =
        format!("look at \x1b[1m{}\x1b[0m ({at})\n", d.place) + &wrap(d.because, "  ", 100) + &heading("Inspect");
    for (i, step) in d.inspect.iter().enumerate() {
        text += &item(&format!("  {}. ", i + 1), step, 100);
    }
    text
}

/// No word is known: the families, so that the reader can ask again.
fn unknown() -> Finding {
    let families: Vec<String> = Family::ALL.iter().map(|(_, name, looks)| format!("{name}: {looks}")).collect();
    let hint = format!(
        "name the collective, block or resource and what it does, as `all-to-all hangs in the MoE layer`. What is known: \
         every axis of `shardwright axes`, and families of failures that no axis causes: {}",
        families.join("; ")
    );
    Finding::error("diagnose/unknown", Blame::Usage, "symptom", "no known failure matches these words").hint(hint)
}
