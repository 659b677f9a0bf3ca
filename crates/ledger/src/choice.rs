//! Which ledger prices an engine, and what that engine is told.

use super::deepspeed::{self, DeepspeedOptions};
use super::from_options;
use super::fsdp2::{self, Blocks, Fsdp2Options};
use super::megatron::{self, MegatronOptions};
use super::nanotron::{self, NanotronOptions, PipelineEngine};
use super::shardwright::{self, ShardwrightOptions};
use super::within::{State, Within};
use case::options::Format;
use case::{Case, Options};
use layout::{Engine, Layout, Schedule, StagePlan};
use recipe::kinds::attention::QkNorm;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::{Activation, NormPlace};
use recipe::{Dtype, Mixer, Positions, Recipe};
use replay::Replay;
use replay::Unmodelled;
use replay::record::Recorder;

/// A ledger with its options.
#[derive(Clone, Debug, PartialEq)]
pub enum Ledger {
    /// Megatron-Core with Transformer Engine.
    Megatron(MegatronOptions),
    /// Native PyTorch with `fully_shard`, and torchtitan on it.
    Fsdp2(Fsdp2Options),
    /// DeepSpeed's ZeRO over a plain model.
    Deepspeed(DeepspeedOptions),
    /// nanotron.
    Nanotron(NanotronOptions),
    /// This project's own runtime.
    Shardwright(ShardwrightOptions),
}

/// The rank to replay.
#[derive(Clone, Copy, Debug)]
pub struct RankJob<'a> {
    /// What the model is.
    pub recipe: &'a Recipe,
    /// How it is split; must be legal.
    pub layout: &'a Layout,
    /// Which layers each chunk of depth holds.
    pub stages: &'a StagePlan,
    /// The rank.
    pub rank: u64,
}

/// What a plain Llama-like decoder does not have, by name.
fn other_block(recipe: &Recipe) -> Option<&'static str> {
    let attention = recipe.attention.as_ref().filter(|_| recipe.uses(Mixer::Attention));
    let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
    let either = |which: Activation| {
        [recipe.mlp.as_ref().map(|m| m.activation), moe.map(|m| m.activation)].contains(&Some(which))
    };
    let what = [
        (!recipe.norm.is_usual(), "a norm without a scale or a shift"),
        (recipe.norm_place != NormPlace::Before, "norms behind blocks"),
        (recipe.embedding_norm, "a norm of embeddings"),
        (recipe.head_bias, "a bias of the output head"),
        (recipe.features.mhc().is_some(), "hyper-connections"),
        (recipe.features.depths().is_some(), "mixture of depths"),
        (recipe.features.engram().is_some(), "engram branches"),
        (matches!(recipe.positions, Positions::Learned { .. }), "learned positions"),
        (attention.is_some_and(|a| a.sinks), "attention sinks"),
        (attention.is_some_and(|a| a.output_gate), "gated attention outputs"),
        (attention.is_some_and(|a| a.window.is_some()), "sliding-window attention"),
        (attention.is_some_and(|a| a.qk_norm == QkNorm::Full), "a norm over all queries"),
        (moe.is_some_and(|m| m.bias || m.router.bias), "biases in routers and experts"),
        (moe.is_some_and(|m| m.shared.as_ref().is_some_and(|s| s.gate)), "a gated shared expert"),
        (either(Activation::Relu), "plain ReLU"),
        (either(Activation::SwiGluOai), "gpt-oss' gated unit"),
        (recipe.uses(Mixer::GatedDelta), "a gated delta net"),
        (recipe.uses(Mixer::Linear), "linear mixers of other kinds"),
        (recipe.uses(Mixer::Shared), "shared blocks"),
        (recipe.gates_latent_heads(), "gates of latent attention's heads"),
        (recipe.mlp.as_ref().is_some_and(|m| m.shift), "inputs mixed with the token before"),
        (matches!(recipe.mamba, Some(Mamba::One(_))) && recipe.uses(Mixer::Mamba), "Mamba-1"),
        (recipe.layers.iter().any(|l| l.blocks.iter().any(|b| b.mixers.len() > 1)), "parallel mixers"),
    ];
    what.into_iter().find(|(is_there, _)| *is_there).map(|(_, what)| what)
}

impl Ledger {
    /// The ledger of a layout's engine, Megatron's when none is named, told what the options say.
    pub fn of(recipe: &Recipe, layout: &Layout, options: &Options) -> Result<Ledger, Unmodelled> {
        if recipe.adapters().is_some() && layout.engine != Some(Engine::Fsdp2) {
            return Err(Unmodelled::new("adapters", "frozen weights are replayed for the emitted FSDP2 program only"));
        }
        let none = |why: &str| Err(Unmodelled::new(layout.engine.map_or("this engine", Engine::name), why));
        let drops = recipe.dropout > 0.0 || recipe.attention.as_ref().is_some_and(|a| a.dropout > 0.0);
        if drops && !matches!(layout.engine, Some(Engine::Fsdp2 | Engine::Deepspeed)) {
            return Err(Unmodelled::new("dropout", "what its masks keep is not replayed"));
        }
        use Engine::{Deepspeed, Fsdp2, Nanotron, Shardwright, Torchtitan};
        if let Some(engine @ (Fsdp2 | Torchtitan | Deepspeed | Nanotron | Shardwright)) = layout.engine {
            from_options::formats(recipe, options, engine)?;
        }
        match layout.engine {
            None | Some(Engine::Megatron) => {
                Ok(Ledger::Megatron(MegatronOptions::from_options(recipe, layout, options)?))
            }
            Some(Engine::Fsdp2) => Ok(Ledger::Fsdp2(Fsdp2Options::of_recipe(recipe, layout).with_options(options)?)),
            Some(Engine::Torchtitan) if other_block(recipe).is_some() => {
                let what = other_block(recipe).unwrap_or_default();
                Err(Unmodelled::new(what, "torchtitan's decoder, which `launch` fills in, has none"))
            }
            Some(Engine::Torchtitan) => {
                // `compile.components` is `model` and `loss` unless others are named.
                let told = Fsdp2Options::of(layout).with_options(options)?;
                Ok(Ledger::Fsdp2(Fsdp2Options { compile_loss: told.compile, ..told }))
            }
            Some(Engine::Deepspeed) => Ok(Ledger::Deepspeed(DeepspeedOptions::from_options(layout, options)?)),
            Some(Engine::Nanotron) => {
                let engine = match layout.schedule {
                    Schedule::GPipe => PipelineEngine::AllForwardAllBackward,
                    _ => PipelineEngine::OneForwardOneBackward,
                };
                Ok(Ledger::Nanotron(NanotronOptions { engine, steps: 2 }))
            }
            Some(Engine::Maxtext | Engine::XlaSpmd) => {
                none("its compiler decides what is kept, and no ledger replays it")
            }
            Some(Engine::Shardwright) => {
                from_options::plain(options)?;
                let is_other = !recipe.norm.is_usual() || recipe.norm_place != NormPlace::Before;
                let is_chunked = recipe.attention.as_ref().and_then(|a| a.window.as_ref()).is_some_and(|w| w.chunked);
                let repeats = recipe.features.mtp().is_some_and(|mtp| mtp.shared)
                    || recipe.features.dsa().is_some_and(|dsa| !dsa.reuse.is_empty())
                    || recipe.features.mhc().is_some()
                    || recipe.features.depths().is_some()
                    || recipe.features.engram().is_some();
                let is_bare = matches!(&recipe.mamba, Some(Mamba::Two(m)) if m.conv == 0);
                let is_shared = recipe.shared.is_some()
                    || recipe.gates_latent_heads()
                    || recipe.mlp.as_ref().is_some_and(|m| m.shift);
                let many_heads = matches!(&recipe.mamba, Some(Mamba::One(m)) if m.heads > 1);
                let is_beside = is_bare
                    || is_shared
                    || many_heads
                    || recipe.linear.is_some()
                    || recipe.embedding_norm
                    || recipe.head_bias;
                if is_other || is_chunked || is_beside || repeats {
                    return none(
                        "it has RMSNorm or LayerNorm before blocks, no bias of the head, no chunks, no linear mixers of other kinds, no shared blocks, no gates of latent heads, Mamba-1 of one head, a stack for every prediction depth, an indexer for every sparse layer, one residual stream that all tokens take and nothing is looked up for, and a convolution in Mamba-2",
                    );
                }
                let bytes_each = if options.format == Format::F64 { 8 } else { 4 };
                Ok(Ledger::Shardwright(ShardwrightOptions { bytes_each }))
            }
        }
    }

    /// The ledger that prices a job.
    pub fn of_case(case: &Case) -> Result<Ledger, Unmodelled> {
        Ledger::of(&case.recipe, &case.layout, &case.options)
    }

    /// The same of the first two steps, which hold no more than all of them: optimizers make their state at the end of
    /// the first, so that no step before the second holds all that a rank does.
    pub fn brief(&self) -> Ledger {
        self.clone().over_steps(2)
    }

    /// Replays a rank.
    pub fn replay(&self, job: &RankJob) -> Result<Replay, Unmodelled> {
        let RankJob { recipe, layout, stages, rank } = *job;
        super::countable(recipe, layout, 1.0)?;
        match self {
            Ledger::Megatron(options) => megatron::replay(&megatron::Job { recipe, layout, stages, rank, options }),
            Ledger::Fsdp2(options) => fsdp2::replay(&fsdp2::Job { recipe, layout, stages, rank, options }),
            Ledger::Deepspeed(options) => deepspeed::replay(&deepspeed::Job { recipe, layout, stages, rank, options }),
            Ledger::Shardwright(options) => shardwright::replay(&super::Job { recipe, layout, stages, rank, options }),
            Ledger::Nanotron(options) if rank == 0 => nanotron::replay(&nanotron::Job { recipe, layout, options }),
            Ledger::Nanotron(_) => Err(later_stages()),
        }
    }

    /// Replays a rank until it is known to hold more than `most`, as far as the engine's ledger can end early.
    pub fn replay_within(&self, job: &RankJob, most: u64, state: State) -> Result<Within, Unmodelled> {
        let RankJob { recipe, layout, stages, rank } = *job;
        super::countable(recipe, layout, 1.0)?;
        match self {
            Ledger::Megatron(options) => {
                megatron::replay_within(&megatron::Job { recipe, layout, stages, rank, options }, most, state)
            }
            Ledger::Fsdp2(options) if state == State::Here => {
                fsdp2::replay_within(&fsdp2::Job { recipe, layout, stages, rank, options }, most)
            }
            Ledger::Deepspeed(options) if state == State::Here => {
                deepspeed::replay_within(&deepspeed::Job { recipe, layout, stages, rank, options }, most)
            }
            _ => self.replay(job).map(Within::Whole),
        }
    }

    /// Replays a rank and writes down what its allocator does.
    pub fn record(&self, job: &RankJob, recorder: Recorder) -> Result<Replay, Unmodelled> {
        let RankJob { recipe, layout, stages, rank } = *job;
        super::countable(recipe, layout, 1.0)?;
        match self {
            Ledger::Megatron(options) => {
                megatron::record(&megatron::Job { recipe, layout, stages, rank, options }, recorder)
            }
            Ledger::Fsdp2(options) => fsdp2::record(&fsdp2::Job { recipe, layout, stages, rank, options }, recorder),
            Ledger::Deepspeed(options) => {
                deepspeed::record(&deepspeed::Job { recipe, layout, stages, rank, options }, recorder)
            }
            Ledger::Nanotron(options) if rank == 0 => {
                nanotron::record(&nanotron::Job { recipe, layout, options }, recorder)
            }
            Ledger::Nanotron(_) => Err(later_stages()),
            Ledger::Shardwright(_) => Err(Unmodelled::new(
                "this project's runtime",
                "it computes on CPUs, where there is no caching allocator to write the history of",
            )),
        }
    }

    /// Why a rank is not replayed, where that is known before anything is walked.
    pub fn refuse(&self, job: &RankJob) -> Result<(), Unmodelled> {
        let RankJob { recipe, layout, stages, rank } = *job;
        super::countable(recipe, layout, 1.0)?;
        match self {
            Ledger::Fsdp2(options) => fsdp2::refuse(&fsdp2::Job { recipe, layout, stages, rank, options }),
            Ledger::Deepspeed(options) => deepspeed::refuse(&deepspeed::Job { recipe, layout, stages, rank, options }),
            Ledger::Nanotron(options) if rank == 0 => nanotron::refuse(&nanotron::Job { recipe, layout, options }),
            Ledger::Nanotron(_) => Err(later_stages()),
            Ledger::Megatron(_) | Ledger::Shardwright(_) => Ok(()),
        }
    }

    /// The same ledger over so many steps.
    pub fn over_steps(mut self, count: u32) -> Ledger {
        match &mut self {
            Ledger::Megatron(options) => options.steps = count,
            Ledger::Fsdp2(options) => options.steps = count,
            Ledger::Deepspeed(options) => options.steps = count,
            Ledger::Nanotron(options) => options.steps = count,
            Ledger::Shardwright(_) => {}
        }
        self
    }

    /// What its figures follow.
    pub fn source(&self) -> &'static str {
        match self {
            Ledger::Megatron(_) => "replay of Megatron-Core 0.19.2 and Transformer Engine 2.13",
            Ledger::Fsdp2(options) if options.blocks == Blocks::Emitted => {
                "replay of the emitted program under torch 2.11 FSDP2"
            }
            Ledger::Fsdp2(_) => "replay of a plain model under torch 2.11 FSDP2",
            Ledger::Deepspeed(_) => {
                "replay of the program that launch writes under DeepSpeed 0.19.8, or of a plain model where that program does not run the job"
            }
            Ledger::Nanotron(_) => "replay of nanotron, early 2025",
            Ledger::Shardwright(_) => "what this project's runtime declares to keep, and its buffers",
        }
    }

    /// Format gradients are accumulated or reduced in.
    pub fn gradients(&self) -> Dtype {
        match self {
            Ledger::Megatron(options) => options.gradients,
            Ledger::Fsdp2(options) => options.reduce_dtype,
            Ledger::Deepspeed(options) => options.gradients,
            Ledger::Nanotron(_) | Ledger::Shardwright(_) => Dtype::Fp32,
        }
    }
}

fn later_stages() -> Unmodelled {
    Unmodelled::new("later stages under nanotron", "only world rank 0 is replayed")
}
