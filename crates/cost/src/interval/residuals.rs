//! Residuals by class, and quantiles over the nearest of them.

use super::class::{Class, DeviceClass, LEVELS};
use super::{Apart, Interval, SHARE, transfer};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Rows below which a class takes those of its relatives too.
const LEAST_ROWS: usize = 8;
/// No source counts for more than so many rows: one sweep of hundreds would drown all others.
const MOST_OF_A_SOURCE: f64 = 8.0;
/// Where nothing was ever measured, an interval is this much wider than over all there is.
const UNKNOWN: f64 = 2.0;

/// How far steps of one class lay from what one source measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The class.
    pub class: Class,
    /// The source.
    pub source: String,
    /// Logarithms of measured over priced, in order.
    pub residuals: Vec<f64>,
}

/// How far ratios of two layouts of one sweep lay from what one source measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairs {
    /// The class of both, or of one where they differ in stages.
    pub class: Class,
    /// The source.
    pub source: String,
    /// Logarithms of measured ratios over priced ones, without their sign, in order.
    pub moved: Vec<f64>,
}

/// Everything measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residuals {
    /// What quantiles over other sources are widened by to hold their share of a source that was left out.
    pub widen: f64,
    /// Steps.
    #[serde(default)]
    pub steps: Vec<Group>,
    /// Ratios.
    #[serde(default)]
    pub pairs: Vec<Pairs>,
}

impl Residuals {
    /// Reads a file of residuals.
    pub fn parse(text: &str) -> Result<Residuals, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// As a file, which reads back to the same.
    pub fn write(&self) -> String {
        let mut text = format!("widen = {}\n", self.widen);
        let list = |values: &[f64]| values.iter().map(|v| format!("{v:.4}")).collect::<Vec<_>>().join(", ");
        let mut group = |kind: &str, class: &Class, source: &str, key: &str, values: &[f64]| {
            // A text of ours: nothing in it fails.
            let _ = write!(
                text,
                "\n[[{kind}]]\nclass = {{ engine = {:?}, model = {:?}, device = {:?}, format = {:?}, scale = {:?}, \
                 pipeline = {} }}\nsource = {source:?}\n{key} = [{}]\n",
                class.engine.name(),
                class.model.name(),
                class.device.name(),
                class.format.name(),
                class.scale.name(),
                class.pipeline,
                list(values)
            );
        };
        for steps in &self.steps {
            group("steps", &steps.class, &steps.source, "residuals", &steps.residuals);
        }
        for pairs in &self.pairs {
            group("pairs", &pairs.class, &pairs.source, "moved", &pairs.moved);
        }
        text
    }

    /// The interval of a step, from every source but one and its kin: releases of one table repeat each other.
    pub fn interval(&self, class: &Class, except: Option<&str>, seconds: f64) -> Interval {
        let is_kin = |group: &&Group| except.is_some_and(|source| kin(source) == kin(&group.source));
        let groups: Vec<&Group> = self.steps.iter().filter(|group| !is_kin(group)).collect();
        let Some((level, near)) = nearest(class, &groups) else {
            // No row at all: nothing is promised but the order of magnitude.
            let (low, high) = (seconds / UNKNOWN, seconds * UNKNOWN);
            return Interval { low, high, share: SHARE, rows: 0, class: "nothing".into() };
        };
        let weighted = weighted(near.iter().map(|group| (group.source.as_str(), group.residuals.as_slice())));
        let [low, middle, high] = quantiles(&weighted);
        // Without a row of the model's own kind, what is unknown is not what others show.
        let widen = self.widen.max(1.0) * if level + 1 == LEVELS { UNKNOWN } else { 1.0 };
        // A relative's curves are off by what they were off by on devices we know, whatever else is.
        let borrowed = if class.device == DeviceClass::Other { transfer() } else { 0.0 };
        let at = |edge: f64| {
            let away = widen * (edge - middle);
            seconds * (middle + away.hypot(borrowed).copysign(away)).exp()
        };
        let (low, high) = (at(low), at(high));
        Interval { low, high, share: SHARE, rows: weighted.len(), class: class.words(level) }
    }

    /// What tells two layouts apart: in one pair of four, less than this lay between what was priced and what was
    /// measured, so that the faster of two that differ by less was the slower one in three of eight.
    pub fn apart(&self, class: &Class) -> Apart {
        for level in PAIR_LEVELS {
            let near: Vec<&Pairs> = self.pairs.iter().filter(|pairs| class.agrees(&pairs.class, level)).collect();
            let count: usize = near.iter().map(|pairs| pairs.moved.len()).sum();
            if count < LEAST_ROWS && level + 1 < LEVELS {
                continue;
            }
            let weighted = weighted(near.iter().map(|pairs| (pairs.source.as_str(), pairs.moved.as_slice())));
            let share = quantile(&weighted, 0.25).map_or(0.0, f64::exp_m1);
            return Apart { share, pairs: count, class: class.words(level) };
        }
        Apart { share: 0.0, pairs: 0, class: "nothing".into() }
    }
}

/// Levels at which pairs are looked for: a sweep is of one device, format and scale, and few were published.
const PAIR_LEVELS: [usize; 4] = [3, 4, 5, 6];

/// The groups nearest to a class that have rows enough, of two sources where there are two: rows of one share what
/// they are off by. An engine that only one source ran keeps that source before it takes other engines'.
fn nearest<'a>(class: &Class, groups: &[&'a Group]) -> Option<(usize, Vec<&'a Group>)> {
    let at =
        |level: usize| groups.iter().copied().filter(|group| class.agrees(&group.class, level)).collect::<Vec<_>>();
    let rows = |near: &[&Group]| near.iter().map(|group| group.residuals.len()).sum::<usize>();
    let is_shared = |near: &[&Group]| near.iter().any(|group| kin(&group.source) != kin(&near[0].source));
    let levels = (0..OF_AN_ENGINE).map(|level| (level, true));
    let levels = levels.chain((0..OF_AN_ENGINE).map(|level| (level, false)));
    let levels = levels.chain((OF_AN_ENGINE..LEVELS).map(|level| (level, false)));
    levels.map(|(level, wants_two)| (level, wants_two, at(level))).find_map(|(level, wants_two, near)| {
        let is_last = level + 1 == LEVELS;
        let is_enough = rows(&near) >= LEAST_ROWS && (!wants_two || is_shared(&near));
        (is_enough || (is_last && !near.is_empty())).then_some((level, near))
    })
}

/// What the sources of one table have in common: the first word of their names.
fn kin(source: &str) -> &str {
    source.split('-').next().unwrap_or(source)
}

/// Levels at which the engine still counts.
const OF_AN_ENGINE: usize = 5;

/// Values with their weights, in order; a source's rows share out at most [`MOST_OF_A_SOURCE`].
fn weighted<'a>(groups: impl Iterator<Item = (&'a str, &'a [f64])> + Clone) -> Vec<(f64, f64)> {
    let of = |source: &str| groups.clone().filter(|(name, _)| *name == source).map(|(_, v)| v.len()).sum::<usize>();
    let mut all: Vec<(f64, f64)> = Vec::new();
    for (source, values) in groups.clone() {
        let weight = (MOST_OF_A_SOURCE / of(source).max(1) as f64).min(1.0);
        all.extend(values.iter().map(|value| (*value, weight)));
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// The edges of [`SHARE`] and the middle, the edges further out the fewer rows there are.
fn quantiles(weighted: &[(f64, f64)]) -> [f64; 3] {
    let outer = (f64::midpoint(1.0, SHARE) * (1.0 + 1.0 / weighted.len().max(1) as f64)).min(1.0);
    [1.0 - outer, 0.5, outer].map(|share| quantile(weighted, share).unwrap_or(0.0))
}

/// The value that a share of the weight lies below; between two, in proportion.
fn quantile(weighted: &[(f64, f64)], share: f64) -> Option<f64> {
    let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    let (mut before, mut last) = (0.0, *weighted.first()?);
    let mut place_of_last = f64::NEG_INFINITY;
    for &(value, weight) in weighted {
        let place = (before + weight / 2.0) / total;
        if place >= share {
            let span = place - place_of_last;
            let at = if span.is_finite() && span > 0.0 { (share - place_of_last) / span } else { 1.0 };
            return Some(last.0 + at * (value - last.0));
        }
        (before, last, place_of_last) = (before + weight, (value, weight), place);
    }
    Some(last.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::{EngineClass, FormatClass, ModelClass, Scale};

    const DENSE: Class = Class {
        engine: EngineClass::Megatron,
        model: ModelClass::Dense,
        device: DeviceClass::Hopper,
        format: FormatClass::Sixteen,
        scale: Scale::Node,
        pipeline: false,
    };

    fn group(class: Class, source: &str, residuals: &[f64]) -> Group {
        Group { class, source: source.to_string(), residuals: residuals.to_vec() }
    }

    #[test]
    fn a_borrowed_curve_widens() {
        let own: Vec<f64> = (0..10).map(|i| 0.01 * f64::from(i)).collect();
        let steps = vec![group(DENSE, "a", &own[..5]), group(DENSE, "b", &own[5..])];
        let residuals = Residuals { widen: 1.0, steps, pairs: Vec::new() };
        let width = |class: &Class| {
            let interval = residuals.interval(class, None, 10.0);
            (interval.high / interval.low).ln()
        };
        let borrowed = width(&Class { device: DeviceClass::Other, ..DENSE });
        assert!(borrowed > width(&DENSE) && borrowed > 2.0 * transfer(), "{borrowed}");
    }

    #[test]
    fn an_even_number_has_its_median_between_the_middle_two() {
        let plain: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 9.0].map(|value| (value, 1.0)).to_vec();
        assert_eq!(quantile(&plain, 0.5), Some(3.0));
        assert_eq!(quantile(&plain[..3], 0.5), Some(2.0));
        assert_eq!(quantile(&plain, 0.0), Some(1.0));
        assert_eq!(quantile(&plain, 1.0), Some(9.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_class_of_few_rows_takes_its_relatives() {
        let hall = Class { scale: Scale::Hall, ..DENSE };
        let own: Vec<f64> = (0..10).map(|i| 0.01 * f64::from(i)).collect();
        let residuals = Residuals {
            widen: 1.0,
            steps: vec![group(DENSE, "a", &own[..5]), group(DENSE, "b", &own[5..]), group(hall, "c", &[0.5])],
            pairs: Vec::new(),
        };
        let narrow = residuals.interval(&DENSE, None, 10.0);
        assert_eq!((narrow.rows, narrow.class.contains("up to 8")), (10, true), "{narrow:?}");
        assert!(narrow.low >= 10.0 && narrow.high < 11.0, "{narrow:?}");
        let wide = residuals.interval(&hall, None, 10.0);
        assert_eq!((wide.rows, wide.class.contains("devices")), (11, false), "{wide:?}");
        // What was left out says nothing; what nobody measured is wider than everything that was.
        let without = residuals.interval(&hall, Some("c"), 10.0);
        assert_eq!(without.rows, 10);
        let unknown = residuals.interval(&Class { model: ModelClass::Hybrid, ..hall }, None, 10.0);
        assert!(unknown.high - unknown.low > 1.9 * (wide.high - wide.low), "{unknown:?} {wide:?}");
        assert_eq!(Residuals::default().interval(&DENSE, None, 10.0).rows, 0);
    }

    /// Rows of one table share what they are off by: another's are taken in where there are any, and its other
    /// releases are left out with it.
    #[test]
    fn one_table_alone_makes_no_interval_where_there_are_two() {
        let far = Class { scale: Scale::Hall, ..DENSE };
        let steps = vec![
            group(DENSE, "table-1", &[0.0; 8]),
            group(DENSE, "table-2", &[0.0; 8]),
            group(far, "other", &[0.3; 8]),
        ];
        let residuals = Residuals { widen: 1.0, steps, pairs: Vec::new() };
        let both = residuals.interval(&DENSE, None, 1.0);
        assert!(both.rows == 24 && both.high > 1.3, "{both:?}");
        assert_eq!(residuals.interval(&DENSE, Some("table-1"), 1.0).rows, 8);
        let alone = Class { engine: EngineClass::Nanotron, ..DENSE };
        let mut steps = residuals.steps;
        steps.push(group(alone, "sweep", &[1.0; 8]));
        let kept = Residuals { widen: 1.0, steps, pairs: Vec::new() }.interval(&alone, None, 1.0);
        assert!(kept.rows == 8 && kept.low > 2.0, "{kept:?}");
    }

    /// Six hundred rows of one source weigh what eight do.
    #[test]
    fn no_source_drowns_the_others() {
        let many = vec![1.0; 600];
        let few: Vec<f64> = vec![0.0; 24];
        let steps = vec![
            group(DENSE, "many", &many),
            group(DENSE, "a", &few[..8]),
            group(DENSE, "b", &few[..8]),
            group(DENSE, "c", &few[..8]),
        ];
        let found = Residuals { widen: 1.0, steps, pairs: Vec::new() }.interval(&DENSE, None, 1.0);
        assert!(found.low == 1.0 && found.high > 2.0, "{found:?}");
    }

    #[test]
    fn what_is_written_reads_back() {
        let residuals = Residuals {
            widen: 1.25,
            steps: vec![group(DENSE, "a \"quoted\" source", &[-0.125, 0.0625])],
            pairs: vec![Pairs { class: DENSE, source: "b".into(), moved: vec![0.0125] }],
        };
        assert_eq!(Residuals::parse(&residuals.write()), Ok(residuals));
    }
}
