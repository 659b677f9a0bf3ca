//! Questions about what a job holds and how long it takes.

use super::budget::AskedRun;
use super::pictures::PictureArgs;
use super::searching::{Headroom, headroom};
use super::seen::SeenArgs;
use super::work::WorkArgs;
use case::asked::{LayoutArgs, RecipeArgs, StateArgs, dtype, pick, tokens};
use clap::Args;
use fidelity::Part;
use fleet::words::Prices;
use recipe::Dtype;
use std::path::PathBuf;

/// Arguments of `fit`.
#[derive(Args)]
pub struct FitArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, 64x8xH200, 64xH100@roce400, or a device file: 8x./mine.toml; ?xH100 asks how many of them
    /// hold it, ? which devices do with fewest; 8x8xH100+4x8xA100 are pools, stages lying on them in the order of ranks
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    /// What a device-hour costs, by device (H100=2.5,A100=1.2): `--on ?` then ranks fleets by it
    #[arg(long, alias = "price", value_name = "PRICE", value_parser = Prices::parse)]
    pub price_per_device_hour: Option<Prices>,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    /// Leave this free on every rank for what nobody replays (compile peaks, fragmentation): GiB, or 10%
    #[arg(long, alias = "keep-headroom", value_name = "GIB or %", value_parser = headroom, default_value = "4")]
    pub headroom: Headroom,
    /// Price routing skew: factors over the balanced share, as 1.0,1.5,2.0
    #[arg(long, value_name = "FACTORS", value_delimiter = ',')]
    pub overload: Vec<f64>,
    /// Try one change at a time for what it saves: yes, or no for an answer sooner
    #[arg(long, value_name = "yes or no", value_parser = yes_or_no, default_value = "yes")]
    pub levers: YesOrNo,
    /// Run the production checklist and show the evidence; an item that does not hold exits 1
    #[arg(long)]
    pub checklist: bool,
    /// Show the routing scratch of one expert layer: capacity, dispatch counts, receive and combine
    #[arg(long)]
    pub routing: bool,
    #[command(flatten)]
    pub pictures: PictureArgs,
    #[command(flatten)]
    pub seen: SeenArgs,
    #[command(flatten)]
    pub serving: ServingArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Arguments of `report`.
#[derive(Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, 64x8xH200, 64xH100@roce400, or a device file: 8x./mine.toml
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    /// Where it is written
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Leave this free on every rank: GiB, or 10%
    #[arg(long, value_name = "GIB or %", value_parser = headroom, default_value = "4")]
    pub headroom: Headroom,
    /// Also what else could run on this cluster, which takes a search
    #[arg(long)]
    pub plan: bool,
    #[command(flatten)]
    pub run: AskedRun,
}

impl ReportArgs {
    /// The headroom as `fit` is told.
    pub fn headroom_words(&self) -> Vec<String> {
        let words = match self.headroom {
            Headroom::Gib(gib) => gib.to_string(),
            Headroom::Share(share) => format!("{}%", 100.0 * share),
        };
        vec!["--headroom".to_string(), words]
    }
}

/// Arguments of `schedule`.
#[derive(Args)]
pub struct ScheduleArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, 64x8xH200, 64xH100@roce400, or a device file: 8x./mine.toml
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub pictures: PictureArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Serving instead of training.
#[derive(Args)]
#[command(next_help_heading = "Serving")]
pub struct ServingArgs {
    /// Price serving: weights, key/value cache, recurrent state
    #[arg(long, conflicts_with_all = ["trace", "memory_snapshot"])]
    pub serve: bool,
    /// Sequences on one replica
    #[arg(long, value_name = "N", default_value_t = 1, requires = "serve")]
    pub batch: u64,
    /// Tokens each may grow to, as 32768 or 32k (default: the recipe's sequence)
    #[arg(long, value_name = "TOKENS", value_parser = tokens, requires = "serve")]
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
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Arguments of `fidelity`.
#[derive(Args)]
pub struct FidelityArgs {
    /// Rows of measured runs, one JSON object a line
    pub rows: PathBuf,
    /// Show every row, not only the summary and the worst
    #[arg(long)]
    pub all: bool,
    /// Show where the seconds of one published row go as we price it, and what it is read as
    #[arg(long, value_name = "NAME", conflicts_with_all = ["all", "leave_one_out", "residuals", "only"])]
    pub row: Option<String>,
    /// Judge one part of the rows only
    #[arg(long, value_name = "PART", value_parser = part)]
    pub only: Option<Part>,
    /// Price published steps with the options `plan` would use, not with those the row says it ran
    #[arg(long)]
    pub as_planned: bool,
    /// Judge every source by the interval that all other sources make
    #[arg(long)]
    pub leave_one_out: bool,
    /// Print the residuals of steps by class, as `data/time/residuals.toml` has them, and nothing else
    #[arg(long, conflicts_with_all = ["as_planned", "leave_one_out", "all"])]
    pub residuals: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Whether something is wanted that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YesOrNo {
    Yes,
    No,
}

fn yes_or_no(text: &str) -> Result<YesOrNo, String> {
    pick(text, &[("yes", YesOrNo::Yes), ("no", YesOrNo::No)])
}

fn part(text: &str) -> Result<Part, String> {
    pick(text, Part::ALL)
}
