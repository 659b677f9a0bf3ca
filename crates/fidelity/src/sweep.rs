//! Sweeps: one model on one device by one engine, over layouts and batches. What counts there is
//! whether a better layout is called better, so ranks are compared, not seconds.

use crate::Judged;

/// Rows a sweep needs before its ranks say anything.
const LEAST_ROWS: usize = 5;

/// How well one sweep is ordered.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Sweep {
    /// What its rows share.
    pub name: String,
    /// Rows in it.
    pub rows: usize,
    /// Spearman's correlation of step times.
    pub step_time: f64,
    /// Of tokens a second and device, which a larger cluster or batch does not order by itself.
    pub tokens_per_second: f64,
}

/// The sweeps among rows, in order of their names.
pub fn sweeps(rows: &[Judged]) -> Vec<Sweep> {
    let timed: Vec<(&Judged, f64, f64)> = rows
        .iter()
        .filter(|row| !row.sweep.is_empty() && row.undecided.is_none())
        .filter_map(|row| row.figure("step_time").map(|f| (row, f.measured.number(), f.predicted.number())))
        .collect();
    let mut names: Vec<&str> = timed.iter().map(|(row, _, _)| row.sweep.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut found = Vec::new();
    for name in names {
        let members: Vec<_> = timed.iter().filter(|(row, _, _)| row.sweep == name).collect();
        if members.len() < LEAST_ROWS {
            continue;
        }
        let seconds: Vec<(f64, f64)> = members.iter().map(|(_, measured, predicted)| (*measured, *predicted)).collect();
        let rates: Vec<(f64, f64)> =
            members.iter().map(|(row, m, p)| (row.tokens_per_device / m, row.tokens_per_device / p)).collect();
        found.push(Sweep {
            name: name.to_string(),
            rows: members.len(),
            step_time: spearman(&seconds),
            tokens_per_second: spearman(&rates),
        });
    }
    found
}

/// Spearman's rank correlation; equal values share their mean rank.
fn spearman(pairs: &[(f64, f64)]) -> f64 {
    let (left, right): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (left, right) = (ranks(&left), ranks(&right));
    let mean = (pairs.len() as f64 - 1.0) / 2.0;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let spread = (dot(&left, &left) * dot(&right, &right)).sqrt();
    if spread == 0.0 { 0.0 } else { dot(&left, &right) / spread }
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut at = 0;
    while at < order.len() {
        let equal = order[at..].iter().take_while(|i| values[**i] == values[order[at]]).count();
        let shared = at as f64 + (equal as f64 - 1.0) / 2.0;
        order[at..at + equal].iter().for_each(|i| ranks[*i] = shared);
        at += equal;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_and_distances_do_not() {
        assert_eq!(spearman(&[(1.0, 10.0), (2.0, 11.0), (3.0, 500.0)]), 1.0);
        assert_eq!(spearman(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), -1.0);
        assert_eq!(spearman(&[(1.0, 1.0), (2.0, 1.0)]), 0.0);
        assert_eq!(ranks(&[5.0, 1.0, 5.0]), [1.5, 0.0, 1.5]);
    }
}
