//! Megatron-Core 0.19.2 with Transformer Engine 2.13 kernels, on Hopper. One file a mechanism;
//! each names the source it follows, relative to its package (`megatron/core/…`,
//! `transformer_engine/pytorch/…`, `mamba_ssm/ops/triton/…`).
//!
//! The code is written like Megatron's, *including which Python locals keep tensors alive until
//! a function returns*: where a `drop` or a late binding looks odd, that is why.
//!
//! Measured rows show dense, expert, latent and Mamba-2 layers under AdamW, 1F1B and interleaved, by
//! themselves; launches show the trainer, fusions, overlaps, Muon, LayerNorm and biases. The rest is
//! from source alone, and each file says so: prediction suffix, sparse indexer, side tables, custom
//! mixers, Megatron-FSDP, split backward. Schedules that split backward are not Megatron's at all, and
//! have an order of their own.
//!
//! [`Trainer::Core`] is how the first rows were taken, [`Trainer::Pretrain`] what a launch runs. Where
//! source and traces of launches say more than those rows were settled with, only the second has it.
//!
//! Not replayed: what lies outside the caching allocator (context, NCCL, cuDNN plans), checkpoint
//! saving, and whatever [`Unmodelled`] names.

mod absorbed;
mod attention;
mod blocks;
mod config;
mod cp_attention;
mod custom;
mod embedding;
mod fp8;
mod fsdp;
mod gated_delta;
mod indexer;
mod linear;
mod loss;
mod m2rnn;
mod mamba;
mod mamba3;
mod mla;
mod mlp;
mod model;
mod moe;
mod moe_allgather;
mod moe_deepep;
mod moe_fused;
mod moe_hybridep;
mod mtp;
mod muon;
mod ops;
mod optimizer;
mod options;
mod params;
mod plain;
mod rank;
mod recompute;
mod rope;
mod router;
mod schedule;
mod schedule_split;
mod setup;
mod side;
mod sparse;
mod supported;

/// Units whose weights Megatron-FSDP gathers ahead.
pub use fsdp::AHEAD as UNITS_AHEAD;
pub use options::{
    AttentionBackend, CrossEntropy, Dispatcher, Fp8Recipe, GraphInputs, Handed, LayerWise, MegatronOptions,
    ParamGather, Reduction, Routing, StateFormats, Trainer,
};
pub use replay::allocator::Segments;
pub use replay::tape::Microbatches;

use crate::{State, Within};
use config::Config;
use model::Chunk;
use rank::Rank;
use recipe::{Optimizer, Role};
use replay::Unmodelled;
use replay::line::{Line, Origin};
use replay::record::Recorder;
use replay::tape::{Tape, Watch};
use replay::{Phase, PhaseKind, Replay};

/// The rank a replay under Megatron is of.
pub type Job<'a> = super::Job<'a, MegatronOptions>;

/// Microbatches of a step that a replay of this stage walks.
pub(crate) fn microbatches_walked(options: &MegatronOptions, job: &super::RankJob, stage: usize) -> u64 {
    let layers = job.stages.layers_of_stage(stage).count();
    match options.microbatches {
        Microbatches::All => job.layout.microbatches,
        Microbatches::Steady => schedule::replayed(job.layout, stage as u64, layers),
    }
}

/// Replays one rank from an empty device through its steps.
pub fn replay(job: &Job) -> Result<Replay, Unmodelled> {
    let config = Config::new(job)?;
    Ok(run(config, Until::Step(job.options.steps), Watch::Nothing))
}

/// Replays a rank until its segments exceed `most` bytes. Under [`State::OnHost`], AdamW's state is not counted.
pub fn replay_within(job: &Job, most: u64, state: State) -> Result<Within, Unmodelled> {
    let adam = |role| job.recipe.optimizer.of(role, true) != Optimizer::Muon;
    let is_plain = job.options.precision_aware.is_none() && adam(Role::Matrix) && adam(Role::Expert);
    if state == State::OnHost && !is_plain {
        return replay(job).map(Within::Whole);
    }
    let until = Until::Over { steps: job.options.steps, most, state };
    Ok(Within::of(run_within(Config::new(job)?, until, Watch::Nothing)))
}

/// Replays, and writes down what happens.
pub fn record(job: &Job, recorder: Recorder) -> Result<Replay, Unmodelled> {
    Ok(run(Config::new(job)?, Until::Step(job.options.steps), Watch::Events(recorder)))
}

/// Replays one rank through the passes of one step, and not its update. No kernel is tuned in them:
/// that happens once, in the first forward pass of a job.
pub fn replay_passes(job: &Job) -> Result<Replay, Unmodelled> {
    Ok(run(Config::new(job)?, Until::Passes, Watch::Nothing))
}

/// Replays, then replays again up to the highest point and says who holds what there.
pub fn explain(job: &Job) -> Result<Replay, Unmodelled> {
    let config = Config::new(job)?;
    let until = Until::Step(job.options.steps);
    let found = run(config.clone(), until, Watch::Nothing);
    let event = found.highest().peak.event;
    Ok(run(config, until, Watch::Holders { at: event }))
}

/// How far a replay goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// So many steps.
    Step(u32),
    /// So many steps, or until segments come to more than `most`.
    Over { steps: u32, most: u64, state: State },
    /// The passes of one step, with kernels that were tuned before.
    Passes,
}

fn run(config: Config, until: Until, watch: Watch) -> Replay {
    run_within(config, until, watch).0
}

/// A replay, and the bytes by which it is over where it ended for that.
fn run_within(config: Config, until: Until, watch: Watch) -> (Replay, Option<u64>) {
    let steps = match until {
        Until::Step(count) | Until::Over { steps: count, .. } => count,
        Until::Passes => 1,
    };
    let segments = config.told.segments;
    let rank = Rank::new(config, Tape::with(watch.clone(), segments));
    let tape = rank.tape.clone();
    if let Until::Over { most, state: State::Here, .. } = until {
        rank.ceiling.set(Some(most));
    }
    if until == Until::Passes {
        rank.tuned_before();
    }
    let mut phases = vec![Phase::read(&tape, PhaseKind::Context)];
    let chunks = Chunk::all(&rank.config);
    setup::build_model(&rank, &chunks);
    phases.push(Phase::read(&tape, PhaseKind::Model));
    let buffers = setup::build_buffers(&rank, &chunks);
    phases.push(Phase::read(&tape, PhaseKind::Buffers));
    let mut optimizer = optimizer::Optimizer::new(&rank, &buffers);
    phases.push(Phase::read(&tape, PhaseKind::Optimizer));
    let mut graph_inputs = Vec::new();
    for step in 0..steps {
        tape.reset_peaks();
        // A step warms up before graphs are captured; passes by themselves stand for a later one.
        if let Until::Over { most, state: State::OnHost, .. } = until
            && step == 1
        {
            rank.ceiling.set(Some(most.saturating_add(on_host(&tape, &phases, optimizer.copies(&rank)))));
        }
        if step == 1 || until == Until::Passes {
            graph_inputs = rank.graph_inputs();
        }
        optimizer.zero_grad();
        optimizer.gather_ahead(&rank);
        schedule::run_step(&rank, &chunks);
        if rank.is_over() {
            phases.push(Phase::read(&tape, PhaseKind::Passes(step)));
            break;
        }
        chunks.iter().for_each(Chunk::finish_step);
        phases.push(Phase::read(&tape, PhaseKind::Passes(step)));
        if until == Until::Passes {
            break;
        }
        tape.enter(Origin::Optimizer);
        tape.reset_peaks();
        optimizer.step(&rank);
        phases.push(Phase::read(&tape, PhaseKind::Update(step)));
    }
    drop(graph_inputs);
    let missing = rank.ceiling.get().and_then(|most| tape.read(|a| a.reserved()).checked_sub(most));
    let missing = missing.filter(|bytes| *bytes > 0);
    let params = setup::count(&chunks);
    let operations = tape.operations();
    let mut replay = Replay { params, phases, operations, holders: Vec::new(), retained: Vec::new() };
    if matches!(watch, Watch::Holders { .. }) {
        replay.holders = tape.wanted_holders();
        replay.retained = tape.holders().into_iter().filter(|holder| holder.line.is_of_a_step()).collect();
    }
    tape.close();
    (replay, missing)
}

/// Bytes at most that move to the host where AdamW's state does, once a step has made all of it: what stands at the
/// highest point, where an update makes `copies`.
fn on_host(tape: &Tape, phases: &[Phase], copies: u64) -> u64 {
    let at = |kind| phases.iter().find(move |phase: &&Phase| phase.kind == kind);
    let state = tape.live()[Line::OtherOptimizer as usize];
    let before = at(PhaseKind::Optimizer).map_or(u64::MAX, |phase| phase.allocated);
    let passes = at(PhaseKind::Passes(0)).map_or(0, |phase| phase.requested_peak.saturating_sub(before));
    // Where passes are far above an update, it is not the highest point.
    if passes > 2 * copies { state } else { state.saturating_add(copies) }
}
