//! One published row: what it is read as, and where the seconds of its step go.

use super::{WIDTH, signed};
use crate::args::FidelityArgs;
use crate::commands::plan::text::seconds;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, wrap};
use case::Case;
use case::words::emitted;
use cost::Step;
use diag::{Blame, Finding};
use fidelity::{Figure, Priced, Pricing, priced};
use recipe::Mixer;
use serde_json::{Value, json};
use units::Bytes;

pub fn shown(args: &FidelityArgs, name: &str, read: &[(usize, Value)], pricing: Pricing) -> Outcome {
    let row = find(args, name, read)?;
    let Priced { measured, case, step } = priced(row, pricing).map_err(|why| {
        Finding::error("fidelity/row", Blame::Usage, name, format!("the step of `{name}` is not priced: {why}"))
            .hint("published runs that say enough have priced steps")
    })?;
    let figure = Figure::step_time(measured, step.seconds);
    let off = signed(figure.error(), 1);
    let mut text = format!("{name}: measured {}, priced {}, {off}\n", figure.measured, figure.predicted);
    let layout = case.layout.words(case.recipe.uses(Mixer::Moe)).join(" ");
    text += &(read_as(&case, &layout) + &parts(&step) + &traffic(&step));
    let json = json!({
        "row": name, "as_planned": args.as_planned, "measured": measured, "predicted": step.seconds,
        "error": figure.error(), "layout": layout, "step": step,
    });
    Ok(Report::new(text, json))
}

/// The row of this name, by its `id` or `name`.
fn find<'a>(args: &FidelityArgs, name: &str, read: &'a [(usize, Value)]) -> Result<&'a Value, Finding> {
    let named = |row: &'a Value| row["id"].as_str().or(row["name"].as_str()).unwrap_or_default();
    if let Some((_, row)) = read.iter().find(|(_, row)| named(row) == name) {
        return Ok(row);
    }
    let message = format!("`{}` has no row `{name}`", args.rows.display());
    let meant = diag::did_you_mean_name(name, read.iter().map(|(_, row)| named(row)));
    let hint = meant.map_or("--all lists the rows".to_string(), |meant| format!("did you mean `{meant}`?"));
    Err(Finding::error("fidelity/row", Blame::Usage, name, message).hint(hint))
}

/// The job, and what of its engine's options is not the engine's own.
fn read_as(case: &Case, layout: &str) -> String {
    let on = case.on();
    let options = emitted(case.layout.engine, &case.options).map(|(word, value)| format!("{}={value}", word.name));
    let options = options.collect::<Vec<_>>().join(" ");
    wrap(&format!("read as {layout} on {} x {}", on.devices(), on.device.name), "  ", WIDTH)
        + &wrap(&format!("with {options}"), "  ", WIDTH)
}

fn parts(step: &Step) -> String {
    let mut table = Table::new(&["part", "seconds", "share", "basis"]).right(&[1, 2]);
    for part in step.parts.iter().filter(|part| part.seconds != 0.0) {
        let share = format!("{:.1}%", 100.0 * part.share);
        table.row([part.name, &seconds(part.seconds), &share, part.basis.word()]);
    }
    heading("The step, on the stage that bounds it") + &table.render()
}

fn traffic(step: &Step) -> String {
    let mut table = Table::new(&["axis", "bytes of a rank", "shows", "hidden", "by"]).right(&[1, 2, 3]);
    for line in step.traffic.iter().filter(|line| line.bytes > 0.0) {
        let [shows, hidden] = [line.exposed, line.hidden].map(seconds);
        let place = if line.crosses_island { ", over islands" } else { "" };
        let by = format!("{} of {}{place}", line.algorithm, line.spread.members);
        table.row([line.axis, &Bytes(line.bytes as u64).to_string(), &shows, &hidden, &by]);
    }
    heading("What moves") + &table.render()
}
