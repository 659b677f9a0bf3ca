//! DeepSpeed 0.19.8: ZeRO 0 to 3 in bf16 with AdamW in one parameter group, around the blocks of the program that `launch`
//! writes, or around a Hugging Face model's where that program lacks some. File names are relative to `deepspeed`.
//!
//! AdamW is torch's fused one, as `launch` writes it. Activations are those of the native lane
//! ([`super::fsdp2`]). Not replayed: what lies outside the caching allocator, ZenFlow, quantized weights
//! and gradients, hierarchical partitioning, and whatever [`Unmodelled`] names.

mod bf16;
mod host;
mod options;
mod stage0;
mod stage12;
mod stage3;
mod zero;

pub use host::HostBytes;
pub use options::{DeepspeedOptions, Offload};

use crate::Within;
use crate::fsdp2::plain::{Blocks, Config, Model, Param, Place, Rank, Unit};
use bf16::Bf16;
use layout::ZeroStage;
use recipe::Optimizer;
use replay::Unmodelled;
use replay::line::{Line, Origin};
use replay::record::Recorder;
use replay::tape::{FP32, Microbatches, Tape, Watch, backward};
use replay::{Phase, PhaseKind, Replay};
use stage0::Stage0;
use stage3::Stage3;
use stage12::{Stage12, Step};
use std::rc::{Rc, Weak};
use zero::Zero;

/// The rank a replay under DeepSpeed is of.
pub type Job<'a> = super::Job<'a, DeepspeedOptions>;

/// Replays one rank from an empty device through its steps.
pub fn replay(job: &Job) -> Result<Replay, Unmodelled> {
    Ok(run(&config(job)?, job, Watch::Nothing))
}

/// Replays one rank until its segments exceed `most` bytes.
pub fn replay_within(job: &Job, most: u64) -> Result<Within, Unmodelled> {
    Ok(Within::of(run_within(&config(job)?, job, Watch::Nothing, Some(most))))
}

/// Replays, and writes down what happens.
pub fn record(job: &Job, recorder: Recorder) -> Result<Replay, Unmodelled> {
    Ok(run(&config(job)?, job, Watch::Events(recorder)))
}

/// Replays, then replays again up to the highest point and says who holds what there.
pub fn explain(job: &Job) -> Result<Replay, Unmodelled> {
    let config = config(job)?;
    let found = run(&config, job, Watch::Nothing);
    Ok(run(&config, job, Watch::Holders { at: found.highest().peak.event }))
}

/// What offloading keeps on the host, for one rank.
pub fn host_bytes(job: &Job) -> Result<HostBytes, Unmodelled> {
    let config = config(job)?;
    let (_, units) = Model::new(&config);
    Ok(host::count(&zero::unique(&units), config.dense_shards, job.layout.zero, job.options))
}

/// Why a rank is not replayed, before anything is walked.
pub fn refuse(job: &Job) -> Result<(), Unmodelled> {
    config(job).map(|_| ())
}

fn config(job: &Job) -> Result<Config, Unmodelled> {
    let Job { recipe, layout, stages, rank, options } = *job;
    let refuse = |what: &str, why: &str| Err(Unmodelled::new(what, why));
    if layout.pp.splits() {
        return refuse("a pipeline under DeepSpeed", "its PipelineModule is not replayed yet");
    }
    if layout.ep.splits() {
        return refuse("expert parallelism under DeepSpeed", "its expert groups are not replayed yet");
    }
    if recipe.shared.is_some() {
        return refuse("shared blocks under DeepSpeed", "its trace of modules that run several times is not replayed");
    }
    if options.offload_param.is_some() && layout.zero != ZeroStage::Three {
        return refuse("weights on the host below zero 3", "DeepSpeed offloads partitioned weights only");
    }
    if options.offload_optimizer.is_some() && layout.zero == ZeroStage::Zero {
        return refuse("optimizer state on the host at zero 0", "DeepSpeed offloads partitioned state only");
    }
    if options.accumulates_wide() && layout.zero == ZeroStage::Zero {
        return refuse("fp32 gradients without ZeRO under DeepSpeed", "it accumulates them in bf16 there");
    }
    // Our program steps with AdamW; a script of one's own has blocks as others write them.
    let is_adam = recipe.tensors().iter().all(|tensor| tensor.is_frozen || tensor.optimizer == Optimizer::AdamW);
    let is_own = is_adam && !options.has_script && crate::fsdp2::missing(recipe).is_empty();
    let blocks = if is_own { Blocks::Emitted } else { Blocks::Common };
    let mut config = Config::new(Place { blocks, recipe, layout, stages, rank })?;
    config.edges_apart = true;
    Ok(config)
}

fn run(config: &Config, job: &Job, watch: Watch) -> Replay {
    run_within(config, job, watch, None).0
}

/// A replay, and the bytes by which it is over `most` where it ended for that.
fn run_within(config: &Config, job: &Job, watch: Watch, most: Option<u64>) -> (Replay, Option<u64>) {
    let tape = Tape::new(watch.clone());
    most.into_iter().for_each(|most| tape.end_above(most));
    let (model, units) = Model::new(config);
    let (engine, rank) = build(config, job, &units, &tape);
    let _table = Model::rotary_table(config, &tape);
    // `deepspeed.initialize` wraps model and optimizer in one call.
    let mut phases = vec![Phase::read(&tape, PhaseKind::Model), Phase::read(&tape, PhaseKind::Optimizer)];
    for step in 0..job.options.steps {
        tape.reset_peaks();
        run_step(&rank, &model, &*engine, job.options.microbatches);
        phases.push(Phase::read(&tape, PhaseKind::Passes(step)));
        if tape.is_above() {
            break;
        }
        tape.enter(Origin::Optimizer);
        tape.reset_peaks();
        engine.step();
        phases.push(Phase::read(&tape, PhaseKind::Update(step)));
    }
    let params = zero::elements(&zero::unique(&units));
    let operations = tape.operations();
    let mut replay = Replay { params, phases, operations, holders: Vec::new(), retained: Vec::new() };
    if matches!(watch, Watch::Holders { .. }) {
        replay.holders = tape.wanted_holders();
        replay.retained = tape.holders().into_iter().filter(|holder| holder.line.is_of_a_step()).collect();
    }
    // What happened is written down to the end.
    if matches!(watch, Watch::Nothing) {
        tape.close();
    }
    (replay, tape.above())
}

/// The stage's engine, with every parameter hooked to it, and the rank it wraps.
fn build(config: &Config, job: &Job, units: &[Unit], tape: &Tape) -> (Rc<dyn Zero>, Rc<Rank>) {
    let (told, shards, params) = (job.options, config.dense_shards, zero::unique(units));
    let rank = |engine| Rank::new(config.clone(), tape.clone(), engine);
    match job.layout.zero {
        ZeroStage::Zero => {
            let engine = Rc::new(Stage0::new(tape, params));
            (engine.clone(), rank(engine))
        }
        ZeroStage::One if told.accumulates_wide() && told.offload_optimizer.is_none() => {
            let engine = Rc::new(Bf16::new(tape, params.clone(), shards));
            hook(&params, &engine);
            (engine.clone(), rank(engine))
        }
        ZeroStage::One | ZeroStage::Two => {
            let partitions_gradients = job.layout.zero == ZeroStage::Two;
            let step = Step { partitions_gradients, microbatches: config.microbatches };
            let engine = Rc::new(Stage12::new(tape, params.clone(), shards, step, told));
            hook(&params, &engine);
            (engine.clone(), rank(engine))
        }
        ZeroStage::Three => {
            let engine = Rc::new(Stage3::new(tape, units, shards, told));
            hook(&params, &engine);
            (engine.clone(), rank(engine))
        }
    }
}

/// Tells an engine of every gradient. The hook does not own the engine, which owns the leaf.
fn hook<Z: Zero + 'static>(params: &[Rc<Param>], engine: &Rc<Z>) {
    for (index, param) in params.iter().enumerate() {
        let engine: Weak<Z> = Rc::downgrade(engine);
        param.leaf.on_grad(move || {
            if let Some(engine) = engine.upgrade() {
                engine.grad_ready(index);
            }
        });
    }
}

fn run_step(c: &Rc<Rank>, model: &Model, engine: &dyn Zero, which: Microbatches) {
    let run = |is_last: bool| {
        c.tape.set_recording(true);
        let loss = model.forward(c, None);
        c.is_backward.set(true);
        backward(&c.tape, &loss, c.tape.tensor(Line::Loss, 1, FP32, "loss gradient"));
        c.is_backward.set(false);
        engine.end_of_backward(is_last);
    };
    c.tape.rounds(c.config.microbatches - 1, which, || engine.standing(), || run(false));
    if !c.tape.is_above() {
        run(true);
    }
}
