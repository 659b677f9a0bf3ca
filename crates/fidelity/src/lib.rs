//! Predictions against measured rows: bytes a rank holds, seconds a step takes. A row that cannot
//! be expressed is counted with its reason, never dropped; no rule anywhere names a row.

pub mod emitted;
mod figure;
pub mod measured;
mod megatron;
mod published;
mod steps;
mod summary;
mod sweep;

pub use figure::{Figure, Quantity};
pub use published::step;
pub use summary::{Coverage, SummaryLine, coverage, is_of_the_time_target, summarise};
pub use sweep::{Sweep, sweeps};

use recipe::{Mixer, Recipe};
use serde_json::Value;
use units::named;

named! {
    /// What of a row is judged.
    pub enum Part {
        /// Bytes held.
        Memory = "memory",
        /// Seconds a step takes.
        Time = "step_time",
    }
}

/// Why a part of a row could not be predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Which part; none when the row is not complete enough to score any.
    pub part: Option<Part>,
    /// The reason.
    pub why: String,
}

/// A row, judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The row's own name.
    pub name: String,
    /// Dense, moe, mla or hybrid.
    pub kind: &'static str,
    /// Where the row comes from.
    pub source: String,
    /// The device it ran on, as the row calls it.
    pub device: String,
    /// Whether it is a run of pretraining.
    pub is_pretraining: bool,
    /// What rows of one sweep share: source, engine, model, device, format, length of a sequence.
    pub sweep: String,
    /// Tokens a step has for each device; zero when the row does not say.
    pub tokens_per_device: f64,
    /// What was predicted; empty when nothing could be.
    pub figures: Vec<Figure>,
    /// What could not be, although the row is complete enough to score it.
    pub refusals: Vec<Refusal>,
    /// The rank's parameters, when the row has them and we disagree: ours and the row's.
    pub params_differ: Option<(u64, u64)>,
}

impl Judged {
    /// A figure by name.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|f| f.name == name)
    }

    /// Why nothing could be predicted; none when something was.
    pub fn why_not(&self) -> Option<&str> {
        if !self.figures.is_empty() {
            return None;
        }
        self.refusals.first().map(|refusal| refusal.why.as_str())
    }

    /// The largest error of its figures, for sorting.
    pub fn worst_error(&self) -> f64 {
        self.figures.iter().map(|f| f.error().abs()).fold(0.0, f64::max)
    }
}

/// Judges all of one row of any format.
pub fn judge(row: &Value) -> Judged {
    judge_parts(row, &[Part::Memory, Part::Time])
}

/// Judges these parts of a row of any format.
pub fn judge_parts(row: &Value, parts: &[Part]) -> Judged {
    if emitted::is_emitted(row) {
        return emitted::judge(row, parts);
    }
    match (row.get("case"), row.get("step_seconds")) {
        (Some(_), Some(_)) => steps::judge(row, parts),
        (Some(_), None) => megatron::judge(row, parts),
        (None, _) => published::judge(row, parts),
    }
}

/// The kind of a model, as summaries group by it.
pub fn kind(recipe: &Recipe) -> &'static str {
    let is_hybrid = recipe.layers.iter().any(|layer| layer.blocks.len() == 1);
    match () {
        () if recipe.is_latent() => "mla",
        () if is_hybrid => "hybrid",
        () if recipe.has(Mixer::Moe) => "moe",
        () => "dense",
    }
}
