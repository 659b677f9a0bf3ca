//! Bubbles and activations as published, from the simulator: uniform stages, free transfers.

use cost::simulate::{ChunkTimes, Timeline, Times, lower_bound, simulate};
use layout::Schedule;
use layout::order::Pipeline;

/// Simulated, and told exactly by the lower bound: where stages are alike there is nothing to lose.
fn uniform(kind: Schedule, (pp, vpp, microbatches): (u64, u64, u64), each: ChunkTimes, overlapped: f64) -> Timeline {
    let pipeline = Pipeline::new(kind, pp, vpp, microbatches).unwrap();
    let chunks = vec![each; (pp * vpp) as usize];
    let transfers = vec![0.0; chunks.len() - 1];
    let times = Times { chunks: &chunks, transfers: &transfers, serial: 0.0, overlapped };
    let timeline = simulate(&pipeline, &times).unwrap();
    assert_same(lower_bound(&pipeline, &times).unwrap(), timeline.makespan);
    timeline
}

/// Forward, backward for inputs and for weights: dyadic, so that sums are exact.
fn passes(forward: f64, backward_input: f64, backward_weight: f64) -> ChunkTimes {
    ChunkTimes { forward, backward_input, backward_weight }
}

#[track_caller]
fn assert_same(got: f64, published: f64) {
    assert!((got - published).abs() <= 1e-12 * published.abs().max(1.0), "{got} {published}");
}

const SHAPES: [(u64, u64); 6] = [(2, 4), (4, 8), (4, 12), (8, 16), (8, 40), (16, 64)];

/// Narayanan et al., arXiv 2104.04473, section 2.2: (p − 1) / m, whatever forward and backward take.
#[test]
fn one_forward_one_backward() {
    for (pp, m) in SHAPES {
        for each in [passes(1.0, 1.0, 1.0), passes(1.0, 1.5, 0.75), passes(2.0, 0.5, 0.25)] {
            let timeline = uniform(Schedule::OneF1b, (pp, 1, m), each, 1.0);
            assert_same(timeline.bubble_over_ideal(), (pp - 1) as f64 / m as f64);
            for (stage, s) in timeline.stages.iter().enumerate() {
                assert_same(s.idle, (pp - 1) as f64 * (each.forward + each.backward()));
                assert_eq!(u64::from(s.peak_in_flight), pp - stage as u64);
            }
            let gpipe = uniform(Schedule::GPipe, (pp, 1, m), each, 1.0);
            assert_same(gpipe.makespan, timeline.makespan);
            assert!(gpipe.stages.iter().all(|s| u64::from(s.peak_in_flight) == m));
        }
    }
}

/// The same, section 2.2: (p − 1) / (v m).
#[test]
fn interleaved() {
    for (pp, m) in SHAPES {
        for vpp in [2, 3, 4] {
            let timeline = uniform(Schedule::Interleaved, (pp, vpp, m), passes(1.0, 1.0, 1.0), 1.0);
            assert_same(timeline.bubble_over_ideal(), (pp - 1) as f64 / (vpp * m) as f64);
        }
    }
}

/// Qi et al., arXiv 2401.10241, table 2: (p − 1)(F + B − W) with B the backward for inputs alone,
/// which deepseek-ai/DualPipe's README writes (PP − 1)(F + B − 2W); the activations of p
/// microbatches on every stage. A weight pass fills a gap only if it is no longer than the passes
/// around it.
#[test]
fn zero_bubble() {
    for (pp, m) in SHAPES {
        for each in [passes(1.0, 1.0, 1.0), passes(1.0, 1.5, 0.75), passes(1.25, 1.0, 1.0), passes(1.0, 2.0, 0.5)] {
            let timeline = uniform(Schedule::ZbH1, (pp, 1, m), each, 1.0);
            let bubble = (pp - 1) as f64 * (each.forward + each.backward() - 2.0 * each.backward_weight);
            for stage in &timeline.stages {
                assert_same(stage.idle, bubble);
                assert_eq!(u64::from(stage.peak_in_flight), pp);
            }
        }
    }
}

/// deepseek-ai/DualPipe, the table of its README: (PP/2 − 1)(F&B + B − 3W) and the activations of
/// PP + 1 chunks, PP on as many devices for DualPipe and on half of them for DualPipeV. The table
/// takes a forward to be as long as a backward for inputs, as its picture draws them. Stages that
/// overlap fewer blocks compute longer and idle less; the table gives the others.
#[test]
fn dualpipe() {
    for (pp, m) in SHAPES {
        for (each, overlapped) in
            [(passes(1.0, 1.0, 1.0), 1.0), (passes(1.0, 1.0, 0.75), 1.0), (passes(1.0, 1.0, 1.0), 0.875)]
        {
            let both = overlapped * (each.forward + each.backward());
            let bubble = (pp as f64 / 2.0 - 1.0) * (both + each.backward() - 3.0 * each.backward_weight);
            let dualpipe = uniform(Schedule::DualPipe, (pp, 1, 2 * m), each, overlapped);
            let dualpipev = uniform(Schedule::DualPipeV, (pp / 2, 2, m), each, overlapped);
            for timeline in [dualpipe, dualpipev] {
                assert_same(timeline.worst_idle(), bubble);
                for stage in &timeline.stages {
                    assert!(overlapped < 1.0 || (stage.idle - bubble).abs() < 1e-9);
                    assert_eq!(u64::from(stage.peak_in_flight), pp + 1);
                }
            }
        }
    }
}
