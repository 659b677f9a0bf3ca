//! Native PyTorch 2.11 with `fully_shard` around every layer and the whole model, mixed precision
//! and fused AdamW; torchtitan's base. Sources are named by file, relative to pytorch.
//!
//! Not replayed: what lies outside the caching allocator (context, NCCL), Triton's autotuning,
//! hybrid sharding, CPU offload, gradient clipping, and whatever
//! [`Unmodelled`] names. A compiled layer is replayed by what its partitioner keeps, for layers of
//! attention and dense blocks.

mod adapters;
mod elements;
mod engine;
mod group;
mod optimizer;
mod options;
pub(crate) mod plain;
mod reference;
mod schedule;
mod shampoo;
mod soap;
mod teacher;
mod torchao;

pub use options::{Edges, Fsdp2Options, Prefetch, Reshard};
pub use plain::Blocks;
pub use reference::missing;

use crate::Within;
use adapters::Adapters;
use case::Ways;
use case::ways::ElementStep;
use engine::Fsdp;
use group::{Divisor, Group};
use layout::ZeroStage;
use plain::{Config, Model, Place, Rank, Unit, quantised};
use recipe::{Dtype, Mixer};
use replay::Unmodelled;
use replay::line::Origin;
use replay::record::Recorder;
use replay::tape::{BF16, FP32, Tape, Watch};
use replay::{Phase, PhaseKind, Replay};
use std::rc::Rc;

/// The rank a replay under FSDP2 is of.
pub type Job<'a> = super::Job<'a, Fsdp2Options>;

/// Why a rank is not replayed, before anything is walked.
pub fn refuse(job: &Job) -> Result<(), Unmodelled> {
    config(job)?;
    teacher::config(job).map(|_| ())
}

/// Replays one rank from an empty device through its steps.
pub fn replay(job: &Job) -> Result<Replay, Unmodelled> {
    Ok(run(&config(job)?, teacher::config(job)?.as_ref(), job.options, Watch::Nothing))
}

/// Replays one rank until its segments exceed `most` bytes.
pub fn replay_within(job: &Job, most: u64) -> Result<Within, Unmodelled> {
    let (config, teacher) = (config(job)?, teacher::config(job)?);
    Ok(Within::of(run_within(&config, teacher.as_ref(), job.options, Watch::Nothing, Some(most))))
}

/// Replays, and writes down what happens.
pub fn record(job: &Job, recorder: Recorder) -> Result<Replay, Unmodelled> {
    Ok(run(&config(job)?, teacher::config(job)?.as_ref(), job.options, Watch::Events(recorder)))
}

/// Replays, then replays again up to the highest point and says who holds what there.
pub fn explain(job: &Job) -> Result<Replay, Unmodelled> {
    let (config, teacher) = (config(job)?, teacher::config(job)?);
    let found = run(&config, teacher.as_ref(), job.options, Watch::Nothing);
    Ok(run(&config, teacher.as_ref(), job.options, Watch::Holders { at: found.highest().peak.event }))
}

fn config(job: &Job) -> Result<Config, Unmodelled> {
    let Job { recipe, layout, stages, rank, options } = *job;
    if layout.zero < ZeroStage::Two {
        let what = format!("zero {} under FSDP2", layout.zero);
        return Err(Unmodelled::new(what, "`fully_shard` shards weights, gradients and optimizer state"));
    }
    if let Some(what) = missing(recipe).first().filter(|_| options.blocks == Blocks::Emitted) {
        return Err(Unmodelled::new(*what, "the emitted program does not have it"));
    }
    if options.blocks == Blocks::Common && recipe.adapters().is_some() {
        return Err(Unmodelled::new("adapters", "frozen weights are replayed for the emitted FSDP2 program only"));
    }
    let mut config = Config::new(Place { blocks: options.blocks, recipe, layout, stages, rank })?;
    if !matches!(options.param_dtype, Dtype::Bf16 | Dtype::Fp16) {
        let what = format!("computing in {}", options.param_dtype.name());
        return Err(Unmodelled::new(what, "flash attention runs in bf16 and fp16 only"));
    }
    if !matches!(options.reduce_dtype, Dtype::Bf16 | Dtype::Fp16 | Dtype::Fp32) {
        return Err(Unmodelled::new(format!("reducing in {}", options.reduce_dtype.name()), "NCCL does not sum it"));
    }
    if options.compile && (config.has(Mixer::Moe) || config.has(Mixer::Mamba)) {
        return Err(Unmodelled::new("compiled expert and Mamba layers", "what the partitioner keeps is not measured"));
    }
    if options.ways.base.is_quantised() && recipe.precision.weights != Dtype::Bf16 {
        let what = format!("nf4 under weights in {}", recipe.precision.weights);
        return Err(Unmodelled::new(what, "it is made whole in bf16, and casts around its products are not replayed"));
    }
    refuse_ways(&config, options)?;
    (config.ways, config.loss, config.documents) = (options.ways, options.loss, options.documents);
    (config.is_compiled, config.is_loss_compiled) = (options.compile, options.compile_loss);
    config.edges_apart = options.edges == Edges::Apart && !config.is_tied;
    Ok(config)
}

/// What of the ways to train is not replayed.
fn refuse_ways(config: &Config, options: &Fsdp2Options) -> Result<(), Unmodelled> {
    let is_plain = |(_, mixers): &(u32, Vec<Mixer>)| mixers.iter().all(|m| matches!(m, Mixer::Attention | Mixer::Mlp));
    let steps = options.ways.elements;
    let by_matrix = steps == ElementStep::Adafactor || steps.preconditions();
    if by_matrix && !config.layers.iter().all(is_plain) {
        let what = format!("{} of experts and scans", options.ways.elements.title());
        return Err(Unmodelled::new(what, "it is replayed over matrices and vectors only"));
    }
    // bitsandbytes multiplies fewer with kernels of its own, by shape and device (`backends/cuda/ops.py`).
    if options.ways.base.is_quantised() && config.tokens <= MOST_OF_OWN_KERNELS {
        let what = format!("nf4 under microbatches of at most {MOST_OF_OWN_KERNELS} tokens");
        return Err(Unmodelled::new(what, "which of bitsandbytes' kernels multiplies them is not replayed"));
    }
    let has_moments = [ElementStep::AdamW, ElementStep::Sgd].contains(&steps) || steps.of_torchao().is_some();
    if options.main != Dtype::Fp32 && !(has_moments && !config.matrix_steps() && config.adapted.is_empty()) {
        let why = "bf16 weights are replayed under AdamW, torchao's and SGD, without adapters";
        return Err(Unmodelled::new("bf16 weights under this optimizer", why));
    }
    if options.documents.is_some() && config.depths.is_some() {
        return Err(Unmodelled::new(
            "documents in layers that take some tokens",
            "where they end there is not replayed",
        ));
    }
    if options.loss.has_head() && config.is_tied {
        return Err(Unmodelled::new("a fused loss over a tied head", "the table's two gradients are not replayed"));
    }
    if options.ways != Ways::PLAIN && config.pp > 1 {
        return Err(Unmodelled::new("these ways to train in a pipeline", "they are replayed on one stage"));
    }
    Ok(())
}

/// Rows that bitsandbytes 0.50 multiplies with kernels of its own at most; beyond, it dequantises.
const MOST_OF_OWN_KERNELS: u64 = 1536;

fn run(config: &Config, taught: Option<&Config>, options: &Fsdp2Options, watch: Watch) -> Replay {
    run_within(config, taught, options, watch, None).0
}

/// A replay, and the bytes by which it is over `most` where it ended for that.
fn run_within(
    config: &Config,
    taught: Option<&Config>,
    options: &Fsdp2Options,
    watch: Watch,
    most: Option<u64>,
) -> (Replay, Option<u64>) {
    let tape = Tape::new(watch.clone());
    most.into_iter().for_each(|most| tape.end_above(most));
    let (model, units) = Model::new(config);
    let groups = groups(config, options, &units, &tape);
    let _table = Model::rotary_table(config, &tape);
    let _base: Vec<_> = units.iter().flat_map(|unit| &unit.quantised).map(|weight| quantised(weight, &tape)).collect();
    let adapters = Adapters::new(&units, &tape, options.main.bits() / 8);
    let _biases = Model::balancing_biases(config, &tape);
    let reduce_width = if options.reduce_dtype == Dtype::Fp32 { FP32 } else { BF16 };
    let engine = Rc::new(Fsdp::new(&tape, groups, reduce_width, options.prefetch, config.pp > 1));
    let rank = Rank::new(config.clone(), tape.clone(), engine.clone());
    let teacher = taught.map(|taught| teacher::Teacher::new(taught, options, &rank));
    let mut phases = vec![Phase::read(&tape, PhaseKind::Model), Phase::read(&tape, PhaseKind::Optimizer)];
    let mut optimizer = optimizer::Optimizers::default();
    let mut buffers = schedule::Buffers::default();
    for step in 0..options.steps {
        tape.reset_peaks();
        if step == 0 {
            buffers = schedule::Buffers::new(&rank);
        }
        match &teacher {
            Some(teacher) => teacher.run_step(&rank, &model, &engine, options.microbatches),
            None => schedule::run_step(&rank, &model, &engine, &buffers, options.microbatches),
        }
        phases.push(Phase::read(&tape, PhaseKind::Passes(step)));
        if tape.is_above() {
            break;
        }
        tape.enter(Origin::Optimizer);
        tape.reset_peaks();
        optimizer.step(&engine, &adapters, options);
        phases.push(Phase::read(&tape, PhaseKind::Update(step)));
    }
    let params = units
        .iter()
        .flat_map(|unit| unit.params.iter().chain(&unit.quantised).chain(&unit.adapters))
        .map(|param| param.elements())
        .sum();
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

/// One group a unit. The last layer's groups, and the edges, may keep what others give back.
fn groups(config: &Config, options: &Fsdp2Options, units: &[Unit], tape: &Tape) -> Vec<Group> {
    let last = config.layers.last().map(|(index, _)| *index);
    let divisor = if options.blocks == Blocks::Emitted { Divisor::Told } else { Divisor::Ranks };
    let build = |unit: &Unit| {
        let is_expert = unit.params.iter().any(|param| param.is_expert);
        let shards = if is_expert { config.expert_shards } else { config.dense_shards };
        let reshards = match unit.origin {
            None | Some(Origin::Head) => options.reshard.edges,
            Some(Origin::Layer { index, .. }) if Some(index) == last => options.reshard.last_layer,
            Some(_) => options.reshard.layers,
        };
        Group::new(tape, unit, (shards, options.main.bits() / 8), divisor, reshards)
    };
    units.iter().map(build).collect()
}
