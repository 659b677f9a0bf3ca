//! `plan`: what is pinned, and what a search is told.

use super::budget::BudgetArgs;
use super::pictures::PictureArgs;
use super::seen::SeenArgs;
use super::work::WorkArgs;
use case::Asked;
use case::asked::{LayoutArgs, RecipeArgs, StateArgs, tokens};
use clap::Args;
use hardware::Device;
use recipe::Recipe;
use std::path::PathBuf;
use units::Bytes;

/// Arguments of `plan`.
#[derive(Args, Clone)]
pub struct PlanArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, or 64x8xH200; 8,16,32xH200 or 8..512xH200 (doublings) make a sweep; ?xH100 looks for the
    /// smallest that does --tokens in --days, ? over all devices; 8x8xH100+4x8xA100 are pools, over which stages are placed
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    /// A layout flag pins its axis; what is left out is searched
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub budget: BudgetArgs,
    /// The frontier, or a sweep
    #[command(flatten)]
    pub pictures: PictureArgs,
    #[command(flatten)]
    pub seen: SeenArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

impl PlanArgs {
    /// A job to plan on a cluster, with nothing typed about the search.
    pub fn of(asked: Asked, on: &str) -> PlanArgs {
        PlanArgs {
            recipe: asked.recipe,
            on: on.to_string(),
            layout: asked.layout,
            state: asked.state,
            search: SearchArgs::with(Headroom::Gib(4.0)),
            budget: BudgetArgs { pue: 1.0, ..BudgetArgs::default() },
            pictures: PictureArgs::default(),
            seen: SeenArgs::default(),
            work: WorkArgs::default(),
        }
    }

    /// The question as it is typed: what is asked, not what is to be drawn or written of the answer.
    pub fn words(&self) -> Vec<String> {
        let seq = match self.search.sequences.as_slice() {
            [sequence] => Some(*sequence),
            _ => self.layout.seq,
        };
        let asked = Asked {
            recipe: self.recipe.clone(),
            on: Some(self.on.clone()),
            layout: LayoutArgs { seq, ..self.layout.clone() },
            state: self.state.clone(),
        };
        let mut out = asked.words();
        let headroom = self.search.headroom.to_string();
        if headroom != USUAL_HEADROOM {
            out.extend(["--headroom".to_string(), headroom]);
        }
        if self.search.overload > 1.0 {
            out.extend(["--overload".to_string(), self.search.overload.to_string()]);
        }
        out.extend(self.search.max_tp_in_node.then(|| "--max-tp-in-node".to_string()));
        out.extend(self.budget.words());
        out
    }
}

/// GiB that are left free unless told otherwise.
const USUAL_HEADROOM: &str = "4";

/// Experts are balanced unless told otherwise.
const USUAL_OVERLOAD: &str = "1";

/// What a search is told.
#[derive(Args, Clone)]
#[command(next_help_heading = "Search")]
pub struct SearchArgs {
    /// Leave this free on every rank: GiB, or 10%
    #[arg(long, alias = "keep-headroom", value_name = "GIB or %", value_parser = headroom, default_value = USUAL_HEADROOM)]
    pub headroom: Headroom,
    /// Keep the headroom free even when the fullest rank's experts receive this multiple of their share of tokens, as 1.5
    #[arg(long, value_name = "FACTOR", value_parser = overload, default_value = USUAL_OVERLOAD)]
    pub overload: f64,
    /// Keep tensor parallelism inside a node
    #[arg(long)]
    pub max_tp_in_node: bool,
    /// Compare engines: fsdp2,deepspeed, or all; the same is asked by such a list behind --engine
    #[arg(long, value_name = "ENGINES", value_delimiter = ',', conflicts_with = "engine")]
    pub engines: Vec<String>,
    /// Also list the N best layouts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub top: usize,
    /// Say why this layout is not the best, as "--tp 8 --pp 4"
    #[arg(long, value_name = "LAYOUT", allow_hyphen_values = true)]
    pub explain: Option<String>,
    /// Price every legal layout, also where a bound shows it to be slower, and say how fast
    #[arg(long)]
    pub stats: bool,
    /// Sweep over sequence lengths, as 4096,8k
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = tokens, conflicts_with = "seq")]
    pub sequences: Vec<u64>,
    /// Write a sweep as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

impl SearchArgs {
    /// Nothing asked but this much left free.
    pub fn with(headroom: Headroom) -> SearchArgs {
        SearchArgs {
            headroom,
            overload: 1.0,
            max_tp_in_node: false,
            engines: Vec::new(),
            top: 0,
            explain: None,
            stats: false,
            sequences: Vec::new(),
            csv: None,
        }
    }
}

/// Memory to leave free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Headroom {
    /// In GiB.
    Gib(f64),
    /// As a share of what the device shows.
    Share(f64),
}

impl std::fmt::Display for Headroom {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Headroom::Gib(gib) => write!(f, "{gib}"),
            Headroom::Share(share) => write!(f, "{}%", 100.0 * share),
        }
    }
}

impl Headroom {
    /// In bytes of a device that shows so many.
    pub fn bytes(self, visible: u64) -> Bytes {
        Bytes(match self {
            Headroom::Gib(gib) => (gib * Bytes::GIB.0 as f64) as u64,
            Headroom::Share(share) => (share * visible as f64) as u64,
        })
    }

    /// The same for a model on its device: more than was said to be left where it ran out of memory before.
    pub fn on(self, device: &Device, recipe: &Recipe) -> Bytes {
        let asked = self.bytes(device.visible_bytes());
        let ran_out = ran_out(device, recipe).map_or(0, |headroom| headroom.bytes);
        Bytes(asked.0.saturating_add(ran_out))
    }
}

/// What a device's calibration says of a model that ran out of memory on it.
pub fn ran_out<'a>(device: &'a Device, recipe: &Recipe) -> Option<&'a hardware::Headroom> {
    device.calibration.as_ref()?.ran_out_with(recipe.name.raw(), recipe.counts().all.total)
}

/// Reads memory to leave free.
pub fn headroom(text: &str) -> Result<Headroom, String> {
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

/// Reads how uneven routing may become.
fn overload(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite() && *factor >= 1.0);
    factor.ok_or_else(|| "a multiple of the balanced share, at least 1: 1.5 is half as much again".to_string())
}
