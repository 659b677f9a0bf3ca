//! Which ledger prices an engine, and what that engine is told.

use super::deepspeed::{self, DeepspeedOptions};
use super::fsdp2::{self, Blocks, Fsdp2Options};
use super::megatron::{self, MegatronOptions, Routing};
use super::nanotron::{self, NanotronOptions, PipelineEngine};
use super::shardwright::{self, ShardwrightOptions};
use layout::{Engine, Layout, StagePlan};
use recipe::{Dtype, Recipe};
use replay::Replay;
use replay::Unmodelled;

/// A ledger with its options.
#[derive(Clone, Debug)]
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

impl Ledger {
    /// The ledger of an engine with its own defaults; Megatron's when none is named.
    pub fn of(engine: Option<Engine>, recipe: &Recipe, layout: &Layout) -> Result<Ledger, Unmodelled> {
        let none = |why: &str| Err(Unmodelled::new(engine.map_or("this engine", Engine::name), why));
        match engine {
            None | Some(Engine::Megatron) => Ok(Ledger::Megatron(MegatronOptions::of(recipe))),
            Some(Engine::Fsdp2) => Ok(Ledger::Fsdp2(Fsdp2Options::of_recipe(recipe, layout))),
            Some(Engine::Torchtitan) => Ok(Ledger::Fsdp2(Fsdp2Options::of(layout))),
            Some(Engine::Deepspeed) => Ok(Ledger::Deepspeed(DeepspeedOptions::defaults())),
            Some(Engine::Nanotron) => {
                let engine = PipelineEngine::OneForwardOneBackward;
                Ok(Ledger::Nanotron(NanotronOptions { engine, steps: 2 }))
            }
            Some(Engine::Maxtext | Engine::XlaSpmd) => {
                none("its compiler decides what is kept, and no ledger replays it")
            }
            Some(Engine::Shardwright) => Ok(Ledger::Shardwright(ShardwrightOptions::defaults())),
        }
    }

    /// Replays a rank.
    pub fn replay(&self, job: &RankJob) -> Result<Replay, Unmodelled> {
        let RankJob { recipe, layout, stages, rank } = *job;
        match self {
            Ledger::Megatron(options) => megatron::replay(&megatron::Job { recipe, layout, stages, rank, options }),
            Ledger::Fsdp2(options) => fsdp2::replay(&fsdp2::Job { recipe, layout, stages, rank, options }),
            Ledger::Deepspeed(options) => deepspeed::replay(&deepspeed::Job { recipe, layout, stages, rank, options }),
            Ledger::Shardwright(options) => shardwright::replay(&super::Job { recipe, layout, stages, rank, options }),
            Ledger::Nanotron(options) if rank == 0 => nanotron::replay(&nanotron::Job { recipe, layout, options }),
            Ledger::Nanotron(_) => Err(Unmodelled::new("later stages under nanotron", "only world rank 0 is replayed")),
        }
    }

    /// The same ledger with a share of optimizer state on the host. Megatron's is moved off the
    /// replay's figures ([`crate::fit::Offload`]), DeepSpeed's engine is another then.
    pub fn on_host(self, share: f64) -> Result<Ledger, Unmodelled> {
        match self {
            Ledger::Megatron(_) => Ok(self),
            Ledger::Deepspeed(options) if share == 0.0 || share == 1.0 => {
                let offload_optimizer = (share == 1.0).then_some(deepspeed::Offload::DEFAULT);
                Ok(Ledger::Deepspeed(DeepspeedOptions { offload_optimizer, ..options }))
            }
            Ledger::Deepspeed(_) => {
                Err(Unmodelled::new("a part of optimizer state on the host", "DeepSpeed offloads all of it or nothing"))
            }
            ledger if share == 0.0 => Ok(ledger),
            _ => Err(Unmodelled::new("optimizer state on the host", "this engine keeps it on the device")),
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
            Ledger::Deepspeed(_) => "replay of a plain model under DeepSpeed 0.19.8",
            Ledger::Nanotron(_) => "replay of nanotron, early 2025",
            Ledger::Shardwright(_) => "what this project's runtime declares to keep, and its buffers",
        }
    }

    /// Format gradients are accumulated or reduced in.
    pub fn gradients(&self) -> Dtype {
        match self {
            Ledger::Megatron(options) => options.gradients,
            Ledger::Fsdp2(options) => options.reduce_dtype,
            Ledger::Deepspeed(_) => Dtype::Bf16,
            Ledger::Nanotron(_) | Ledger::Shardwright(_) => Dtype::Fp32,
        }
    }

    /// The same ledger with one rank's experts hot; none where routing is not replayed.
    pub fn overloaded(&self, factor: f64) -> Option<Ledger> {
        match self {
            Ledger::Megatron(options) => {
                Some(Ledger::Megatron(MegatronOptions { routing: Routing::Overloaded { factor }, ..options.clone() }))
            }
            _ => None,
        }
    }
}
