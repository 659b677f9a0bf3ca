//! Questions about a model, a split or a lane, which need no price.

use super::pictures::PictureArgs;
use super::work::WorkArgs;
use crate::commands::receipt::StoreArgs;
use case::asked::{LayoutArgs, RecipeArgs, StateArgs, mode, pick};
use clap::{Args, ValueEnum};
use launch::lanes::Goal;
use layout::Engine;
use layout::mesh::Order;
use recipe::Mode;
use std::path::PathBuf;

/// Arguments of `params`.
#[derive(Args)]
pub struct ParamsArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Count what this mode runs instead of what the recipe says
    #[arg(long, value_parser = mode)]
    pub mode: Option<Mode>,
    #[command(flatten)]
    pub pictures: PictureArgs,
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
    /// Show which ranks hold which part of this tensor, as `layers.1.moe.experts.fc1.weight`
    #[arg(long, value_name = "TENSOR", conflicts_with = "rank")]
    pub tensor: Option<String>,
}

/// Arguments of `check`.
#[derive(Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster it is meant for: its devices are the world, and the engine must run on them
    #[arg(long, value_name = "CLUSTER")]
    pub on: Option<String>,
    #[command(flatten)]
    pub layout: LayoutArgs,
}

/// Arguments of `choices`.
#[derive(Args)]
pub struct ChoicesArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, 64x8xH200, 64xH100@roce400, or a device file: 8x./mine.toml
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
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
    /// The cluster: its devices are the world, and the picture shows its nodes
    #[arg(long, value_name = "CLUSTER")]
    pub on: Option<String>,
    #[command(flatten)]
    pub pictures: PictureArgs,
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
    #[command(flatten)]
    pub work: WorkArgs,
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
    #[arg(required_unless_present = "receipt")]
    pub symptom: Vec<String>,
    /// A run that went wrong: what its receipt shows is looked up
    #[arg(long, value_name = "RECEIPT", conflicts_with = "symptom")]
    pub receipt: Option<String>,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Arguments of `glossary`.
#[derive(Args)]
pub struct GlossaryArgs {
    /// The word, as `lane`; without it, every word there is
    pub word: Option<String>,
}

/// Arguments of `import`.
#[derive(Args)]
pub struct ImportArgs {
    /// config.json or its folder, a Megatron argument list, or a launch directory of ours; `-` reads standard input
    pub file: PathBuf,
    /// Write the recipe here instead of printing it
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The recipe's name (default: the config's own, its folder's, or the model type and size)
    #[arg(long)]
    pub name: Option<String>,
    /// Sequence to train on, such as 8192 or 8k, for a config.json (default: the length it was first trained on, or
    /// `max_position_embeddings` up to 8192)
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    pub seq: Option<u64>,
}

/// A number of tokens: `8192`, or `8k` for 8192.
fn tokens(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    number
        .filter(|n| (1..=recipe::limits::SEQUENCE).contains(n))
        .ok_or_else(|| format!("`{text}` is no number of tokens; write 8192 or 8k"))
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

/// Arguments of `options`.
#[derive(Args)]
pub struct OptionsArgs {
    /// One engine: megatron, fsdp2, torchtitan, deepspeed, nanotron, maxtext, xla-spmd or shardwright
    #[arg(value_parser = engine)]
    pub engine: Option<Engine>,
}

/// Arguments of `lanes`.
#[derive(Args)]
pub struct LanesArgs {
    /// Recommend a lane for this recipe
    #[arg(long = "for", value_name = "RECIPE")]
    pub recipe: Option<String>,
    /// On this cluster (default: 8xH200, or 8xTPU-v6e with --goal tpu)
    #[arg(long, value_name = "CLUSTER", requires = "recipe")]
    pub on: Option<String>,
    /// To this end: throughput, control, offload or tpu (default: what the devices are for)
    #[arg(long, value_parser = goal, requires = "recipe")]
    pub goal: Option<Goal>,
}

fn engine(text: &str) -> Result<Engine, String> {
    pick(text, Engine::ALL)
}

fn goal(text: &str) -> Result<Goal, String> {
    pick(text, Goal::ALL)
}
