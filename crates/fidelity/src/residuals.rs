//! What rows say about how far a price is to be trusted: residuals by class for `cost`'s intervals, and how those
//! intervals do on a source that had no part in them.

use crate::Judged;
use crate::summary::median;
use cost::Class;
use cost::interval::{Group, Pairs, Residuals, SHARE};
use std::collections::BTreeMap;

/// Two layouts of one sweep are compared where their priced rates are within this of one another: what a plan has to
/// choose between, in logarithms.
const COMPARABLE: f64 = 0.2;

/// Widest that intervals are made for the sake of their coverage.
const WIDEST: f64 = 3.0;

/// One source with the interval made from all others.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LeftOut {
    /// The source.
    pub source: String,
    /// Its rows that were priced and say what decides their step.
    pub rows: usize,
    /// The median of their errors' sizes.
    pub median: f64,
    /// The share of them inside the interval that the other sources make.
    pub inside: f64,
    /// Half the width of those intervals, in the median, as a share of the price.
    pub width: f64,
}

/// Rows with a step that was priced and that say what decides it: class, source, and the logarithm of measured over priced.
fn timed(rows: &[Judged]) -> Vec<(Class, &str, f64)> {
    let of = |row: &Judged| {
        let figure = row.figure("step_time")?;
        Some((row.class?, (figure.measured.number() / figure.predicted.number()).ln()))
    };
    let decided = rows.iter().filter(|row| row.undecided.is_none());
    decided.filter_map(|row| of(row).map(|(class, residual)| (class, row.source.as_str(), residual))).collect()
}

/// The residuals of rows, and the factor that makes intervals over all but one source hold their share of that one.
pub fn residuals(rows: &[Judged]) -> Residuals {
    let mut steps: BTreeMap<(Class, &str), Vec<f64>> = BTreeMap::new();
    for (class, source, residual) in timed(rows) {
        steps.entry((class, source)).or_default().push(rounded(residual));
    }
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    let steps = steps
        .into_iter()
        .map(|((class, source), values)| Group { class, source: source.to_string(), residuals: sorted(values) })
        .collect();
    let pairs = pairs(rows)
        .into_iter()
        .map(|((class, source), moved)| Pairs { class, source: source.to_string(), moved: sorted(moved) })
        .collect();
    let mut made = Residuals { widen: 1.0, steps, pairs };
    while made.widen < WIDEST && held(&leave_one_out(rows, &made)) < SHARE {
        made.widen = (made.widen * 20.0 + 1.0).round() / 20.0;
    }
    made
}

/// Four digits, as the file has them.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// The share of rows inside, no source counting for more than eight of them.
fn held(left_out: &[LeftOut]) -> f64 {
    let weight = |one: &LeftOut| one.rows.min(8) as f64;
    let total: f64 = left_out.iter().map(weight).sum();
    left_out.iter().map(|one| weight(one) * one.inside).sum::<f64>() / total.max(1.0)
}

/// Every source against the interval that all others make.
pub fn leave_one_out(rows: &[Judged], residuals: &Residuals) -> Vec<LeftOut> {
    let mut sources: BTreeMap<&str, Vec<(Class, f64)>> = BTreeMap::new();
    for (class, source, residual) in timed(rows) {
        sources.entry(source).or_default().push((class, residual));
    }
    let mut found = Vec::new();
    for (source, rows) in sources {
        let (mut errors, mut widths, mut inside) = (Vec::new(), Vec::new(), 0usize);
        for (class, residual) in &rows {
            let interval = residuals.interval(class, Some(source), 1.0);
            let measured = residual.exp();
            inside += usize::from((interval.low..=interval.high).contains(&measured));
            errors.push((1.0 / measured - 1.0).abs());
            widths.push((interval.high - interval.low) / 2.0);
        }
        errors.sort_by(f64::total_cmp);
        widths.sort_by(f64::total_cmp);
        found.push(LeftOut {
            source: source.to_string(),
            rows: rows.len(),
            median: median(&errors),
            inside: inside as f64 / rows.len() as f64,
            width: median(&widths),
        });
    }
    found
}

/// A row of a sweep: its class, and logarithms of its rate as measured and as priced.
type Rated<'a> = (&'a Judged, Class, f64, f64);

/// How far ratios of rates within a sweep on one cluster lay from what was measured, by class and source.
fn pairs(rows: &[Judged]) -> BTreeMap<(Class, &str), Vec<f64>> {
    let mut sweeps: BTreeMap<(&str, u64), Vec<Rated>> = BTreeMap::new();
    let decided = rows.iter().filter(|row| row.undecided.is_none());
    for row in decided.filter(|row| !row.sweep.is_empty() && row.tokens_per_device > 0.0) {
        let (Some(figure), Some(class)) = (row.figure("step_time"), row.class) else { continue };
        let rate = |seconds: f64| (row.tokens_per_device / seconds).ln();
        let (measured, priced) = (rate(figure.measured.number()), rate(figure.predicted.number()));
        sweeps.entry((&row.sweep, row.devices)).or_default().push((row, class, measured, priced));
    }
    let mut found: BTreeMap<(Class, &str), Vec<f64>> = BTreeMap::new();
    for members in sweeps.values() {
        for (at, one) in members.iter().enumerate() {
            for other in &members[..at] {
                let priced = one.3 - other.3;
                // The same job again is no choice.
                if priced.abs() > COMPARABLE || (one.0.layout == other.0.layout && one.0.sequences == other.0.sequences)
                {
                    continue;
                }
                let class = Class { pipeline: one.1.pipeline || other.1.pipeline, ..one.1 };
                let moved = rounded((one.2 - other.2 - priced).abs());
                found.entry((class, one.0.source.as_str())).or_default().push(moved);
            }
        }
    }
    found
}
