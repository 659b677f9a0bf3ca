//! The most a rank really has allocated in each phase of a step is what `memory`'s ledger replays,
//! nearly.

use layout::OwnershipTable;
use ledger::shardwright::Phase;
use runtime::live::Meter;
use runtime::optimizer::Settings;
use runtime::report::{self, PhaseLine, StepHeld, Subject};
use runtime::train::{Batch, Trainer};
use std::time::Duration;

use crate::splits::{Case, cases, legal, recipe_of};

/// How far a prediction may be off.
const NEAR: f64 = 0.05;

/// Wide enough in tokens that tensors, not the names of parameters, are what is held.
const TABLES: &str = r#"
source = "test"
hidden = 32
vocab = 64
sequence = 128
rope_theta = 100.0

[attention]
heads = 4
kv_heads = 2
head_dim = 8

[moe]
experts = 8
top_k = 2
ffn = 32

[moe.shared]
ffn = 32

[mlp]
ffn = 64

[recurrent]
heads = 4
qk_heads = 4
key_dim = 4
value_dim = 8
"#;

/// The phases that are furthest off, with how far; those of one case.
fn errors(case: &Case) -> Vec<(String, f64)> {
    let recipe = recipe_of(TABLES, case.pattern, case.more);
    let checked = legal(&recipe, &case.request);
    let layout = checked.layout.as_ref().unwrap();
    let table = OwnershipTable::new(&recipe, layout).unwrap();
    let results = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let _meter = Meter::start(comm);
        let mut trainer = Trainer::<f32>::new(&recipe, layout, comm, 5, Settings::default())?;
        trainer.step(&Batch::synthetic(&recipe, layout, 1, 0))?;
        trainer.step(&Batch::synthetic(&recipe, layout, 1, 1))?;
        Ok(trainer.last().clone())
    });
    let held: Vec<StepHeld> = results.into_iter().map(|r| r.unwrap_or_else(|f| panic!("{f:#?}"))).collect();
    let of = Subject { recipe: &recipe, layout, table: &table, bytes_each: 4 };
    let lines = report::phases(&of, &held).unwrap();
    let name = |line: &PhaseLine| {
        let PhaseLine { rank, phase, predicted_peak_bytes, peak_bytes, .. } = line;
        let what = format!("{} {:?}: {}", case.pattern, case.more, layout.all_flags());
        format!("{what}\n    {phase} of rank {rank}: {predicted_peak_bytes} predicted, {peak_bytes:?} allocated")
    };
    Phase::ALL
        .iter()
        .map(|(_, phase)| {
            let of_phase = lines.iter().filter(|line| line.phase == *phase);
            let worst = of_phase.max_by(|a, b| error(a).abs().total_cmp(&error(b).abs()));
            let worst = worst.unwrap_or_else(|| panic!("no line of {phase:?} for {}", case.pattern));
            (name(worst), error(worst))
        })
        .collect()
}

fn error(line: &PhaseLine) -> f64 {
    line.error().unwrap_or(f64::INFINITY)
}

#[test]
fn peaks_are_near() {
    // Of the many layouts of the long patterns a quarter will do here.
    let is_long = |case: &Case| case.pattern.starts_with("AEME");
    let cases: Vec<Case> = cases()
        .into_iter()
        .enumerate()
        .filter(|(i, case)| !is_long(case) || i % 4 == 0)
        .map(|(_, case)| case)
        .collect();
    let all: Vec<(String, f64)> = cases.iter().flat_map(errors).collect();
    let wrong: Vec<String> =
        all.iter().filter(|(_, e)| e.abs() > NEAR).map(|(name, e)| format!("{:+.1}% {name}", 100.0 * e)).collect();
    assert!(wrong.is_empty(), "{} of {} are off:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}
