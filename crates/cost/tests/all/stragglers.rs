//! Real jobs with stragglers, replayed with the times their ranks took: ByteDance's own results come out
//! (`data/truth/stragglers.toml` says where they are from).

use cost::simulate::{ChunkTimes, Simulator, Times};
use layout::Schedule;
use layout::order::Pipeline;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    trace: Vec<Trace>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trace {
    key: String,
    #[serde(rename = "what")]
    _what: String,
    stages: u64,
    replicas: usize,
    microbatches: u64,
    steps: usize,
    transfer: f64,
    before: f64,
    behind: f64,
    mean: [f64; 2],
    published_ideal: f64,
    published_slowdown: f64,
    #[serde(default)]
    ranks: Vec<Vec<[f64; 2]>>,
    #[serde(default)]
    published_by_stage: Vec<f64>,
    #[serde(default)]
    passes: Vec<Vec<f64>>,
}

impl Trace {
    /// Seconds of a step of one replica: weights are gathered before it; norms, embeddings, gradients and the optimizer
    /// follow.
    fn step(&self, passes: &[Vec<[f64; 2]>]) -> f64 {
        let pipeline = Pipeline::new(Schedule::OneF1b, self.stages, 1, self.microbatches).unwrap();
        let chunks = vec![ChunkTimes::default(); self.stages as usize];
        let transfers = vec![self.transfer; self.stages as usize - 1];
        let times = Times { chunks: &chunks, transfers: &transfers, serial: 0.0, overlapped: 1.0 };
        let timeline = Simulator::default().replay(&pipeline, &times, passes).unwrap();
        (self.before + timeline.makespan + self.behind) / 1e3
    }

    /// The same with one time a stage.
    fn even(&self, stages: &[[f64; 2]]) -> f64 {
        self.step(&stages.iter().map(|times| vec![*times; self.microbatches as usize]).collect::<Vec<_>>())
    }

    fn ideal(&self) -> f64 {
        self.even(&vec![self.mean; self.stages as usize])
    }

    /// Mean seconds of a step, which waits for its slowest replica.
    fn seen(&self) -> f64 {
        if self.passes.is_empty() {
            return self.ranks.iter().map(|stages| self.even(stages)).fold(0.0, f64::max);
        }
        let each = self.microbatches as usize;
        let steps = self.passes.iter().map(|row| {
            let of = |stage: usize, i: usize| [row[2 * stage * each + i], row[(2 * stage + 1) * each + i]];
            let stage = |stage: usize| (0..each).map(|i| of(stage, i)).collect::<Vec<_>>();
            self.step(&(0..self.stages as usize).map(stage).collect::<Vec<_>>())
        });
        steps.sum::<f64>() / self.passes.len() as f64
    }
}

fn traces() -> Vec<Trace> {
    toml::from_str::<File>(include_str!("../../../../data/truth/stragglers.toml")).unwrap().trace
}

#[test]
fn a_step_without_stragglers_is_theirs() {
    for trace in traces() {
        let ideal = trace.ideal();
        let error = ideal / trace.published_ideal - 1.0;
        assert!(error.abs() < 1e-3, "{}: {ideal} s, theirs {} s", trace.key, trace.published_ideal);
    }
}

#[test]
fn their_slowdowns_come_out() {
    let traces = traces();
    assert_eq!(traces.iter().map(|t| t.key.as_str()).collect::<Vec<_>>(), ["ST", "AR", "SE"]);
    for trace in &traces {
        assert!(trace.ranks.len() == trace.replicas || trace.passes.len() == trace.steps, "{}", trace.key);
        let slowdown = trace.seen() / trace.ideal();
        let theirs = trace.published_slowdown;
        println!("{}: {slowdown:.4}, theirs {theirs:.4}", trace.key);
        assert!((slowdown / theirs - 1.0).abs() < 0.02, "{}: {slowdown}, theirs {theirs}", trace.key);
    }
}

/// Where one stage alone keeps its own times, what is left of the slowdown points at the stage that is slow.
#[test]
fn the_stage_to_blame_is_theirs() {
    for trace in traces().iter().filter(|trace| !trace.published_by_stage.is_empty()) {
        let alone = |stage: usize| {
            let keeps = |ranks: &Vec<[f64; 2]>| {
                let mut stages = vec![trace.mean; trace.stages as usize];
                stages[stage] = ranks[stage];
                trace.even(&stages)
            };
            trace.ranks.iter().map(keeps).fold(0.0, f64::max) / trace.ideal()
        };
        for (stage, theirs) in trace.published_by_stage.iter().enumerate() {
            let ours = alone(stage);
            assert!((ours / theirs - 1.0).abs() < 0.02, "{} stage {stage}: {ours}, theirs {theirs}", trace.key);
        }
    }
}

#[test]
fn times_that_are_missing_are_refused() {
    let trace = &traces()[0];
    let pipeline = Pipeline::new(Schedule::OneF1b, trace.stages, 1, trace.microbatches).unwrap();
    let (chunks, transfers) = (vec![ChunkTimes::default(); 4], vec![0.0; 3]);
    let times = Times { chunks: &chunks, transfers: &transfers, serial: 0.0, overlapped: 1.0 };
    let whole = vec![vec![[1.0, 2.0]; 4]; 4];
    let mut simulator = Simulator::default();
    assert!(simulator.replay(&pipeline, &times, &whole).is_ok());
    assert_eq!(simulator.replay(&pipeline, &times, &whole[..3]).unwrap_err().rule, "cost/times");
    let mut negative = whole;
    negative[0][0][0] = -1.0;
    assert!(simulator.replay(&pipeline, &times, &negative).is_err());
}
