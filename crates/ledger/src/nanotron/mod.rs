//! nanotron as its scaling sweep of winter 2024/25 ran it (branch `nouamane/bench2`): dense
//! Llama-like blocks, tensor parallelism in reduce-scatter mode, ZeRO-1, fp32 gradient
//! accumulation, 1F1B or all-forward-all-backward, torch 2.1 and flash-attention 2 on Hopper. One
//! file a mechanism; sources are relative to `src/nanotron`, or to their package.
//!
//! The rank replayed is world rank 0, which is the first stage and the one nanotron logs
//! (`helpers.py` log_throughput). The log has two columns; `logging.py` log_memory resets the peak
//! of *allocated* bytes after the pipeline engine in the first steps, so the column that still
//! depends on the microbatch is `max_memory_reserved`, and that is what the replay is held to.
//! That is an inference from source: the sweep does not say which column it published.
//!
//! Deliberately absent, because nothing but guessed rates would decide it: how far the CPU runs
//! ahead of NCCL's stream. Tensors a collective used return to the pool only once that stream has
//! passed (`record_stream`), which raises what is reserved, most of all at tp ≥ 16 across nodes;
//! the replay returns them at once and is *low* there. Also absent: what a full device frees on a
//! failed `cudaMalloc`, and whatever lies outside the caching allocator.
//!
//! Where it is weak besides: with pp > 1 something of two or three `[tokens, hidden / tp]` a layer
//! and microbatch in flight is not accounted for; a stage cut that is an exact tie in cost falls
//! either way in the runs.

mod attention;
mod config;
mod edges;
mod linear;
mod mlp;
mod model;
mod ops;
mod optimizer;
mod rank;
mod schedule;

use config::Config;
use layout::Layout;
use model::Model;
use optimizer::State;
use rank::Rank;
use recipe::Recipe;
use replay::Unmodelled;
use replay::line::Origin;
use replay::record::Recorder;
use replay::tape::{Tape, Watch};
use replay::{Phase, PhaseKind, Replay};

/// The order in which microbatches pass the stages (`parallel/pipeline_parallel/engine.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineEngine {
    /// `OneForwardOneBackwardPipelineEngine`.
    OneForwardOneBackward,
    /// `AllForwardAllBackwardPipelineEngine`.
    AllForwardAllBackward,
}

/// What nanotron is told besides recipe and layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NanotronOptions {
    /// The pipeline's order.
    pub engine: PipelineEngine,
    /// Steps to replay; the second sees the optimizer's moments.
    pub steps: u32,
}

/// World rank 0, and all that decides what it holds.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// What the model is.
    pub recipe: &'a Recipe,
    /// How it is split; must be legal.
    pub layout: &'a Layout,
    /// What nanotron is told besides.
    pub options: &'a NanotronOptions,
}

/// Why a rank is not replayed, before anything is walked.
pub fn refuse(job: &Job) -> Result<(), Unmodelled> {
    Config::new(job).map(|_| ())
}

/// Replays world rank 0 from an empty device through its steps.
pub fn replay(job: &Job) -> Result<Replay, Unmodelled> {
    run(job, Watch::Nothing)
}

/// Replays, and writes down what happens.
pub fn record(job: &Job, recorder: Recorder) -> Result<Replay, Unmodelled> {
    run(job, Watch::Events(recorder))
}

fn run(job: &Job, watch: Watch) -> Result<Replay, Unmodelled> {
    let config = Config::new(job)?;
    let rank = Rank::new(config, Tape::new(watch));
    let tape = rank.tape.clone();
    let model = Model::new(&rank);
    let mut phases = vec![Phase::read(&tape, PhaseKind::Model)];
    let mut state = State::new(&rank, &model);
    phases.push(Phase::read(&tape, PhaseKind::Optimizer));
    for step in 0..job.options.steps {
        tape.reset_peaks();
        schedule::run_step(&rank, &model);
        phases.push(Phase::read(&tape, PhaseKind::Passes(step)));
        tape.enter(Origin::Optimizer);
        tape.reset_peaks();
        state.step(&rank);
        phases.push(Phase::read(&tape, PhaseKind::Update(step)));
    }
    let (params, operations) = (model.params(), tape.operations());
    Ok(Replay { params, phases, operations, holders: Vec::new(), retained: Vec::new() })
}
