//! `axes`: what each axis is.

use crate::args::AxesArgs;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, wrap};
use diag::{Blame, Finding, did_you_mean};
use layout::axes::{AXES, AxisFacts, NOT_AXES, ORDER, find};
use serde_json::json;

pub fn run(args: &AxesArgs) -> Outcome {
    match &args.axis {
        None => Ok(Report::new(overview(), json!({ "axes": AXES, "order": ORDER, "not_axes": NOT_AXES }))),
        Some(name) => match find(name) {
            Some(axis) => Ok(Report::new(one(axis), json!({ "axis": axis }))),
            None => Err(unknown(name).into()),
        },
    }
}

fn unknown(name: &str) -> Finding {
    let known = AXES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
    let finding = Finding::error("axes/unknown", Blame::Usage, name, format!("there is no axis `{name}`"));
    match did_you_mean(name, AXES.iter().map(|a| a.name)) {
        Some(close) => finding.hint(format!("did you mean `{close}`? axes are {known}")),
        None => finding.hint(format!("axes are {known}")),
    }
}

fn overview() -> String {
    let mut table = Table::new(&["axis", "partitions", "communicates", "cannot fix"]);
    for axis in AXES {
        table.row([axis.name, axis.partitions, axis.communicates, axis.cannot_fix]);
    }
    let mut out = table.render();
    out += &heading("Order of application");
    out += &wrap(ORDER, "  ", 110);
    out += &heading("Not axes");
    for (name, why) in NOT_AXES {
        out += &wrap(&format!("{name}: {why}"), "  ", 110);
    }
    out + "\n`shardwright axes AXIS` tells all of one\n"
}

fn one(axis: &AxisFacts) -> String {
    let mut out = format!("\x1b[1m{}\x1b[0m  {}\n", axis.name, axis.title);
    for (label, text) in [
        ("partitions", axis.partitions),
        ("communicates", axis.communicates),
        ("best for", axis.best_for),
        ("needs", axis.needs),
        ("cannot fix", axis.cannot_fix),
        ("placement", axis.placement),
    ] {
        out += &heading(label);
        out += &wrap(text, "  ", 100);
    }
    if let Some(order) = axis.order {
        out += &format!("\n\x1b[2mapplied as number {order} of {ORDER}\x1b[0m\n");
    }
    out
}
