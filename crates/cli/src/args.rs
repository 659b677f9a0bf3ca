//! What can be typed. Help texts teach: each says what the thing is, not only how to spell it.

use case::asked::{LayoutArgs, OptimizerChoice, RecipeArgs, StateArgs, dtype, feature, mode, optimizer, pick};
use clap::{Args, Parser, Subcommand, ValueEnum};
use fidelity::Part;
use launch::Frontend;
use launch::lanes::Goal;
use launch::schedulers::Scheduler;
use layout::mesh::Order;
use recipe::{Dtype, Feature, Mode};
use runtime::rehearse::{Inject, Number, Ranks};
use runtime::shrink::Dims;
use std::path::PathBuf;
use units::Bytes;

/// Before you launch a hybrid model on a cluster: who owns what, and may it be split so?
#[derive(Parser)]
#[command(name = "shardwright", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "A RECIPE is a built-in name (`shardwright recipes`), a recipe .toml, or a Hugging Face config.json.\n\
Start with: shardwright plan nam56r --on 8xH200\n\
Exit codes: 0 yes, 1 the answer is no or the input is wrong, 2 usage, 3 does not fit, 70 our bug."
)]
pub struct Cli {
    /// Answer in JSON with stable, versioned keys
    #[arg(long, global = true)]
    pub json: bool,
    /// What to ask
    #[command(subcommand)]
    pub command: Command,
}

/// The questions.
#[derive(Subcommand)]
pub enum Command {
    /// How many parameters, by family and surface; how many act on one token
    Params(ParamsArgs),
    /// Who owns what: every tensor, its rule, its per-rank shape, and what no axis can fix
    Splits(SplitsArgs),
    /// Is this layout legal? Every finding with its rule, the reason, and values that would do
    Check(CheckArgs),
    /// Ranks, coordinates and the groups of every axis
    Mesh(MeshArgs),
    /// Pipeline cuts: what each stage owns besides layers, and seams to look at
    Stages(StagesArgs),
    /// What an axis partitions, what it communicates, what it cannot fix
    Axes(AxesArgs),
    /// From a symptom to the axis to look at
    Diagnose(DiagnoseArgs),
    /// A recipe from a Hugging Face config.json or a Megatron argument list
    Import(ImportArgs),
    /// The built-in recipes; with a name, its text to start your own from
    Recipes(RecipesArgs),
    /// The devices and networks we know, every fact with its source; or what is in a file of yours
    Hardware(HardwareArgs),
    /// Will it fit? Memory of every rank class, line by line and phase by phase
    Fit(FitArgs),
    /// Which lines grow between two recipes or layouts
    Diff(DiffArgs),
    /// Our predictions against measured rows
    Fidelity(FidelityArgs),
    /// What to run on this cluster
    Plan(PlanArgs),
    /// Is the split right? Trains the model made small on every rank and on one, and compares
    Rehearse(RehearseArgs),
    /// Is this machine fit to run on? Storage, environment, ports, processes, devices, limits, clock
    Preflight(PreflightArgs),
    /// What to hand to the cluster: the engine's own arguments, job files and a record
    Launch(LaunchArgs),
    /// Ways to run a model: engine, wrapper, optimizer and compile policy, and which one suits
    Lanes(LanesArgs),
    /// A completion script for your shell
    Completions(CompletionsArgs),
}

/// Arguments of `params`.
#[derive(Args)]
pub struct ParamsArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Count what this mode runs instead of what the recipe says
    #[arg(long, value_parser = mode)]
    pub mode: Option<Mode>,
}

/// Arguments of `splits`.
#[derive(Args)]
pub struct SplitsArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Show what this rank holds
    #[arg(long, value_name = "R")]
    pub rank: Option<u64>,
}

/// Arguments of `check`.
#[derive(Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub layout: LayoutArgs,
}

/// Arguments of `mesh`.
#[derive(Args)]
pub struct MeshArgs {
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Show this rank's coordinates and groups
    #[arg(long, value_name = "R")]
    pub rank: Option<u64>,
    /// How ranks run through the axes
    #[arg(long, default_value = "megatron")]
    pub order: OrderArg,
}

/// Rank orders, as typed.
#[derive(Clone, Copy, ValueEnum)]
pub enum OrderArg {
    /// tp-cp-ep-dp-pp, stages outermost
    Megatron,
    /// tp-cp-ep-pp-dp, replicas outermost
    MegatronTpPpDp,
    /// A torch DeviceMesh of (pp, dp, cp, tp)
    Devicemesh,
}

impl From<OrderArg> for Order {
    fn from(order: OrderArg) -> Order {
        match order {
            OrderArg::Megatron => Order::Megatron,
            OrderArg::MegatronTpPpDp => Order::MegatronTpPpDp,
            OrderArg::Devicemesh => Order::DeviceMesh,
        }
    }
}

/// Arguments of `stages`.
#[derive(Args)]
pub struct StagesArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Weight of each layer, to balance by something you measured
    #[arg(long, value_name = "W", value_delimiter = ',')]
    pub weights: Option<Vec<u64>>,
    /// The cluster that prices stages for --balance memory and time: 8xH200, or 64x8xH200
    #[arg(long, value_name = "CLUSTER")]
    pub on: Option<String>,
    #[command(flatten)]
    pub state: StateArgs,
}

/// Arguments of `axes`.
#[derive(Args)]
pub struct AxesArgs {
    /// One axis: tp, sp, pp, fsdp, ep, etp, cp
    pub axis: Option<String>,
}

/// Arguments of `diagnose`.
#[derive(Args)]
pub struct DiagnoseArgs {
    /// What you see, in your words or the engine's
    #[arg(required = true)]
    pub symptom: Vec<String>,
}

/// Arguments of `import`.
#[derive(Args)]
pub struct ImportArgs {
    /// config.json, or a file holding a Megatron argument list; `-` reads standard input
    pub file: PathBuf,
    /// Write the recipe here instead of printing it
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The recipe's name (default: the file's)
    #[arg(long)]
    pub name: Option<String>,
}

/// Arguments of `recipes`.
#[derive(Args)]
pub struct RecipesArgs {
    /// Print this recipe's text
    pub name: Option<String>,
}

/// Arguments of `hardware`.
#[derive(Args)]
pub struct HardwareArgs {
    /// One device or network, or a device file: its facts and their sources
    pub name: Option<String>,
    /// Print a built-in device's file, to start your own from
    #[arg(long, requires = "name")]
    pub toml: bool,
}

/// Arguments of `fit`.
#[derive(Args)]
pub struct FitArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, 64x8xH200, 64xH100@roce400, or a device file: 8x./mine.toml
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    /// GiB to leave free for what nobody replays: compile peaks, fragmentation over time
    #[arg(long, value_name = "GIB", default_value_t = memory::fit::HEADROOM.0 as f64 / Bytes::GIB.0 as f64)]
    pub headroom: f64,
    /// Price routing skew: factors over the balanced share, as 1.0,1.5,2.0
    #[arg(long, value_name = "FACTORS", value_delimiter = ',')]
    pub overload: Vec<f64>,
    /// Run the production checklist and show the evidence
    #[arg(long)]
    pub checklist: bool,
    /// Write the picture as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Serving instead of training.
#[derive(Args)]
#[command(next_help_heading = "Serving")]
pub struct ServeArgs {
    /// Price serving: weights, key/value cache, recurrent state
    #[arg(long)]
    pub serve: bool,
    /// Sequences on one replica
    #[arg(long, value_name = "N", default_value_t = 1, requires = "serve")]
    pub batch: u64,
    /// Tokens each may grow to (default: the recipe's sequence)
    #[arg(long, value_name = "N", requires = "serve")]
    pub context: Option<u64>,
    /// Tokens of a cache block
    #[arg(long, value_name = "N", default_value_t = 16, requires = "serve")]
    pub block: u64,
    /// One run of slots a sequence instead of blocks
    #[arg(long, requires = "serve")]
    pub contiguous: bool,
    /// Format of keys and values
    #[arg(long, value_parser = dtype, value_name = "DTYPE", default_value = "bf16", requires = "serve")]
    pub cache_dtype: Dtype,
}

/// Arguments of `diff`.
#[derive(Args)]
pub struct DiffArgs {
    /// A recipe with its layout flags, quoted: "nam56r --ep 4 --etp 1"
    pub before: String,
    /// The other one
    pub after: String,
    /// The cluster: 8xH200, 64x8xH200, 64xH100@roce400, or a device file: 8x./mine.toml
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
}

/// Arguments of `fidelity`.
#[derive(Args)]
pub struct FidelityArgs {
    /// Rows of measured runs, one JSON object a line
    pub rows: PathBuf,
    /// Show every row, not only the summary and the worst
    #[arg(long)]
    pub all: bool,
    /// Judge one part of the rows only
    #[arg(long, value_name = "PART", value_parser = part)]
    pub only: Option<Part>,
    /// Price published steps with the options `plan` would use, not with those the row says it ran
    #[arg(long)]
    pub as_planned: bool,
}

/// Arguments of `plan`.
#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, or 64x8xH200; several counts (8,16,32xH200) make a sweep
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    /// A layout flag pins its axis; what is left out is searched
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub search: SearchArgs,
}

/// What a search is told.
#[derive(Args)]
#[command(next_help_heading = "Search")]
pub struct SearchArgs {
    /// Leave this free on every rank: 10%, or GiB
    #[arg(long, value_name = "GIB or %", value_parser = headroom, default_value = "4")]
    pub keep_headroom: Headroom,
    /// Keep tensor parallelism inside a node
    #[arg(long)]
    pub max_tp_in_node: bool,
    /// Also list the N best layouts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub top: usize,
    /// Say why this layout is not the best, as "--tp 8 --pp 4"
    #[arg(long, value_name = "LAYOUT", allow_hyphen_values = true)]
    pub explain: Option<String>,
    /// Price every legal layout, also where a bound shows it to be slower, and say how fast
    #[arg(long)]
    pub stats: bool,
    /// Sweep over sequence lengths, as 4096,8192
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', conflicts_with = "seq")]
    pub sequences: Vec<u64>,
    /// Write a sweep as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a sweep as an SVG plot
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Memory to leave free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Headroom {
    /// In GiB.
    Gib(f64),
    /// As a share of what the device shows.
    Share(f64),
}

impl Headroom {
    /// In bytes of a device that shows so many.
    pub fn bytes(self, visible: u64) -> Bytes {
        Bytes(match self {
            Headroom::Gib(gib) => (gib * Bytes::GIB.0 as f64) as u64,
            Headroom::Share(share) => (share * visible as f64) as u64,
        })
    }
}

/// Arguments of `rehearse`.
#[derive(Args)]
pub struct RehearseArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub how: RehearsalArgs,
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
    /// Make a fault: die:RANK@STEP, dtype:RANK@STEP, drop:RANK@STEP, skew:FACTOR, zero-expert:EXPERT
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
    /// What the machine is held to (docs/policy.md; `--example` prints one)
    #[arg(long, value_name = "FILE", required_unless_present = "example")]
    pub policy: Option<PathBuf>,
    /// Print an example policy, to start your own from
    #[arg(long, exclusive = true)]
    pub example: bool,
    /// The model that will run: adds the plan's memory, checkpoints, devices and the engine's rules
    #[arg(requires = "on")]
    pub recipe: Option<String>,
    /// Switch features on: mla, dsa, mtp, ngram_hash, structure
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature, requires = "recipe")]
    pub with: Vec<Feature>,
    /// Switch features off; `moe` turns E blocks into attention
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
}

/// Arguments of `launch`.
#[derive(Args)]
pub struct LaunchArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, or 64x8xH200
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
    /// Launch although the plan does not fit; the record says so
    #[arg(long)]
    pub override_memory: bool,
    /// Where things are kept, what is trained on, how long: a policy .toml
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
}

/// Arguments of `lanes`.
#[derive(Args)]
pub struct LanesArgs {
    /// Recommend a lane for this recipe
    #[arg(long = "for", value_name = "RECIPE")]
    pub recipe: Option<String>,
    /// On this cluster
    #[arg(long, value_name = "CLUSTER", default_value = "8xH200", requires = "recipe")]
    pub on: String,
    /// To this end: throughput, control, offload or tpu
    #[arg(long, value_parser = goal, default_value = "throughput", requires = "recipe")]
    pub goal: Goal,
}

/// Arguments of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// bash, zsh, fish, elvish or powershell
    pub shell: clap_complete::Shell,
}

fn headroom(text: &str) -> Result<Headroom, String> {
    let refuse = || format!("`{text}` is neither GiB (`8`) nor a share of the device (`10%`)");
    let (number, is_share) = match text.strip_suffix('%') {
        Some(number) => (number, true),
        None => (text.strip_suffix("GiB").unwrap_or(text), false),
    };
    let value = number.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    match value.ok_or_else(refuse)? {
        share if is_share && share < 100.0 => Ok(Headroom::Share(share / 100.0)),
        gib if !is_share && gib <= 1024.0 => Ok(Headroom::Gib(gib)),
        _ => Err(refuse()),
    }
}

fn number(text: &str) -> Result<Number, String> {
    pick(text, Number::ALL)
}

fn ranks(text: &str) -> Result<Ranks, String> {
    pick(text, Ranks::ALL)
}

fn part(text: &str) -> Result<Part, String> {
    pick(text, Part::ALL)
}

fn frontend(text: &str) -> Result<Frontend, String> {
    pick(text, Frontend::ALL)
}

fn scheduler(text: &str) -> Result<Scheduler, String> {
    pick(text, Scheduler::ALL)
}

fn goal(text: &str) -> Result<Goal, String> {
    pick(text, Goal::ALL)
}
