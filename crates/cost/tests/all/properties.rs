//! What holds of every simulation, whatever its times.

use cost::simulate::{Bound, ChunkTimes, Simulator, Times, lower_bound, simulate, trace};
use layout::Schedule;
use layout::order::{Action, Block, Pass, Pipeline};
use proptest::prelude::*;

const KINDS: [Schedule; 6] =
    [Schedule::GPipe, Schedule::OneF1b, Schedule::Interleaved, Schedule::ZbH1, Schedule::DualPipe, Schedule::DualPipeV];

/// A pipeline of the kind near the sizes given.
fn pipeline(kind: Schedule, pp: u64, vpp: u64, microbatches: u64) -> Pipeline {
    let (pp, vpp, microbatches) = match kind {
        Schedule::Interleaved => (pp, vpp, microbatches.next_multiple_of(pp)),
        Schedule::DualPipe => {
            let pp = pp.next_multiple_of(2);
            (pp, 1, microbatches.max(2 * pp).next_multiple_of(2))
        }
        Schedule::DualPipeV => (pp, 2, microbatches.max(2 * pp)),
        _ => (pp, 1, microbatches),
    };
    Pipeline::new(kind, pp, vpp, microbatches).unwrap()
}

/// A pipeline with times of its own.
#[derive(Clone, Debug)]
struct Case {
    pipeline: Pipeline,
    chunks: Vec<ChunkTimes>,
    transfers: Vec<f64>,
    serial: f64,
    overlapped: f64,
}

impl Case {
    fn times(&self) -> Times<'_> {
        let Case { chunks, transfers, serial, overlapped, .. } = self;
        Times { chunks, transfers, serial: *serial, overlapped: *overlapped }
    }
}

/// How unlike stages are: passes take from 1 to `most`, transfers up to `transfer`.
fn cases(most: f64, transfer: f64, microbatches: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = Case> {
    let shape = (prop::sample::select(&KINDS), 1..=8u64, 1..=4u64, microbatches);
    let shares = (prop::sample::select(&[0.0, 0.5, 1.0]), prop::sample::select(&[0.1, 0.6, 0.9, 1.0]));
    (shape, shares).prop_flat_map(move |((kind, pp, vpp, m), (serial, overlapped))| {
        let pipeline = pipeline(kind, pp, vpp, m);
        let count = pipeline.chunks() as usize;
        let chunk = (1.0..=most, 1.0..=most, 1.0..=most).prop_map(|(forward, backward_input, backward_weight)| {
            ChunkTimes { forward, backward_input, backward_weight }
        });
        (prop::collection::vec(chunk, count), prop::collection::vec(0.0..=transfer, count - 1))
            .prop_map(move |(chunks, transfers)| Case { pipeline, chunks, transfers, serial, overlapped })
    })
}

/// The seconds after which what a block needs has arrived, by a plain table of all passes.
fn assert_causal(case: &Case, events: &[cost::simulate::Event]) {
    let chunks = case.pipeline.chunks();
    let at = |a: Action| (a.microbatch * chunks + a.chunk) as usize;
    let mut ends = vec![[f64::NAN; 2]; (case.pipeline.microbatches() * chunks) as usize];
    let mut free = vec![0.0; case.pipeline.stages() as usize];
    for event in events {
        assert!(event.start >= free[event.stage as usize], "{event:?} starts before the stage is free");
        let mut waits_until = free[event.stage as usize];
        for action in event.block.actions() {
            let (chunk, cut) = (action.chunk, |cut: u32| {
                let inside = case.pipeline.stage_of(0, cut) == case.pipeline.stage_of(0, cut + 1);
                if inside { 0.0 } else { case.transfers[cut as usize] }
            });
            let needed = match action.pass {
                Pass::BackwardWeight => 0.0,
                Pass::Forward if chunk == 0 => 0.0,
                Pass::Forward => ends[at(action) - 1][0] + cut(chunk - 1),
                _ if chunk + 1 == chunks => ends[at(action)][0],
                _ => ends[at(action) + 1][1] + cut(chunk),
            };
            assert!(event.start >= needed, "{event:?} needs what comes at {needed}");
            waits_until = f64::max(waits_until, needed);
            match action.pass {
                Pass::Forward => ends[at(action)][0] = event.end,
                Pass::Backward | Pass::BackwardInput => ends[at(action)][1] = event.end,
                Pass::BackwardWeight => {}
            }
        }
        // Nothing waits longer than it must; what is sent keeps the sender.
        let most_sent: f64 = 2.0 * case.serial * case.transfers.iter().copied().fold(0.0, f64::max);
        assert!(event.start <= waits_until + most_sent + 1e-9, "{event:?} could start at {waits_until}");
        free[event.stage as usize] = event.end;
    }
}

#[track_caller]
fn assert_near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{a} {b}");
}

proptest! {
    #![proptest_config(ProptestConfig { ..ProptestConfig::with_cases(400) })]

    #[test]
    fn blocks_run_when_they_can_and_not_before(case in cases(3.0, 1.0, 1..=30)) {
        let (timeline, events) = trace(&case.pipeline, &case.times()).unwrap();
        assert_causal(&case, &events);
        for (stage, s) in timeline.stages.iter().enumerate() {
            let own: Vec<_> = events.iter().filter(|e| e.stage == stage as u32).collect();
            let order: Vec<Block> = case.pipeline.stage(stage as u32).collect();
            prop_assert_eq!(own.iter().map(|e| e.block).collect::<Vec<_>>(), order);
            assert_near(s.busy, own.iter().map(|e| e.end - e.start).sum());
            assert_near(s.busy + s.sending + s.idle, timeline.makespan);
            prop_assert_eq!(s.peak_in_flight, case.pipeline.peak_in_flight(stage as u32));
            prop_assert!(s.idle >= -1e-9);
        }
    }

    #[test]
    fn the_bound_is_one(case in cases(3.0, 1.0, 1..=40)) {
        let (bound, simulated) = (lower_bound(&case.pipeline, &case.times()), simulate(&case.pipeline, &case.times()));
        let (bound, simulated) = (bound.unwrap(), simulated.unwrap().makespan);
        prop_assert!(bound <= simulated * (1.0 + 1e-12), "{} {}", bound, simulated);
    }

    /// Links slower than stages, and passes that take next to nothing.
    #[test]
    fn the_bound_is_one_at_extremes(case in cases(1.0, 8.0, 1..=60), zero in 0..8usize) {
        let mut case = case;
        let chunk = zero % case.chunks.len();
        case.chunks[chunk] = ChunkTimes { forward: 0.0, ..case.chunks[chunk] };
        let (bound, simulated) = (lower_bound(&case.pipeline, &case.times()), simulate(&case.pipeline, &case.times()));
        let (bound, simulated) = (bound.unwrap(), simulated.unwrap().makespan);
        prop_assert!(bound <= simulated * (1.0 + 1e-12), "{} {}", bound, simulated);
    }

    #[test]
    fn a_long_step_is_told_from_a_short_one(case in cases(1.5, 0.2, 200..=400)) {
        let mut simulator = Simulator::default();
        let whole = simulator.run(&case.pipeline, &case.times()).unwrap();
        let steady = simulator.run_steady(&case.pipeline, &case.times()).unwrap();
        assert_near(steady.makespan, whole.makespan);
        for (a, b) in steady.stages.iter().zip(&whole.stages) {
            for (a, b) in [(a.busy, b.busy), (a.sending, b.sending), (a.idle, b.idle)] {
                prop_assert!((a - b).abs() <= 1e-9 * whole.makespan, "{} {}", a, b);
            }
            assert_near(a.first_start, b.first_start);
            assert_near(a.last_end, b.last_end);
            prop_assert_eq!(a.peak_in_flight, b.peak_in_flight);
        }
    }
}

/// Memory that a run leaves behind does not reach the next.
#[test]
fn a_simulator_can_be_used_again() {
    let (mut simulator, mut bound) = (Simulator::default(), Bound::default());
    let each = ChunkTimes { forward: 1.0, backward_input: 1.25, backward_weight: 0.75 };
    for kind in KINDS.into_iter().chain(KINDS) {
        let pipeline = pipeline(kind, 4, 3, 24);
        let chunks = vec![each; pipeline.chunks() as usize];
        let transfers = vec![0.125; chunks.len() - 1];
        let times = Times { chunks: &chunks, transfers: &transfers, serial: 0.5, overlapped: 0.875 };
        assert_eq!(simulator.run(&pipeline, &times), simulate(&pipeline, &times));
        assert_eq!(bound.lower(&pipeline, &times), lower_bound(&pipeline, &times));
    }
}

#[test]
fn times_that_are_none_are_refused() {
    let pipeline = Pipeline::new(Schedule::OneF1b, 2, 1, 4).unwrap();
    let (good, bad) = (ChunkTimes::default(), ChunkTimes { forward: f64::NAN, ..ChunkTimes::default() });
    for (chunks, transfers, serial) in [
        (vec![good; 3], vec![0.0], 0.0),
        (vec![good; 2], vec![], 0.0),
        (vec![good, bad], vec![0.0], 0.0),
        (vec![good; 2], vec![-1.0], 0.0),
        (vec![good; 2], vec![0.0], 1.5),
    ] {
        let times = Times { chunks: &chunks, transfers: &transfers, serial, overlapped: 1.0 };
        assert_eq!(simulate(&pipeline, &times).unwrap_err().rule, "cost/times");
        assert_eq!(lower_bound(&pipeline, &times).unwrap_err().rule, "cost/times");
    }
}
