//! Step times against what others measured and published (`data/truth/published.jsonl`). Held here
//! are the bounds reached; `docs/time.md` says which sources the curves were set on.

use fidelity::{Coverage, Judged, Part, coverage, is_of_the_time_target, judge_parts, summarise, sweeps};
use serde_json::Value;

fn rows() -> Vec<Value> {
    let path = format!("{}/../../data/truth/published.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter(|row| row["ready"]["throughput"] == true).collect()
}

fn judge(row: &Value) -> Judged {
    judge_parts(row, &[Part::Time])
}

fn print(judged: &[Judged]) {
    for line in summarise(judged) {
        let [mean, median, bias, worst] = [line.mean, line.median, line.bias, line.worst].map(|x| 100.0 * x);
        println!(
            "{:70} {:5} mean {mean:5.1}% median {median:5.1}% {bias:+6.1}% worst {worst:5.1}%",
            line.group, line.rows
        );
    }
    for sweep in sweeps(judged) {
        println!("{:95} {:4} {:.3} {:.3}", sweep.name, sweep.rows, sweep.step_time, sweep.tokens_per_second);
    }
}

#[test]
fn steps_take_what_others_measured() {
    let rows = rows();
    assert_eq!(rows.len(), 1026);
    let judged: Vec<Judged> = rows.iter().map(judge).collect();
    print(&judged);
    let target: Vec<Judged> = judged.iter().filter(|row| is_of_the_time_target(row)).cloned().collect();
    let Coverage { ready, modelled } = coverage(&target, Part::Time);
    println!("{modelled} of {ready} target rows modelled");
    assert!(coverage(&target, Part::Time).share() >= 0.95);
    assert!(coverage(&judged, Part::Time).share() >= 0.95);
    let line = summarise(&target).into_iter().find(|line| line.figure == "step_time").unwrap();
    assert!(line.median <= 0.15, "median {}", line.median);
    assert!(line.mean <= 0.20, "mean {}", line.mean);
    for sweep in sweeps(&judged) {
        assert!(sweep.step_time >= 0.9, "{}: {}", sweep.name, sweep.step_time);
    }
}

/// Whatever is taken out of a row, judging it comes to a reason or a figure.
#[test]
fn a_row_with_a_hole_is_refused_with_a_reason() {
    let mut seen = Vec::new();
    for row in &rows() {
        let engine = row["framework"]["name"].as_str().unwrap();
        if seen.contains(&engine) {
            continue;
        }
        seen.push(engine);
        for part in ["model", "hardware", "layout", "batch", "measured", "framework"] {
            let mut holed = row.clone();
            holed[part] = Value::Null;
            assert!(judge(&holed).why_not().is_some(), "{engine} without {part}");
        }
    }
}

/// A layout that does not fill the devices it is said to have run on is no case.
#[test]
fn a_layout_that_contradicts_its_devices_is_refused() {
    let mut row = rows().into_iter().find(|row| row["layout"]["dp"] == 8).unwrap();
    row["layout"]["dp"] = 16.into();
    assert!(judge(&row).why_not().unwrap().starts_with("the layout is refused"));
}
