//! What moves is what the layout says moves: bytes put into calls by axis, on every rank, in one
//! step, for the routing that happened. Without drops balanced routing moves as much over all ranks.

use comm::{Call, Kind, Moved};
use layout::OwnershipTable;
use layout::activations::{Routing, volume};
use runtime::report::StepHeld;
use std::collections::BTreeMap;

use crate::splits::{STEPPED, Stepped};

/// Bytes by axis; an axis nobody puts anything in on is not there.
type Bytes = BTreeMap<&'static str, u64>;

/// By rank what moved, and what was predicted with the routing that happened and with a balanced one.
fn moved(stepped: &Stepped) -> Vec<[Bytes; 3]> {
    let Stepped { recipe, layout, held, moved, .. } = stepped;
    let table = OwnershipTable::new(recipe, layout).unwrap();
    let predicted = |rank: u64, routing: Routing<'_>| {
        let by_axis = volume::of_rank(recipe, layout, &table, rank, routing).unwrap();
        by_axis.into_iter().map(|(axis, moved)| (axis.name(), moved.bytes(4))).filter(|(_, bytes)| *bytes > 0).collect()
    };
    let each = |rank: u64, moved: &[(Call, Kind, Moved)], held: &StepHeld| {
        let mut bytes = Bytes::new();
        moved.iter().for_each(|(call, _, moved)| *bytes.entry(call.axis).or_default() += moved.bytes);
        bytes.retain(|_, b| *b > 0);
        [bytes, predicted(rank, Routing::Real(&held.routing)), predicted(rank, Routing::Balanced)]
    };
    (0..).zip(moved.iter().zip(held)).map(|(rank, (moved, held))| each(rank, moved, held)).collect()
}

/// Axes on which routing decides what one rank puts in.
const ROUTED: [&str; 2] = ["ep", "etp"];

#[test]
fn bytes_by_axis_are_the_layouts_on_every_rank() {
    let mut wrong = Vec::new();
    for stepped in STEPPED.iter() {
        let (name, by_rank) = (&stepped.name, moved(stepped));
        for (rank, [is, should, _]) in by_rank.iter().enumerate().filter(|(_, [is, should, _])| is != should) {
            wrong.push(format!("{name}\n  rank {rank}: moved {is:?}\n  predicted {should:?}"));
        }
        let has_drops = stepped.case.more.contains("capacity_factor");
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
