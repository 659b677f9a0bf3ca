//! `schedule`: the simulated step, stage by stage: what runs when, and where nothing does.

mod events;
mod text;

use super::fit::step_json;
use super::{asked, case_of, layout_json};
use crate::args::ScheduleArgs;
use crate::outcome::{Outcome, Refusal, Report};
use crate::pictures;
use case::{Case, Terms};
use cost::Unpriced;
use cost::trace::Trace;
use diag::{Blame, Finding};
use draw::Picture;
use events::Events;
use serde_json::json;
use work::{Limit, Work};

/// Slices that are asked for: many more than are answered, so that what is folded is decided here.
const MOST_SLICES: usize = 60_000;

/// Nanoseconds of one core for a simulated pass, as of `--trace`.
const NANOSECONDS: u64 = 100;

pub fn run(args: &ScheduleArgs) -> Outcome {
    let case = case_of(asked(&args.recipe, &args.layout, &args.state, Some(&args.on)), Terms::RUN)?;
    let trace = simulated(&case, &args.work.of_an_answer())?;
    let step = cost::step(&case);
    let events = Events::of(&case, &trace);
    let ranks = case.layout.world / case.layout.pp.get();
    let stage = |(number, time): (usize, &cost::StageTime)| {
        json!({
            "stage": number, "ranks": { "first": number as u64 * ranks, "count": ranks },
            "busy": time.busy, "idle": time.idle, "sending": time.sending,
        })
    };
    let json = json!({
        "recipe": case.recipe.name, "layout": layout_json(&case.layout, &case.defaults), "engine": case.engine().name(),
        "seconds": trace.seconds, "schedule": case.layout.schedule.name(), "microbatches": case.layout.microbatches,
        "chunks_a_stage": case.stages.chunks.len() / trace.stages.len().max(1),
        "stages": trace.stages.iter().enumerate().map(stage).collect::<Vec<_>>(),
        "tracks": events.tracks(), "folded_passes": events.folded, "left_out": events.left_out(),
        "events": events.all, "step": step_json(&step), "case": case.to_json(), "findings": case.findings,
    });
    pictures::write(&args.pictures, Picture::Schedule, &json)?;
    let text = text::of(&case, &trace, step.as_ref().ok(), &events);
    Ok(Report::new(text, json).with_findings(&case.findings))
}

/// The step of a job, simulated, unless that takes more of this machine than is allowed.
fn simulated(case: &Case, limit: &Limit) -> Result<Trace, Refusal> {
    let blocks = cost::trace::blocks(&case.layout).map_err(|reason| unpriced(&reason))?;
    let predicted = Work { bytes: 0, operations: blocks.saturating_mul(NANOSECONDS) };
    limit.check("simulating every pass of a step", predicted, "fewer --microbatches")?;
    cost::trace(case, MOST_SLICES).map_err(|reason| unpriced(&reason))
}

fn unpriced(reason: &Unpriced) -> Refusal {
    let message = format!("there is no step to lay out in time: {reason}");
    Finding::error("schedule/unpriced", Blame::Engine, reason.what.clone(), message)
        .hint("price another engine or device; docs/time.md says what has a price")
        .into()
}
