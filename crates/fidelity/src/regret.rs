//! Regret, the figure a planner lives by: how much slower than the fastest layout measured the one is that we would
//! have picked among them.

use crate::Judged;
use crate::summary::median;
use std::collections::{BTreeMap, BTreeSet};

/// Layouts a sweep needs before picking one says anything.
pub const LEAST_LAYOUTS: usize = 4;

/// A pick within this of the fastest is as good as it.
pub const NEAR: f64 = 0.02;

/// Regret over the sweeps of one source: one model, engine, format, batch and length of sequences on one cluster.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Regret {
    /// The source.
    pub source: String,
    /// Whether rows with a pipeline were left out.
    pub without_stages: bool,
    /// Whether rows that do not say what would decide their step were counted too.
    pub with_undecided: bool,
    /// Sweeps of [`LEAST_LAYOUTS`] layouts and more.
    pub sweeps: usize,
    /// Of them, the share where the pick is within [`NEAR`] of the fastest.
    pub near: f64,
    /// Time the picks took beyond the fastest, as a share of it: the mean.
    pub mean: f64,
    /// The largest.
    pub worst: f64,
}

/// Regret by source; where a source has pipelines, its rows without them apart as well, and where some of its rows are
/// undecided, all of them.
pub fn regrets(rows: &[Judged]) -> Vec<Regret> {
    let decided = || rows.iter().filter(|row| row.undecided.is_none());
    let sources: BTreeSet<&str> = decided().map(|row| row.source.as_str()).collect();
    let mut found = Vec::new();
    for source in sources {
        let own: Vec<&Judged> = decided().filter(|row| row.source == source).collect();
        let (with, without): (Vec<&Judged>, Vec<&Judged>) =
            own.iter().partition(|row| row.class.is_some_and(|class| class.pipeline));
        let all: Vec<&Judged> = rows.iter().filter(|row| row.source == source).collect();
        found.extend(of_sweeps(source, &own));
        if !with.is_empty() {
            found.extend(of_sweeps(source, &without).map(|regret| Regret { without_stages: true, ..regret }));
        }
        if all.len() > own.len() {
            found.extend(of_sweeps(source, &all).map(|regret| Regret { with_undecided: true, ..regret }));
        }
    }
    found
}

/// Runs of one layout: seconds as measured and as priced.
type Runs = Vec<(f64, f64)>;

fn of_sweeps(source: &str, rows: &[&Judged]) -> Option<Regret> {
    let mut sweeps: BTreeMap<(&str, u64, u64), BTreeMap<&str, Runs>> = BTreeMap::new();
    for row in rows {
        let Some(figure) = row.figure("step_time") else { continue };
        let key = (row.sweep.as_str(), row.devices, row.sequences);
        let layouts = sweeps.entry(key).or_default();
        layouts.entry(&row.layout).or_default().push((figure.measured.number(), figure.predicted.number()));
    }
    let lost: Vec<f64> = sweeps.values().filter_map(|layouts| lost(layouts.values().map(Vec::as_slice))).collect();
    let count = lost.len();
    (count > 0).then(|| Regret {
        source: source.to_string(),
        without_stages: false,
        with_undecided: false,
        sweeps: count,
        near: lost.iter().filter(|lost| **lost <= NEAR).count() as f64 / count as f64,
        mean: lost.iter().sum::<f64>() / count as f64,
        worst: lost.iter().copied().fold(0.0, f64::max),
    })
}

/// What the pick of one sweep took beyond its fastest; a layout that ran more than once counts with its median.
fn lost<'a>(layouts: impl Iterator<Item = &'a [(f64, f64)]>) -> Option<f64> {
    let middle = |runs: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        median(&values)
    };
    let seconds: Vec<(f64, f64)> = layouts.map(|runs| (middle(runs, |run| run.0), middle(runs, |run| run.1))).collect();
    if seconds.len() < LEAST_LAYOUTS {
        return None;
    }
    let pick = seconds.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let fastest = seconds.iter().map(|(measured, _)| *measured).fold(f64::INFINITY, f64::min);
    Some(pick.0 / fastest - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_what_the_pick_took_beyond_the_fastest() {
        let runs = [vec![(10.0, 9.0)], vec![(12.0, 8.0)], vec![(14.0, 20.0)], vec![(11.0, 9.5), (13.0, 9.5)]];
        let of = |runs: &[Vec<(f64, f64)>]| lost(runs.iter().map(Vec::as_slice));
        assert!((of(&runs).unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(of(&runs[..3]), None);
        // The pick ran twice: its median counts.
        let twice = [vec![(10.0, 9.0)], vec![(11.0, 7.0), (13.0, 7.0)], vec![(14.0, 20.0)], vec![(20.0, 30.0)]];
        assert!((of(&twice).unwrap() - 0.2).abs() < 1e-12);
    }
}
