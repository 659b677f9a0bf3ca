//! Predictions against measured rows. A row that cannot be expressed is counted with its reason,
//! never dropped; no rule anywhere names a row.

mod megatron;
mod published;

use recipe::{Mixer, Recipe};
use serde_json::Value;

/// One figure of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// `static`, `allocated` or `reserved`.
    pub name: &'static str,
    /// Bytes measured.
    pub measured: u64,
    /// Bytes predicted.
    pub predicted: u64,
}

impl Figure {
    /// Prediction over measurement, less one.
    pub fn error(&self) -> f64 {
        self.predicted as f64 / self.measured.max(1) as f64 - 1.0
    }
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
    /// What was predicted; empty when nothing could be.
    pub figures: Vec<Figure>,
    /// Why nothing could be predicted.
    pub why_not: Option<String>,
    /// The rank's parameters, when the row has them and we disagree: ours and the row's.
    pub params_differ: Option<(u64, u64)>,
}

impl Judged {
    fn refused(name: String, kind: &'static str, source: &str, why: impl Into<String>) -> Judged {
        Judged {
            name,
            kind,
            source: source.to_string(),
            figures: Vec::new(),
            why_not: Some(why.into()),
            params_differ: None,
        }
    }

    /// A figure by name.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|f| f.name == name)
    }

    /// The largest error of its peaks, for sorting.
    pub fn worst_error(&self) -> f64 {
        self.figures.iter().map(|f| f.error().abs()).fold(0.0, f64::max)
    }
}

/// Judges one row of either format.
pub fn judge(row: &Value) -> Judged {
    if row.get("case").is_some() {
        return megatron::judge(row);
    }
    let not_ready = |why| {
        let name = row["id"].as_str().unwrap_or("unnamed").to_string();
        Judged::refused(name, published::kind(row), row["source_id"].as_str().unwrap_or("unknown"), why)
    };
    match row["ready"]["memory"].as_bool() {
        Some(true) => published::judge(row),
        Some(false) => not_ready("the row is not complete enough to score memory"),
        None => not_ready("the row is of neither format"),
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

/// Errors of one figure over one group of rows.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SummaryLine {
    /// The group: a kind, a source, or `all`.
    pub group: String,
    /// The figure.
    pub figure: &'static str,
    /// Rows with it.
    pub rows: usize,
    /// Mean of the absolute errors.
    pub mean: f64,
    /// Their median.
    pub median: f64,
    /// The largest.
    pub worst: f64,
}

/// Summaries over all rows, by kind, and by source.
pub fn summarise(rows: &[Judged]) -> Vec<SummaryLine> {
    let mut groups: Vec<(String, Vec<&Judged>)> = vec![("all".to_string(), rows.iter().collect())];
    for key in [|r: &Judged| r.kind.to_string(), |r: &Judged| r.source.clone()] {
        let mut names: Vec<String> = rows.iter().map(key).collect();
        names.sort();
        names.dedup();
        groups.extend(names.into_iter().map(|name| {
            let members = rows.iter().filter(|r| key(r) == name).collect();
            (name, members)
        }));
    }
    let lines = groups.iter().flat_map(|(group, members)| {
        ["static", "allocated", "reserved"].into_iter().filter_map(move |figure| line(group, figure, members))
    });
    lines.collect()
}

fn line(group: &str, figure: &'static str, members: &[&Judged]) -> Option<SummaryLine> {
    let mut errors: Vec<f64> = members.iter().filter_map(|r| r.figure(figure)).map(|f| f.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let worst = *errors.last()?;
    Some(SummaryLine {
        group: group.to_string(),
        figure,
        rows: errors.len(),
        mean: errors.iter().sum::<f64>() / errors.len() as f64,
        median: errors[errors.len() / 2],
        worst,
    })
}
