//! What a rank holds is what `memory`'s ledger of this runtime says, to the byte, line by line.

use layout::{LayoutRequest, OwnershipTable};
use memory::ledger::shardwright::{Held, held};
use recipe::Mixer;
use runtime::optimizer::Settings;
use runtime::real::Real;
use runtime::report;
use runtime::train::{Batch, Trainer};
use std::time::Duration;

mod splits;
use splits::{Case, cases, legal, recipe};

/// What every rank holds during a step, and what was predicted.
fn lines<R: Real>(case: &Case) -> (String, Vec<(Held, Held)>) {
    let recipe = recipe(case.pattern, case.more);
    let checked = legal(&recipe, &case.request);
    let layout = checked.layout.as_ref().unwrap();
    let table = OwnershipTable::new(&recipe, layout).unwrap();
    let results = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let mut trainer = Trainer::<R>::new(&recipe, layout, comm, 5, Settings::default())?;
        trainer.gradients(&Batch::synthetic(&recipe, layout, 1, 0))?;
        Ok((trainer.held(), held(&recipe, layout, &table, comm.rank() as u64, R::BYTES)?))
    });
    let name = format!("{} {:?}: {}", case.pattern, case.more, layout.all_flags());
    (name, results.into_iter().map(|r| r.unwrap_or_else(|f| panic!("{f:#?}"))).collect())
}

/// Rows that routing sends elsewhere are kept elsewhere, so those add up over ranks that are in
/// step; everything else is exact on every rank.
fn check<R: Real>(case: &Case, wrong: &mut Vec<String>) {
    let (name, lines) = lines::<R>(case);
    let is_routed = recipe(case.pattern, case.more).uses(Mixer::Moe);
    let saved = |pick: fn(&(Held, Held)) -> u64| lines.iter().map(pick).sum::<u64>();
    let (is, should) = (saved(|l| l.0.saved), saved(|l| l.1.saved));
    // With several microbatches each rank's most may fall on another of them.
    if case.request.microbatches == Some(1) && is != should {
        wrong.push(format!("{name}\n  saved over all ranks: {is}, predicted {should}"));
    }
    for (rank, (is, should)) in lines.iter().enumerate() {
        let should = Held { saved: if is_routed { is.saved } else { should.saved }, ..*should };
        if *is != should {
            wrong.push(format!("{name}\n  rank {rank}: {is:?}\n  predicted {should:?}"));
        }
    }
}

#[test]
fn lines_are_the_ledgers_on_every_rank() {
    let mut wrong = Vec::new();
    for case in cases() {
        check::<f32>(&case, &mut wrong);
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The report shows the same figures: by rank and line, and by axis over the steps of a run.
#[test]
fn a_report_has_both_sides() {
    let recipe = recipe("AF", "");
    let request = LayoutRequest { tp: Some(2), dp: Some(2), ..LayoutRequest::default() };
    let checked = legal(&recipe, &request);
    let layout = checked.layout.as_ref().unwrap();
    let table = OwnershipTable::new(&recipe, layout).unwrap();
    let results = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let mut trainer = Trainer::<f64>::new(&recipe, layout, comm, 5, Settings::default())?;
        (0..2).try_for_each(|step| trainer.step(&Batch::synthetic(&recipe, layout, 1, step)).map(|_| ()))?;
        let moved = report::moved(&comm.traffic().all());
        trainer.gradients(&Batch::synthetic(&recipe, layout, 1, 2))?;
        Ok((trainer.held(), moved))
    });
    let (held, moved): (Vec<Held>, Vec<_>) = results.into_iter().map(|r| r.unwrap()).unzip();
    let lines = report::memory(&recipe, layout, &table, &held, 8).unwrap();
    assert_eq!(lines.len(), 16);
    assert!(lines.iter().all(|l| l.predicted_bytes == l.held_bytes && l.held_bytes > 0), "{lines:#?}");
    let axes = report::traffic(&recipe, layout, &table, &moved, 2, 8).unwrap();
    assert!(axes.iter().all(|a| a.predicted_bytes == a.moved_bytes), "{axes:#?}");
    assert_eq!(axes.iter().map(|a| a.axis).collect::<Vec<_>>(), ["tp", "sp", "dp", "world"]);
}
