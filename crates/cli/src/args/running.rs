//! What runs or hands on: rehearsals, machines, launches.

use super::budget::RunArgs;
use super::work::WorkArgs;
use case::asked::{LayoutArgs, OptimizerChoice, RecipeArgs, StateArgs, feature, optimizer, pick};
use clap::Args;
use launch::Frontend;
use launch::schedulers::{Scheduler, meant};
use recipe::Feature;
use runtime::rehearse::{Inject, Number, Ranks};
use runtime::shrink::Dims;
use std::path::PathBuf;

/// Arguments of `rehearse`.
#[derive(Args)]
pub struct RehearseArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub how: RehearsalArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// How a plan is rehearsed.
#[derive(Args)]
#[command(next_help_heading = "Rehearsal")]
pub struct RehearsalArgs {
    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub steps: u64,
    /// Numbers to compute with: f64 tells mistakes from rounding, f32 is faster
    #[arg(long, value_parser = number, default_value = "f64")]
    pub dtype: Number,
    /// Override the recipe's optimizers: adamw, or muon+adamw (matrices by Muon)
    #[arg(long, value_parser = optimizer)]
    pub optimizer: Option<OptimizerChoice>,
    /// Sizes to insist on, as hidden=64,seq=32,depth=12,experts=8; the rest is made small
    #[arg(long, value_name = "SIZES", value_parser = Dims::parse)]
    pub dims: Option<Dims>,
    /// Learn this text, a token a byte, instead of a synthetic sequence
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Of initial weights and data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Save a checkpoint into this folder after the last step, as DIR/step-N
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Go on from this checkpoint, under any layout: its sizes, seed, step and position in the data
    #[arg(long, value_name = "CHECKPOINT", conflicts_with_all = ["dims", "seed"])]
    pub load: Option<PathBuf>,
    /// Write norms of activations and gradients of every step, as the hook does: FILE of all ranks, and beside it those
    /// of one rank
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Write two receipts with these norms into this new folder: one-rank.json and all-ranks.json
    #[arg(long, value_name = "DIR")]
    pub receipts: Option<PathBuf>,
    /// Make a fault: die:RANK@STEP, dtype:RANK@STEP, drop:RANK@STEP, skew:FACTOR, zero-expert:EXPERT,
    /// unsummed:AXIS (its sums of gradients are missing), unheard:AXIS (its exchanges of activations are)
    #[arg(long, value_name = "FAULT", value_parser = Inject::parse)]
    pub inject: Option<Inject>,
    /// Seconds a rank waits for another (default: 60, or 5 with --inject)
    #[arg(long, value_name = "SECONDS")]
    pub deadline: Option<f64>,
    /// What ranks are: threads, or mpi under mpirun
    #[arg(long, value_parser = ranks, default_value = "threads")]
    pub ranks: Ranks,
}

/// Arguments of `preflight`.
#[derive(Args)]
pub struct PreflightArgs {
    /// What the machine is held to (docs/policy.md; `--example` prints one); without it, the default policy of `launch`
    #[arg(long, value_name = "FILE", required_unless_present_any = ["example", "recipe"])]
    pub policy: Option<PathBuf>,
    /// Print an example policy, to start your own from
    #[arg(long, exclusive = true)]
    pub example: bool,
    /// The model that will run: adds the plan's memory, checkpoints, devices and the engine's rules
    #[arg(requires = "on")]
    pub recipe: Option<String>,
    /// Switch features on: mla, dsa, mtp, mhc, mod, engram, ngram_hash, structure, adapters
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature, requires = "recipe")]
    pub with: Vec<Feature>,
    /// Switch features off; `moe` turns E blocks into MLPs where the recipe has them (`moe=attention`: attention)
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature, requires = "recipe")]
    pub without: Vec<Feature>,
    /// The cluster: 8xH200, 64x8xH200, 64xH100@roce400, or a device file: 8x./mine.toml
    #[arg(long, value_name = "CLUSTER", requires = "recipe")]
    pub on: Option<String>,
    /// Launch although the plan does not fit; the report says that it was overridden
    #[arg(long, requires = "recipe")]
    pub override_memory: bool,
    /// Prove that folders take files by writing 4 KiB into each and removing it
    #[arg(long)]
    pub write_probe: bool,
    /// Judge this environment as it is, for a launcher of your own: nothing counts as set by `launch`
    #[arg(long)]
    pub as_is: bool,
    /// Exit 1 on what is not known, too
    #[arg(long)]
    pub strict: bool,
    /// Show what passed one by one
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Arguments of `launch`.
#[derive(Args)]
pub struct LaunchArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, 64x8xH200, a slice 256xTPU-v5e, slices 2x16xTPU-v6e
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    /// The lane to run in (default: the engine's; `shardwright lanes` lists them)
    #[arg(long)]
    pub lane: Option<String>,
    /// How Megatron-Core is reached: megatron-lm (scripts) or bridge (a recipe module, as NeMo runs it)
    #[arg(long, value_parser = frontend, default_value = "megatron-lm")]
    pub frontend: Frontend,
    /// What starts the job: torchrun, slurm, trainjob, jobset or rayjob
    #[arg(long, value_parser = scheduler, default_value = "torchrun")]
    pub scheduler: Scheduler,
    /// Write the launch into this new directory instead of printing it
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Say where every argument comes from, and by which rule
    #[arg(long)]
    pub explain: bool,
    /// Emit where the engine has no block for something, and mark each place
    #[arg(long)]
    pub allow_seams: bool,
    /// Launch although the plan does not fit, or nobody knows whether it does; the record says so
    #[arg(long)]
    pub override_memory: bool,
    /// Where things are kept, what is trained on, how long: a policy .toml
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Tell this launch of a job apart from another of the same: a word, or a date
    #[arg(long, value_name = "WORD")]
    pub attempt: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Arguments of `probe`.
#[derive(Args)]
pub struct ProbeArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster of the whole job: 8xH200, 64x8xH200
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub who: WhoArgs,
    /// Write the probe into this new directory
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Steps to run, the first three of them warm-up; one more is profiled
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub steps: u64,
    /// Keep torch's memory snapshot of the first two steps
    #[arg(long)]
    pub memory_snapshot: bool,
    /// Emit where the engine has no block for something, and mark each place
    #[arg(long)]
    pub allow_seams: bool,
    /// Probe although the rank does not fit, or nobody knows whether it does; the record says so
    #[arg(long)]
    pub override_memory: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Who to become.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct WhoArgs {
    /// One rank of the job
    #[arg(long, value_name = "R")]
    pub rank: Option<u64>,
    /// One rank of every class of ranks that hold and do the same
    #[arg(long)]
    pub all_classes: bool,
}

/// Arguments of `man`.
#[derive(Args)]
pub struct ManArgs {
    /// Write every page into this new directory instead
    #[arg(long, value_name = "DIR")]
    pub out: Option<std::path::PathBuf>,
}

/// Arguments of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// bash, zsh, fish, elvish or powershell
    pub shell: clap_complete::Shell,
}

fn number(text: &str) -> Result<Number, String> {
    pick(text, Number::ALL)
}

fn ranks(text: &str) -> Result<Ranks, String> {
    pick(text, Ranks::ALL)
}

fn frontend(text: &str) -> Result<Frontend, String> {
    pick(text, Frontend::ALL)
}

fn scheduler(text: &str) -> Result<Scheduler, String> {
    match meant(text) {
        Some(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            Err(format!("did you mean {}?", names.join(" or ")))
        }
        None => pick(text, Scheduler::ALL),
    }
}
