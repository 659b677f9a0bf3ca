//! The rows of the matrix, which ranks as threads and ranks as processes are both held to.

use layout::{LayoutRequest, Schedule, ZeroStage};
use recipe::{Feature, Recipe, builtin};
use runtime::rehearse::{Ask, Number, Ranks, Rehearsal, Source};
use runtime::report::MemoryLine;
use runtime::shrink::Dims;
use std::time::Duration;

const ZEROS: [ZeroStage; 4] = [ZeroStage::One, ZeroStage::Three, ZeroStage::Two, ZeroStage::Zero];

fn some() -> LayoutRequest {
    LayoutRequest::default()
}

/// NAM56R as it is, with latent attention and prediction heads, and a stack with Mamba-2.
pub fn recipes() -> [Recipe; 3] {
    let nam56r = || builtin::find("nam56r").unwrap();
    let latent = nam56r().with_features(&[Feature::Mla, Feature::Mtp], &[]).unwrap();
    [nam56r(), latent, builtin::find("nemotron-3-nano-30b-a3b").unwrap()]
}

/// Each axis by itself.
pub fn alone() -> Vec<LayoutRequest> {
    let mut all = vec![
        LayoutRequest { tp: Some(2), etp: Some(1), ..some() },
        LayoutRequest { tp: Some(4), etp: Some(1), ..some() },
        LayoutRequest { cp: Some(2), ..some() },
        LayoutRequest { cp: Some(4), ..some() },
        LayoutRequest { ep: Some(2), ..some() },
        LayoutRequest { ep: Some(8), ..some() },
        LayoutRequest { etp: Some(2), dp: Some(2), ..some() },
    ];
    all.extend(ZEROS.map(|zero| LayoutRequest { dp: Some(2), zero: Some(zero), ..some() }));
    all.extend((0..ORDERS.len()).map(|i| pipeline(i, 2)));
    all.push(LayoutRequest { pp: Some(4), ..some() });
    all
}

/// Schedules with the chunks a stage runs.
const ORDERS: [(Schedule, u64); 7] = [
    (Schedule::OneF1b, 1),
    (Schedule::Interleaved, 2),
    (Schedule::ZbH1, 1),
    (Schedule::DualPipe, 1),
    (Schedule::DualPipeV, 2),
    (Schedule::Interleaved, 3),
    (Schedule::GPipe, 1),
];

/// A pipeline in one of the orders.
fn pipeline(which: usize, pp: u64) -> LayoutRequest {
    let (schedule, vpp) = ORDERS[which % ORDERS.len()];
    LayoutRequest { pp: Some(pp), vpp: Some(vpp), schedule: Some(schedule), microbatches: Some(2 * pp), ..some() }
}

/// At least two axes at a time, at most sixteen ranks; ZeRO and order take turns.
pub fn together() -> Vec<LayoutRequest> {
    let mut all = Vec::new();
    for (tp, cp, pp, dp) in (0..24).map(|i| (1 + i % 2, 1 + i / 2 % 2, 1 + i / 4 % 2, [1, 2, 4][i / 8])) {
        for (ep, etp) in [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (4, 2), (8, 1)] {
            let dense = (tp * cp) as u64 * dp;
            let axes = [tp as u64, cp as u64, pp as u64, dp, ep, etp].iter().filter(|d| **d > 1).count();
            if axes < 2 || dense * pp as u64 > 16 || !dense.is_multiple_of(ep * etp) {
                continue;
            }
            let order = if pp > 1 { pipeline(all.len(), pp as u64) } else { some() };
            all.push(LayoutRequest {
                tp: Some(tp as u64),
                cp: Some(cp as u64),
                dp: Some(dp),
                ep: Some(ep),
                etp: Some(etp),
                zero: Some(ZEROS[all.len() % 4]),
                ..order
            });
        }
    }
    all
}

/// A row as it is asked for.
pub fn ask<'a>(recipe: &'a Recipe, request: &'a LayoutRequest, number: Number, ranks: Ranks) -> Ask<'a> {
    Ask {
        recipe,
        request,
        dims: Dims::parse("hidden=16,vocab=32").unwrap(),
        // The third loss is the first to show an update by moments of two gradients.
        steps: 3,
        number,
        seed: 3,
        source: Source::Synthetic,
        inject: None,
        deadline: Duration::from_secs(120),
        ranks,
        load: None,
        save: None,
        stats: false,
        limit: work::Limit::none(),
    }
}

/// Everything that must be equal is.
pub fn judge(what: &str, r: &Rehearsal) {
    let (gradient, weight) = (&r.parity.gradients[0], &r.parity.weights[0]);
    assert!(r.parity.passes(), "{what}: loss {:e}, {gradient:?}, {weight:?}", r.parity.loss);
    assert!(!r.traffic.is_empty() && !r.memory.is_empty(), "{what}: nothing to compare");
    for moves in &r.traffic {
        assert_eq!(moves.predicted_bytes, moves.moved_bytes, "{what}: bytes on {}", moves.axis);
    }
    let is_exact = |l: &MemoryLine| l.predicted_bytes == l.held_bytes;
    assert!(r.memory.iter().all(is_exact), "{what}: {:?}", r.memory);
}
