//! What was promised of launches that ran on an H200 as they were printed, against what they held and took
//! (`data/truth/as_printed_h200.jsonl`).

use crate::common::{run_args, scratch};
use recipe::import::megatron_args::shell_words;
use serde_json::Value;

/// What a run may differ by: allocated and reserved bytes, as shares.
const ALLOWED: [(&str, &str, f64); 2] =
    [("allocated", "allocated_peak_bytes", 0.005), ("reserved", "reserved_peak_bytes", 0.03)];

fn promised(row: &Value) -> Value {
    let text = |key: &str| row[key].as_str().unwrap();
    let name = text("name");
    let recipe = match text("recipe") {
        words if words.contains('\n') => scratch(&format!("{name}.toml"), words).display().to_string(),
        built_in => built_in.to_string(),
    };
    let mut words = vec!["fit".to_string(), recipe];
    words.extend(shell_words(text("flags")));
    words.extend(["--on", text("on"), "--json"].map(str::to_string));
    let ran = run_args(&words.iter().map(String::as_str).collect::<Vec<_>>());
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{name}: {e}\n{}", ran.stderr))
}

/// A row says which of its figures are further off; one that no longer is, is to say so no more.
#[test]
fn launches_held_and_took_what_was_promised() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/truth/as_printed_h200.jsonl");
    let mut wrong = Vec::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let fit = promised(&row);
        let misses = row["misses"].as_str().unwrap_or_default();
        let class = &fit["rank_classes"][fit["worst"].as_u64().unwrap() as usize];
        let mut judge = |figure: &str, off: String, is_off: bool| {
            if is_off != misses.contains(figure) {
                wrong.push(format!("{}: {figure} {off}", row["name"]));
            }
        };
        for (figure, key, most) in ALLOWED {
            let Some(measured) = row[figure].as_f64() else { continue };
            let off = measured / class[key].as_f64().unwrap() - 1.0;
            judge(figure, format!("{:+.2}%", 100.0 * off), off.abs() > most);
        }
        // A device that others shared says nothing of time.
        if let Some(took) = row["step_seconds"].as_f64() {
            let [low, high] = ["low", "high"].map(|end| fit["step"]["interval"][end].as_f64().expect("an interval"));
            let is_outside = took < low || took > high;
            judge("step_seconds", format!("{took} of {}", fit["step"]["interval"]), is_outside);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
