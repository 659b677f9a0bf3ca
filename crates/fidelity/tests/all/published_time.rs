//! Step times against what others measured and published (`data/truth/published.jsonl`). Held here
//! are the bounds reached. No source of these rows is blind: `docs/time.md` says what was set or
//! changed after looking at which errors.

use fidelity::{Coverage, Judged, Part, Pricing, Why, coverage, is_of_the_time_target, judge_parts, summarise, sweeps};
use serde_json::Value;

fn rows() -> Vec<Value> {
    let path = format!("{}/../../data/truth/published.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter(|row| row["ready"]["throughput"] == true).collect()
}

fn judge(row: &Value) -> Judged {
    judge_parts(row, &[Part::Time], Pricing::AsRun)
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

/// Sources from which no figure was set. They are not held out: their errors were seen, and changes
/// made for 8-bit products and hidden collectives moved them too (`docs/time.md`).
const LEAST_TOUCHED: [&str; 7] =
    ["dgxc-v25.03", "nemo-24.05", "nemo-24.07", "mlm-llama-example", "korthikanti", "automodel", "fms-fsdp"];

/// Median and mean of the absolute errors, and the median with its sign.
fn errors(rows: &[Judged]) -> [f64; 3] {
    let lines = summarise(rows);
    let line = lines.iter().find(|line| line.figure == "step_time").unwrap();
    [line.median, line.mean, line.bias]
}

/// What errors of a group may come to: the group, its rows, median and mean of the sizes of errors, and
/// the median with its sign.
type Bounds = [(&'static str, usize, [f64; 3]); 3];

fn hold(pricing: Pricing, bounds: Bounds) {
    let rows = rows();
    assert_eq!(rows.len(), 1026);
    let judged: Vec<Judged> = rows.iter().map(|row| judge_parts(row, &[Part::Time], pricing)).collect();
    print(&judged);
    assert!(coverage(&judged, Part::Time).share() >= 0.98);
    let target: Vec<Judged> = judged.iter().filter(|row| is_of_the_time_target(row)).cloned().collect();
    let (least_touched, others): (Vec<Judged>, Vec<Judged>) =
        target.iter().cloned().partition(|row| LEAST_TOUCHED.contains(&row.source.as_str()));
    for ((name, ready_rows, most), rows) in bounds.into_iter().zip([&target, &least_touched, &others]) {
        let Coverage { ready, modelled } = coverage(rows, Part::Time);
        let reached = errors(rows);
        println!("{pricing} {name}: {modelled} of {ready} rows, median, mean and bias {reached:.3?}");
        assert_eq!(ready, ready_rows, "{name}");
        assert!(modelled * 100 >= 97 * ready, "{name}: {modelled} of {ready}");
        assert!(reached.iter().zip(most).all(|(reached, most)| reached.abs() <= most), "{name}: {reached:?}");
    }
}

/// Rows that were least touched were 3.0% off in the median until gradients of several chunks a stage were hidden under the turns of
/// the others, which blind rows with few microbatches had shown (docs/time.md): what was too long there had made up for what is too
/// short elsewhere.
#[test]
fn steps_take_what_others_measured() {
    let bounds = [
        ("target", 254, [0.045, 0.07, 0.03]),
        ("least touched", 38, [0.043, 0.053, 0.02]),
        ("others", 216, [0.08, 0.11, 0.04]),
    ];
    hold(Pricing::AsRun, bounds);
}

/// With what `plan` would have asked of the engine of that day, which is not what these runs asked: no graphs, user
/// buffers or dispatch kernels that nobody asked for. The medians are within three points.
#[test]
fn steps_as_planned_are_further_off_and_not_by_more_than_this() {
    let bounds = [
        ("target", 254, [0.08, 0.11, 0.03]),
        ("least touched", 38, [0.1, 0.1, 0.09]),
        ("others", 216, [0.08, 0.11, 0.04]),
    ];
    hold(Pricing::AsPlanned, bounds);
    let medians = [Pricing::AsRun, Pricing::AsPlanned].map(|pricing| {
        let judged: Vec<Judged> = rows().iter().map(|row| judge_parts(row, &[Part::Time], pricing)).collect();
        errors(&judged.into_iter().filter(is_of_the_time_target).collect::<Vec<_>>())[0]
    });
    assert!((medians[0] - medians[1]).abs() <= 0.03, "{medians:?}");
}

/// Only formats are the row's when a step is priced as planned, and the dispatcher, which is the site's: other features
/// and notes do not matter.
#[test]
fn what_a_row_says_it_ran_does_not_move_a_planned_step() {
    let seconds = |row: &Value, pricing| {
        let judged = judge_parts(row, &[Part::Time], pricing);
        judged.figure("step_time").map(|figure| figure.predicted.number())
    };
    let mut moved = 0;
    let names_a_dispatcher = |row: &&Value| {
        let said = row["features"].as_str().unwrap_or_default().to_lowercase();
        ["deepep", "hybridep", "dispatcher"].iter().any(|word| said.contains(word))
    };
    for row in rows().iter().filter(|row| row["features"].is_string() && !names_a_dispatcher(row)) {
        let mut silent = row.clone();
        silent["features"] = Value::Null;
        assert_eq!(seconds(row, Pricing::AsPlanned), seconds(&silent, Pricing::AsPlanned), "{}", row["id"]);
        moved += usize::from(seconds(row, Pricing::AsRun) != seconds(&silent, Pricing::AsRun));
    }
    assert!(moved >= 5, "{moved}");
}

/// Within a sweep a better layout is called better, among rows that say what decides their step. Which do not was
/// found by looking for why rows of one layout lie up to fourteen times apart; their errors are reported with all others.
#[test]
fn sweeps_are_ordered() {
    let judged: Vec<Judged> = rows().iter().map(judge).collect();
    let bounds = [("simumax", 0.95, 0.95), ("nanotron", 0.95, 0.95), ("bigscience", 0.55, 0.50)];
    let found = sweeps(&judged);
    assert_eq!(found.len(), 6, "{found:#?}");
    for sweep in found {
        println!("{:95} {:4} {:.3} {:.3}", sweep.name, sweep.rows, sweep.step_time, sweep.tokens_per_second);
        let (_, time, rate) = bounds.into_iter().find(|(source, _, _)| sweep.name.starts_with(source)).unwrap();
        assert!(sweep.step_time >= time && sweep.tokens_per_second >= rate, "{sweep:?}");
    }
}

/// Rows that nobody had seen when they were first priced; `docs/time.md` says what they came to then.
#[test]
fn rows_that_nobody_had_seen_stay_as_near() {
    let path = format!("{}/../../data/truth/published_blind.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let judged: Vec<Judged> = rows.filter(|row| row["ready"]["throughput"] == true).map(|row| judge(&row)).collect();
    assert_eq!(judged.len(), 138);
    assert!(coverage(&judged, Part::Time).share() >= 0.97);
    let (dense, others): (Vec<Judged>, Vec<Judged>) = judged.into_iter().partition(|row| row.kind == "dense");
    for (rows, most) in [(dense, [0.035, 0.05]), (others, [0.135, 0.145])] {
        let [median, mean, _] = errors(&rows);
        assert!(median <= most[0] && mean <= most[1], "{median} {mean}");
    }
}

/// A row that is judged is refused once a part of it is taken out: of each engine the first that is.
#[test]
fn a_row_with_a_hole_is_refused_with_a_reason() {
    let mut seen = Vec::new();
    let rows = rows();
    for row in &rows {
        let engine = row["framework"]["name"].as_str().unwrap();
        if seen.contains(&engine) || judge(row).why_not().is_some() {
            continue;
        }
        seen.push(engine);
        for part in ["model", "hardware", "layout", "batch", "measured", "framework"] {
            let mut holed = row.clone();
            holed[part] = Value::Null;
            assert!(judge(&holed).why_not().is_some(), "{engine} without {part}");
        }
    }
    assert!(seen.len() >= 5, "{seen:?}");
}

/// A layout that does not fill the devices it is said to have run on is no case.
#[test]
fn a_layout_that_contradicts_its_devices_is_refused() {
    let is_timed = |row: &Value| row["layout"]["dp"] == 8 && judge(row).why_not().is_none();
    let mut row = rows().into_iter().find(is_timed).unwrap();
    row["layout"]["dp"] = 16.into();
    assert!(matches!(judge(&row).why_not(), Some(Why::Layout(_))));
}
