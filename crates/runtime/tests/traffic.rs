//! What moves is what the layout says moves: bytes put into calls by axis, on every rank, in one
//! step. Where routing decides who sends how much, the sum over ranks is held to instead.

use layout::OwnershipTable;
use layout::activations::volume;
use runtime::optimizer::Settings;
use runtime::train::{Batch, Trainer};
use std::collections::BTreeMap;
use std::time::Duration;

mod splits;
use splits::{Case, cases, legal, recipe};

/// Bytes by axis; an axis nobody puts anything in on is not there.
type Bytes = BTreeMap<&'static str, u64>;

fn moved(case: &Case) -> (String, Vec<Bytes>, Vec<Bytes>) {
    let recipe = recipe(case.pattern, case.more);
    let checked = legal(&recipe, &case.request);
    let layout = checked.layout.as_ref().unwrap();
    let moved = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let mut trainer = Trainer::<f32>::new(&recipe, layout, comm, 5, Settings::default())?;
        trainer.step(&Batch::synthetic(&recipe, layout, 1, 0))?;
        let mut bytes = Bytes::new();
        for (call, _, moved) in comm.traffic().all() {
            *bytes.entry(call.axis).or_default() += moved.bytes;
        }
        bytes.retain(|_, b| *b > 0);
        Ok(bytes)
    });
    let moved = moved.into_iter().map(|m| m.unwrap_or_else(|f| panic!("{f:#?}"))).collect();
    let table = OwnershipTable::new(&recipe, layout).unwrap();
    let predicted = |rank| {
        let by_axis = volume::of_rank(&recipe, layout, &table, rank).unwrap();
        by_axis.into_iter().map(|(axis, moved)| (axis, moved.bytes(4))).collect()
    };
    let name = format!("{} {:?}: {}", case.pattern, case.more, layout.all_flags());
    (name, moved, (0..layout.world).map(predicted).collect())
}

/// Axes on which routing decides what one rank puts in.
const ROUTED: [&str; 2] = ["ep", "etp"];

fn over_ranks(all: &[Bytes], axis: &str) -> u64 {
    all.iter().filter_map(|bytes| bytes.get(axis)).sum()
}

#[test]
fn bytes_by_axis_are_the_layouts_on_every_rank() {
    let mut wrong = Vec::new();
    for case in cases() {
        let (name, moved, predicted) = moved(&case);
        for axis in ROUTED {
            let (a, b) = (over_ranks(&moved, axis), over_ranks(&predicted, axis));
            if a != b {
                wrong.push(format!("{name}\n  {axis} over all ranks: moved {a}, predicted {b}"));
            }
        }
        for (rank, (mut a, mut b)) in moved.into_iter().zip(predicted).enumerate() {
            for axis in ROUTED {
                a.remove(axis);
                b.remove(axis);
            }
            if a != b {
                wrong.push(format!("{name}\n  rank {rank}: moved {a:?}\n  predicted {b:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
