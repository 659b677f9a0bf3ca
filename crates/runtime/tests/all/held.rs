//! What a rank holds is what `memory`'s ledger of this runtime says for the routing that happened, to
//! the byte, line by line and phase by phase.

use layout::{LayoutRequest, OwnershipTable};
use runtime::optimizer::Settings;
use runtime::report::{self, PhaseLine, StepHeld, Subject};
use runtime::train::{Batch, Trainer};
use std::time::Duration;

use crate::splits::{STEPPED, Stepped, legal, recipe};

/// Lines of every rank that are not what was predicted for the routing that happened.
fn wrong(stepped: &Stepped) -> Vec<String> {
    let Stepped { name, recipe, layout, held, .. } = stepped;
    let table = OwnershipTable::new(recipe, layout).unwrap();
    let of = Subject { recipe, layout, table: &table, bytes_each: 4 };
    let mut wrong = Vec::new();
    for line in report::memory(&of, held).unwrap() {
        if line.predicted_bytes != line.held_bytes {
            wrong.push(format!("{name}\n  {line:?}"));
        }
    }
    for PhaseLine { rank, phase, lines, .. } in report::phases(&of, held).unwrap() {
        for (line, predicted, held) in lines.into_iter().filter(|(_, predicted, held)| predicted != held) {
            wrong.push(format!("{name}\n  {line} of rank {rank} in {phase}: {held}, predicted {predicted}"));
        }
    }
    wrong
}

#[test]
fn lines_are_the_ledgers_on_every_rank_in_every_phase() {
    let wrong: Vec<String> = STEPPED.iter().flat_map(wrong).collect();
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The report shows the same figures: by rank and line, by phase, and by axis.
#[test]
fn a_report_has_both_sides() {
    let recipe = recipe("AF", "");
    let request = LayoutRequest { tp: Some(2), dp: Some(2), ..LayoutRequest::default() };
    let checked = legal(&recipe, &request);
    let layout = checked.layout.as_ref().unwrap();
    let table = OwnershipTable::new(&recipe, layout).unwrap();
    let results = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let mut trainer = Trainer::<f64>::new(&recipe, layout, comm, 5, Settings::default())?;
        trainer.step(&Batch::synthetic(&recipe, layout, 1, 0))?;
        Ok((trainer.last().clone(), report::moved(&comm.traffic().all())))
    });
    let (held, moved): (Vec<StepHeld>, Vec<_>) = results.into_iter().map(|r| r.unwrap()).unzip();
    let of = Subject { recipe: &recipe, layout, table: &table, bytes_each: 8 };
    let lines = report::memory(&of, &held).unwrap();
    assert_eq!(lines.len(), 16);
    assert!(lines.iter().all(|l| l.predicted_bytes == l.held_bytes && l.held_bytes > 0), "{lines:#?}");
    let phases = report::phases(&of, &held).unwrap();
    assert_eq!(phases[..4].iter().map(|p| p.phase.name()).collect::<Vec<_>>(), ["state", "fwdbwd", "reduce", "opt"]);
    // This program does not count what is allocated.
    assert!(phases.len() == 16 && phases.iter().all(|p| p.peak_bytes.is_none()), "{phases:#?}");
    let moved: Vec<_> = moved.iter().zip(&held).map(|(moved, step)| (moved.as_slice(), &step.routing)).collect();
    let axes = report::traffic(&of, &moved).unwrap();
    assert!(axes.iter().all(|a| a.predicted_bytes == a.moved_bytes), "{axes:#?}");
    assert_eq!(axes.iter().map(|a| a.axis).collect::<Vec<_>>(), ["tp", "sp", "dp", "world"]);
}
