//! What moves is what the layout says moves: bytes put into calls by axis, on every rank, in one
//! step, for the routing that happened. Without drops balanced routing moves as much over all ranks.

use layout::OwnershipTable;
use layout::activations::{Dealing, Routing, volume};
use runtime::optimizer::Settings;
use runtime::train::{Batch, Trainer};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::splits::{Case, cases, legal, recipe};

/// Bytes by axis; an axis nobody puts anything in on is not there.
type Bytes = BTreeMap<&'static str, u64>;

/// By rank what moved, and what was predicted with the routing that happened and with a balanced one.
fn moved(case: &Case) -> (String, Vec<[Bytes; 3]>) {
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
        Ok((bytes, trainer.last().routing.clone()))
    });
    let moved = moved.into_iter().map(|m| m.unwrap_or_else(|f| panic!("{f:#?}")));
    let table = OwnershipTable::new(&recipe, layout).unwrap();
    let predicted = |rank: u64, routing: Routing<'_>| {
        let by_axis = volume::of_rank(&recipe, layout, &table, rank, routing).unwrap();
        by_axis.into_iter().map(|(axis, moved)| (axis.name(), moved.bytes(4))).filter(|(_, bytes)| *bytes > 0).collect()
    };
    let name = format!("{} {:?}: {}", case.pattern, case.more, layout.all_flags());
    let each = |(rank, (moved, dealing)): (u64, (Bytes, Dealing))| {
        [moved, predicted(rank, Routing::Real(&dealing)), predicted(rank, Routing::Balanced)]
    };
    let by_rank = (0..).zip(moved).map(each).collect();
    (name, by_rank)
}

/// Axes on which routing decides what one rank puts in.
const ROUTED: [&str; 2] = ["ep", "etp"];

#[test]
fn bytes_by_axis_are_the_layouts_on_every_rank() {
    let mut wrong = Vec::new();
    for case in cases() {
        let (name, by_rank) = moved(&case);
        for (rank, [is, should, _]) in by_rank.iter().enumerate().filter(|(_, [is, should, _])| is != should) {
            wrong.push(format!("{name}\n  rank {rank}: moved {is:?}\n  predicted {should:?}"));
        }
        let has_drops = case.more.contains("capacity_factor");
        for axis in ROUTED.into_iter().filter(|_| !has_drops) {
            let over_ranks = |of: usize| by_rank.iter().filter_map(|all| all[of].get(axis)).sum::<u64>();
            let (is, balanced) = (over_ranks(0), over_ranks(2));
            if is != balanced {
                wrong.push(format!("{name}\n  {axis} over all ranks: moved {is}, balanced {balanced}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
