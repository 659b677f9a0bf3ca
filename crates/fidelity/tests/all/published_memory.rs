//! Replays against what others measured and published (`data/truth/published.jsonl`). Held are how
//! many rows of each source are modelled, and the errors reached, too high and too low alike.

use fidelity::{Judged, Part, Pricing, Why, judge_parts, summarise};
use serde_json::Value;
use std::collections::BTreeMap;

const ROWS: usize = 855;

fn rows() -> Vec<Value> {
    let path = format!("{}/../../data/truth/published.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: Vec<Value> = rows.filter(|row| row["ready"]["memory"] == true).collect();
    assert_eq!(rows.len(), ROWS);
    rows
}

fn judge(row: &Value) -> Judged {
    judge_parts(row, &[Part::Memory], Pricing::AsRun)
}

/// Rows of each source that are modelled, of how many. A row that becomes modelled, or is lost, is
/// written down here.
const COVERAGE: [(&str, usize, usize); 8] = [
    ("bigscience-176b", 0, 33),
    ("mcore-golden", 34, 84),
    ("nanotron", 693, 693),
    ("simumax-b200", 20, 21),
    ("stas-h200-b200", 1, 7),
    ("torchao", 2, 6),
    ("torchtitan", 0, 7),
    ("torchtune", 0, 4),
];

/// What errors of a source may come to: figure, median of their sizes, the median with its sign,
/// worst.
const BOUNDS: [(&str, &str, f64, f64, f64); 6] = [
    ("mcore-golden", "allocated", 0.02, 0.01, 0.14),
    ("nanotron", "reserved", 0.10, 0.10, 0.66),
    ("simumax-b200", "allocated", 0.001, 0.001, 0.003),
    ("simumax-b200", "reserved", 0.03, 0.03, 0.08),
    ("stas-h200-b200", "reserved", 0.12, 0.12, 0.12),
    ("torchao", "reserved", 0.10, 0.10, 0.10),
];

/// How many rows of each source are modelled.
fn covered(judged: &[Judged]) -> Vec<(&str, usize, usize)> {
    let mut sources: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in judged {
        let (modelled, rows) = sources.entry(&row.source).or_default();
        *modelled += usize::from(row.why_not().is_none());
        *rows += 1;
    }
    sources.into_iter().map(|(source, (modelled, rows))| (source, modelled, rows)).collect()
}

fn print_reasons(judged: &[Judged]) {
    let mut reasons: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for row in judged {
        if let Some(why) = row.why_not() {
            *reasons.entry((&row.source, why.to_string())).or_default() += 1;
        }
    }
    for ((source, why), count) in reasons {
        println!("{count:4} {source:16} {why}");
    }
}

#[test]
fn published_rows_are_covered_and_near() {
    let judged: Vec<Judged> = rows().iter().map(judge).collect();
    let lines = summarise(&judged);
    for line in &lines {
        let [mean, median, bias, worst] = [line.mean, line.median, line.bias, line.worst].map(|x| 100.0 * x);
        println!(
            "{:18} {:10} {:5} {mean:7.1}% {median:7.1}% {bias:+7.1}% {worst:7.1}%",
            line.group, line.figure, line.rows
        );
    }
    print_reasons(&judged);
    assert_eq!(covered(&judged), COVERAGE);
    for (source, figure, median, bias, worst) in BOUNDS {
        let line = lines.iter().find(|line| line.group == source && line.figure == figure).unwrap();
        let within = line.median <= median && line.bias.abs() <= bias && line.worst <= worst;
        assert!(within, "{source} {figure}: {line:?}");
    }
    // No source has errors that no bound holds.
    let is_bound = |source: &str, figure: &str| BOUNDS.iter().any(|b| (b.0, b.1) == (source, figure));
    for row in &judged {
        assert!(row.figures.iter().all(|f| is_bound(&row.source, f.name)), "{}: {:?}", row.source, row.figures);
        assert!(row.figures.iter().all(|f| f.error().is_finite()), "{}: {:?}", row.name, row.figures);
    }
}

#[test]
fn a_row_that_is_not_ready_keeps_its_reason() {
    let mut row = rows().swap_remove(0);
    row["ready"]["memory"] = Value::Bool(false);
    assert_eq!(judge(&row).why_not(), Some(&Why::NotReady));
}

/// Megatron's own fusion makes fp32 copies of the logits, Transformer Engine's makes none.
#[test]
fn the_fusion_a_row_names_is_the_one_replayed() {
    let mut row = rows().into_iter().find(|row| row["features"] == "cross-entropy fusion").unwrap();
    let peak = |row: &Value| judge(row).figures.first().map(|figure| figure.predicted.number());
    let in_place = peak(&row).unwrap();
    let mut later = row.clone();
    later["framework"]["version"] = "TE 2.18.0".into();
    assert!(judge(&later).why_not().unwrap().to_string().contains("fp32 gradient of logits"));
    row["notes"] = Value::Null;
    assert_eq!(judge(&row).why_not().unwrap().to_string(), "`--cross-entropy fusion` is no option of megatron");
    row["features"] = "cross-entropy-loss-fusion".into();
    assert!(peak(&row).unwrap() > in_place);
}

/// A row that is judged is refused once a part of it is taken out: of each engine the first that is.
#[test]
fn a_row_with_a_hole_is_refused_with_a_reason() {
    let rows = rows();
    let mut seen = Vec::new();
    for row in &rows {
        let engine = row["framework"]["name"].as_str().unwrap();
        if seen.contains(&engine) || judge(row).why_not().is_some() {
            continue;
        }
        seen.push(engine);
        for part in ["model", "hardware", "layout", "batch", "measured"] {
            let mut holed = row.clone();
            holed[part] = Value::Null;
            assert!(judge(&holed).why_not().is_some(), "{engine} without {part}");
        }
    }
    assert!(seen.len() >= 4, "{seen:?}");
}
