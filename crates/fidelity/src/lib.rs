//! Predictions against measured rows: bytes a rank holds, seconds a step takes. A row that cannot
//! be expressed is counted with its reason, never dropped; no rule anywhere names a row.
//!
//! A row becomes a [`case::Case`] with [`case::Options`], as `plan`, `fit` and `launch` have them, so
//! that the errors are the product's. One reader a file: [`emitted`], [`launched`], [`megatron`], [`steps`] for rows of
//! our own, [`published`] for those of others.

pub mod emitted;
mod figure;
mod launched;
pub mod megatron;
mod published;
mod regret;
mod residuals;
mod said;
mod steps;
mod summary;
mod sweep;
mod types;
mod why;

pub use figure::{Figure, Quantity};
pub use published::Priced;
pub use regret::{LEAST_LAYOUTS, NEAR, Regret, regrets};
pub use residuals::{LeftOut, leave_one_out, residuals};
pub use summary::{Coverage, SummaryLine, TIME_TARGET, coverage, is_of_the_time_target, summarise};
pub use sweep::{Sweep, sweeps};
pub use types::{Mistyped, mistyped};
pub use why::Why;

use case::{Case, Terms};
use hardware::Cluster;
use layout::LayoutRequest;
use ledger::{Ledger, RankJob};
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

named! {
    /// The options that a published step is priced with.
    pub enum Pricing {
        /// Those the row says it ran, and of its engine's day where it does not say.
        AsRun = "as-run",
        /// Those `plan` has for the engine, with the kernels that engine had in its day; formats are the row's.
        AsPlanned = "as-planned",
    }
}

/// Why a part of a row could not be predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Which part; none when the row is not complete enough to score any.
    pub part: Option<Part>,
    /// The reason.
    pub why: Why,
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
    /// Devices; zero when the row does not say.
    pub devices: u64,
    /// Sequences of a step; zero when the row does not say.
    pub sequences: u64,
    /// How it was split, in the row's own words: two runs of a sweep with the same are one layout.
    pub layout: String,
    /// The class of a step that was priced.
    pub class: Option<cost::Class>,
    /// What the row does not say although it would decide its step: it has an error, but no part in ranks, regret and
    /// residuals.
    pub undecided: Option<&'static str>,
    /// What was predicted; empty when nothing could be.
    pub figures: Vec<Figure>,
    /// What could not be, although the row is complete enough to score it.
    pub refusals: Vec<Refusal>,
    /// The rank's parameters, when the row has them and we disagree: ours and the row's.
    pub params_differ: Option<(u64, u64)>,
}

impl Judged {
    /// A row of our own measuring on an H200, of which nothing is predicted yet.
    fn of_our_own(name: &Value, source: &str) -> Judged {
        Judged {
            name: name.as_str().unwrap_or("unnamed").to_string(),
            kind: "dense",
            source: source.to_string(),
            device: "H200".to_string(),
            is_pretraining: true,
            sweep: String::new(),
            tokens_per_device: 0.0,
            devices: 0,
            sequences: 0,
            layout: String::new(),
            class: None,
            undecided: None,
            figures: Vec::new(),
            refusals: Vec::new(),
            params_differ: None,
        }
    }

    /// A figure by name.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|f| f.name == name)
    }

    /// Why it has no figure; none when it has one.
    pub fn why_not(&self) -> Option<&Why> {
        if !self.figures.is_empty() {
            return None;
        }
        self.refusals.first().map(|refusal| &refusal.why)
    }

    /// Whether it has a figure, or we refuse what the device refused.
    pub fn is_modelled(&self) -> bool {
        self.why_not().is_none_or(Why::is_agreement)
    }

    /// The largest error of its figures, for sorting.
    pub fn worst_error(&self) -> f64 {
        self.figures.iter().map(|f| f.error().abs()).fold(0.0, f64::max)
    }

    fn refuse(&mut self, part: Part, why: Why) {
        self.refusals.push(Refusal { part: Some(part), why });
    }

    /// Adds figures, each by name, as measured where the row has it, and as predicted.
    fn add_bytes(&mut self, figures: &[(&'static str, Option<u64>, u64)]) -> Result<(), Why> {
        let pairs = figures.iter().filter_map(|(name, measured, predicted)| Some((*name, (*measured)?, *predicted)));
        self.figures.extend(pairs.map(|(name, measured, predicted)| Figure::bytes(name, measured, predicted)));
        if self.figures.is_empty() { Err("the row holds no figure we predict".into()) } else { Ok(()) }
    }
}

/// Judges all of one row of any format.
pub fn judge(row: &Value) -> Judged {
    judge_parts(row, &[Part::Memory, Part::Time], Pricing::AsRun)
}

/// Judges these parts of a row of any format.
pub fn judge_parts(row: &Value, parts: &[Part], pricing: Pricing) -> Judged {
    judge_within(row, parts, pricing, u64::MAX)
}

/// The same, where a replay may take so many operations of this machine: a row that takes more is refused.
pub fn judge_within(row: &Value, parts: &[Part], pricing: Pricing, allowed: u64) -> Judged {
    if let Some(wrong) = mistyped(row).into_iter().next() {
        let mut judged = Judged::of_our_own(&Value::Null, "unknown");
        judged.refusals.push(Refusal { part: None, why: Why::Row(wrong.why) });
        return judged;
    }
    if emitted::is_emitted(row) {
        return emitted::judge(row, parts, allowed);
    }
    if launched::is_launched(row) {
        return launched::judge(row, parts, allowed);
    }
    match (row.get("case"), row.get("step_seconds")) {
        (Some(_), Some(_)) => steps::judge(row, parts),
        (Some(_), None) => megatron::judge(row, parts, allowed),
        (None, _) => published::judge(row, parts, pricing, allowed),
    }
}

/// The step of a published run, priced, with where its seconds go. Rows of our own measuring are refused: their steps have
/// one rank and no links.
pub fn priced(row: &Value, pricing: Pricing) -> Result<Priced, Why> {
    match row.get("measured") {
        Some(_) => published::priced(row, pricing),
        None => Err(Why::Format),
    }
}

/// Refuses a replay that is predicted to take more than is allowed.
fn check_work(ledger: &Ledger, job: &RankJob, allowed: u64) -> Result<(), Why> {
    // A rank that is none is the replay's to refuse.
    let takes = if job.rank < job.layout.world { ledger.work(job).operations } else { 0 };
    if takes <= allowed {
        return Ok(());
    }
    let (takes, allowed) = (units::count(takes), units::count(allowed));
    Err(format!("its replay takes about {takes} operations, and {allowed} are allowed (--work-limit)").into())
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

/// The job of a row: its layout as it stands, with no mode or engine that the row does not name.
fn lay_out(recipe: Recipe, request: &LayoutRequest, cluster: Option<Cluster>) -> Result<Case, Why> {
    Case::laid_out(recipe, request, cluster, Terms::SPLIT).map_err(Why::refused)
}
