//! A history walked: when a figure left the noise of the runs before it, and in which layer something changed there.
//! That nothing which is recorded changed is an answer too.

use crate::Receipt;
use crate::compare::{Change, Layer, Subject, changes, localised, peak_of};
use crate::statistics::{Summary, critical};
use serde::Serialize;

/// Runs of one level that noise is taken from; with fewer, a fixed share decides.
const ENOUGH: usize = 3;

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Median seconds of a step behind the warm-up.
    StepSeconds,
    /// The largest peak of any rank.
    PeakBytes,
    /// Mean loss of the last fifth of the steps.
    Loss,
}

impl Figure {
    /// Every figure that is walked.
    pub const ALL: [Figure; 3] = [Figure::StepSeconds, Figure::PeakBytes, Figure::Loss];

    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Figure::StepSeconds => "seconds a step",
            Figure::PeakBytes => "peak memory",
            Figure::Loss => "late loss",
        }
    }

    /// The change that counts where too few runs tell the noise: what `gate` allows; and the least that counts at all,
    /// however steady the runs before were.
    fn shares(self) -> (f64, f64) {
        match self {
            Figure::StepSeconds => (0.05, 0.01),
            Figure::PeakBytes => (0.005, 0.0005),
            Figure::Loss => (0.01, 1e-4),
        }
    }

    /// Of a run; none where it was not recorded.
    pub fn of(self, receipt: &Receipt) -> Option<f64> {
        match self {
            Figure::StepSeconds => receipt.evidence.step_seconds(),
            Figure::PeakBytes => peak_of(receipt).map(|(_, bytes)| bytes as f64),
            Figure::Loss => {
                let losses: Vec<f64> = receipt.evidence.steps.iter().filter_map(|step| step.loss).collect();
                let late = &losses[losses.len() - losses.len().div_ceil(5)..];
                Summary::of(late).map(|summary| summary.mean)
            }
        }
    }
}

/// A run at which a figure changed.
#[derive(Clone, Debug, Serialize)]
pub struct Turn {
    /// Its place in the history, from zero.
    pub at: usize,
    /// Its id, and when it was recorded.
    pub id: String,
    /// When it was recorded.
    pub recorded: String,
    /// What changed.
    pub figure: Figure,
    /// The mean of the runs before, since the last change.
    pub before: f64,
    /// How many they were.
    pub runs: usize,
    /// The value of this run.
    pub after: f64,
    /// How far from the mean it might have been.
    pub noise: f64,
    /// The layer that differs from the run before; none where nothing that we record changed.
    #[serde(serialize_with = "layer_name")]
    pub layer: Option<Layer>,
    /// What differs.
    pub changes: Vec<Change>,
}

fn layer_name<S: serde::Serializer>(layer: &Option<Layer>, serializer: S) -> Result<S::Ok, S::Error> {
    match layer {
        Some(layer) => serializer.serialize_some(layer.name()),
        None => serializer.serialize_none(),
    }
}

/// A change of what was run at which no figure moved.
#[derive(Clone, Debug, Serialize)]
pub struct Quiet {
    /// Its place in the history.
    pub at: usize,
    /// When it was recorded.
    pub recorded: String,
    /// Where it lies.
    #[serde(serialize_with = "layer_name")]
    pub layer: Option<Layer>,
    /// What changed.
    pub changes: Vec<Change>,
}

/// What a history shows.
#[derive(Clone, Debug, Serialize)]
pub struct Drift {
    /// Runs walked.
    pub runs: usize,
    /// Where figures changed.
    pub turns: Vec<Turn>,
    /// Where something else changed, and no figure.
    pub quiet: Vec<Quiet>,
}

/// How far the next value may be from the mean of these: the interval in which 19 of 20 lie.
fn noise(figure: Figure, level: &[f64]) -> Option<(f64, f64)> {
    let summary = Summary::of(level)?;
    let (coarse, least) = figure.shares();
    let allowed = match summary.deviation.filter(|_| level.len() >= ENOUGH) {
        Some(deviation) => {
            let n = level.len() as f64;
            critical(n - 1.0) * deviation * (1.0 + 1.0 / n).sqrt()
        }
        None => coarse * summary.mean.abs(),
    };
    Some((summary.mean, allowed.max(least * summary.mean.abs())))
}

/// Walks receipts in the order they were recorded. A receipt that another of them supersedes is left out.
pub fn drift(history: &[Receipt]) -> Drift {
    let superseded: Vec<&str> = history.iter().filter_map(|r| Some(r.supersedes.as_ref()?.id.as_str())).collect();
    let mut kept: Vec<&Receipt> = history.iter().filter(|r| !superseded.contains(&r.id().as_str())).collect();
    kept.sort_by(|a, b| a.recorded.cmp(&b.recorded));
    let subjects: Vec<Subject> = kept.iter().map(|receipt| Subject::new(receipt)).collect();
    let mut turns = Vec::new();
    for figure in Figure::ALL {
        let mut level: Vec<f64> = Vec::new();
        let mut last: Option<usize> = None;
        for (at, receipt) in kept.iter().enumerate() {
            let Some(value) = figure.of(receipt) else { continue };
            if let (Some((mean, noise)), Some(last)) = (noise(figure, &level), last)
                && (value - mean).abs() > noise
            {
                let changes = changes(&subjects[last], &subjects[at]);
                turns.push(Turn {
                    at,
                    id: receipt.id(),
                    recorded: receipt.recorded.clone(),
                    figure,
                    before: mean,
                    runs: level.len(),
                    after: value,
                    noise,
                    layer: localised(&changes),
                    changes,
                });
                level.clear();
            }
            level.push(value);
            last = Some(at);
        }
    }
    turns.sort_by_key(|turn| turn.at);
    let quiet = (1..subjects.len()).filter(|at| turns.iter().all(|turn| turn.at != *at)).filter_map(|at| {
        let changes = changes(&subjects[at - 1], &subjects[at]);
        let layer = localised(&changes);
        layer.is_some().then(|| Quiet { at, recorded: kept[at].recorded.clone(), layer, changes })
    });
    Drift { runs: kept.len(), quiet: quiet.collect(), turns }
}
