//! Replays against what others measured and published (`data/truth/published.jsonl`). The
//! table is what counts, and it is printed; asserted are coverage and that nothing is absurd.

use fidelity::{Judged, Part, judge_parts, summarise};
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
    judge_parts(row, &[Part::Memory])
}

/// How many rows of each source are modelled.
fn print_coverage(judged: &[Judged]) {
    let mut sources: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in judged {
        let (modelled, rows) = sources.entry(&row.source).or_default();
        *modelled += usize::from(row.why_not().is_none());
        *rows += 1;
    }
    for (source, (modelled, rows)) in sources {
        println!("{source:16} {modelled:4} of {rows:4} rows modelled");
    }
}

fn print_reasons(judged: &[Judged]) {
    let mut reasons: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for row in judged {
        if let Some(why) = row.why_not() {
            *reasons.entry((&row.source, why)).or_default() += 1;
        }
    }
    for ((source, why), count) in reasons {
        println!("{count:4} {source:16} {why}");
    }
}

#[test]
fn published_rows_are_covered_and_none_is_absurd() {
    let judged: Vec<Judged> = rows().iter().map(judge).collect();
    let modelled = judged.iter().filter(|row| row.why_not().is_none()).count();
    println!("{modelled} of {ROWS} rows modelled");
    println!("{:18} {:10} {:>5} {:>8} {:>8} {:>8}", "group", "figure", "rows", "mean", "median", "worst");
    let lines = summarise(&judged);
    for line in &lines {
        let [mean, median, worst] = [line.mean, line.median, line.worst].map(|x| 100.0 * x);
        println!("{:18} {:10} {:5} {mean:7.1}% {median:7.1}% {worst:7.1}%", line.group, line.figure, line.rows);
    }
    print_coverage(&judged);
    print_reasons(&judged);
    assert!(modelled * 100 >= 80 * ROWS, "{modelled} of {ROWS} rows are modelled");
    for line in &lines {
        assert!(line.median <= 0.20, "{} {}: median {}", line.group, line.figure, line.median);
    }
    for row in &judged {
        assert!(
            row.figures.iter().all(|f| f.predicted.number() > 0.0 && f.error() < 2.0),
            "{}: {:?}",
            row.name,
            row.figures
        );
    }
}

#[test]
fn a_row_that_is_not_ready_keeps_its_reason() {
    let mut row = rows().swap_remove(0);
    row["ready"]["memory"] = Value::Bool(false);
    assert_eq!(judge(&row).why_not(), Some("the row is not complete enough to score"));
}

/// Megatron's own fusion makes fp32 copies of the logits, Transformer Engine's makes none.
#[test]
fn the_fusion_a_row_names_is_the_one_replayed() {
    let mut row = rows().into_iter().find(|row| row["features"] == "cross-entropy fusion").unwrap();
    let peak = |row: &Value| judge(row).figures.first().map(|figure| figure.predicted.number());
    let in_place = peak(&row).unwrap();
    let mut later = row.clone();
    later["framework"]["version"] = "TE 2.18.0".into();
    assert!(judge(&later).why_not().unwrap().contains("fp32 gradient of logits"));
    row["notes"] = Value::Null;
    assert_eq!(judge(&row).why_not(), Some("option `cross-entropy fusion` is not known"));
    row["features"] = "cross-entropy-loss-fusion".into();
    assert!(peak(&row).unwrap() > in_place);
}

/// Whatever is taken out of a row, judging it comes to a reason or a figure.
#[test]
fn a_row_with_a_hole_is_refused_with_a_reason() {
    let rows = rows();
    let mut seen = Vec::new();
    for row in &rows {
        let engine = row["framework"]["name"].as_str().unwrap();
        if seen.contains(&engine) {
            continue;
        }
        seen.push(engine);
        for part in ["model", "hardware", "layout", "batch", "measured"] {
            let mut holed = row.clone();
            holed[part] = Value::Null;
            assert!(judge(&holed).why_not().is_some(), "{engine} without {part}");
        }
    }
}
