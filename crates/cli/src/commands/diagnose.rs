//! `diagnose`: from a symptom to the axis to look at.

use crate::args::DiagnoseArgs;
use crate::outcome::{Outcome, Report};
use crate::table::{heading, wrap};
use diag::{Blame, Finding};
use layout::diagnose::{Match, diagnose};
use serde_json::json;

pub fn run(args: &DiagnoseArgs) -> Outcome {
    let symptom = args.symptom.join(" ");
    let matches = diagnose(&symptom);
    let Some(best) = matches.first() else {
        let finding =
            Finding::error("diagnose/unknown", Blame::Usage, "symptom", "no known failure matches these words");
        return Err(finding
            .hint("name the collective or block and what it does: `all-to-all hangs in the MoE layer`")
            .into());
    };
    let tied: Vec<&Match> = matches.iter().take_while(|m| m.score == best.score).collect();
    let also: Vec<&Match> = matches.iter().skip(tied.len()).take(3).collect();
    let mut text = String::new();
    for found in &tied {
        let d = found.diagnosis;
        text += &format!("look at \x1b[1m{}\x1b[0m (axis {})\n", d.place, d.axis);
        text += &wrap(d.because, "  ", 100);
        text += &heading("Inspect");
        for (i, step) in d.inspect.iter().enumerate() {
            text += &wrap(&format!("{}. {step}", i + 1), "  ", 100);
        }
        text.push('\n');
    }
    if !also.is_empty() {
        let names: Vec<_> = also.iter().map(|m| m.diagnosis.place).collect();
        text += &format!("\x1b[2malso possible: {}\x1b[0m\n", names.join("; "));
    }
    let listed = |list: &[&Match]| list.iter().map(|m| json!(m.diagnosis)).collect::<Vec<_>>();
    let json =
        json!({ "symptom": symptom, "axis": best.diagnosis.axis, "matches": listed(&tied), "also": listed(&also) });
    Ok(Report::new(text, json))
}
