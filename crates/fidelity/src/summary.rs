//! Errors over groups of rows, and how many rows were predicted at all.

use crate::{Figure, Judged, Part};

/// Errors of one figure over one group of rows.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SummaryLine {
    /// The group: a kind, a source, a device, or `all`.
    pub group: String,
    /// The figure.
    pub figure: &'static str,
    /// Rows with it.
    pub rows: usize,
    /// Mean of the absolute errors.
    pub mean: f64,
    /// Their median.
    pub median: f64,
    /// The median with its sign: which way the figure leans.
    pub bias: f64,
    /// The largest.
    pub worst: f64,
}

/// The group that the target for step time is stated over ([`is_of_the_time_target`]).
pub const TIME_TARGET: &str = "pretraining on A100, H100, H200, B200 outside the nanotron sweep";

/// Whether a row counts towards the target for step time: pretraining on the devices most people
/// have, outside the one sweep that would outnumber all others.
pub fn is_of_the_time_target(row: &Judged) -> bool {
    let is_usual = ["A100", "H100", "H200", "B200"].contains(&row.device.as_str());
    row.is_pretraining && is_usual && row.source != "nanotron"
}

/// Summaries over all rows, over the target for step time and its kinds, by kind, by source, and by device
/// where steps are timed.
pub fn summarise(rows: &[Judged]) -> Vec<SummaryLine> {
    let all: Vec<&Judged> = rows.iter().collect();
    let mut lines = group_lines("all", &all, &Figure::NAMES);
    let target: Vec<&Judged> = rows.iter().filter(|r| is_of_the_time_target(r)).collect();
    lines.extend(group_lines(TIME_TARGET, &target, &["step_time"]));
    for kind in ["dense", "hybrid", "mla", "moe"] {
        let members: Vec<&Judged> = target.iter().filter(|row| row.kind == kind).copied().collect();
        lines.extend(group_lines(&format!("{TIME_TARGET}, {kind}"), &members, &["step_time"]));
    }
    let keys: [fn(&Judged) -> String; 3] = [|r| r.kind.to_string(), |r| r.source.clone(), |r| r.device.clone()];
    for (index, key) in keys.into_iter().enumerate() {
        // Bytes do not depend on the device.
        let figures = if index == 2 { &Figure::NAMES[3..] } else { &Figure::NAMES[..] };
        let mut names: Vec<String> = rows.iter().map(key).collect();
        names.sort();
        names.dedup();
        for name in names {
            let members: Vec<&Judged> = rows.iter().filter(|r| key(r) == name).collect();
            lines.extend(group_lines(&name, &members, figures));
        }
    }
    lines
}

fn group_lines(group: &str, members: &[&Judged], figures: &[&'static str]) -> Vec<SummaryLine> {
    figures.iter().filter_map(|figure| line(group, figure, members)).collect()
}

fn line(group: &str, figure: &'static str, members: &[&Judged]) -> Option<SummaryLine> {
    let mut signed: Vec<f64> = members.iter().filter_map(|r| r.figure(figure)).map(Figure::error).collect();
    signed.sort_by(f64::total_cmp);
    let mut errors: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let worst = *errors.last()?;
    Some(SummaryLine {
        group: group.to_string(),
        figure,
        rows: errors.len(),
        mean: errors.iter().sum::<f64>() / errors.len() as f64,
        median: median(&errors),
        bias: median(&signed),
        worst,
    })
}

/// The middle of values that are there.
///
/// # Panics
/// When there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    units::median(values).expect("a median of something")
}

/// How many rows that could be scored were predicted.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Coverage {
    /// Rows complete enough to score.
    pub ready: usize,
    /// Rows predicted.
    pub modelled: usize,
}

impl Coverage {
    /// The share predicted; one when there was nothing to predict.
    pub fn share(&self) -> f64 {
        if self.ready == 0 { 1.0 } else { self.modelled as f64 / self.ready as f64 }
    }
}

/// Coverage of one part over rows.
pub fn coverage<'a>(rows: impl IntoIterator<Item = &'a Judged>, part: Part) -> Coverage {
    let mut coverage = Coverage { ready: 0, modelled: 0 };
    for row in rows {
        let has_figure = row.figures.iter().any(|f| (f.name == "step_time") == (part == Part::Time));
        let mut refusals = row.refusals.iter().filter(|r| r.part == Some(part)).peekable();
        let is_refused = refusals.peek().is_some();
        let is_modelled = has_figure || refusals.any(|r| r.why.is_agreement());
        coverage.modelled += usize::from(is_modelled);
        coverage.ready += usize::from(is_modelled || is_refused);
    }
    coverage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }
}
