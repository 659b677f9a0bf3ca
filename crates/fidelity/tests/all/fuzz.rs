//! Measured rows with hostile numbers: judged or refused, never a panic.

use fidelity::{Part, Pricing, judge, judge_parts};
use proptest::prelude::*;
use serde_json::{Value, json};

fn rows(file: &str) -> Vec<Value> {
    let path = format!("{}/../../data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every scalar of a row's case, as a JSON pointer.
fn pointers(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, v)| pointers(v, format!("{at}/{key}"), out)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| pointers(v, format!("{at}/{i}"), out)),
        _ => out.push(at),
    }
}

fn hostile() -> impl Strategy<Value = Value> {
    let numbers = [0u64, 1, 2, 3, 7, 48, 1 << 20, 1 << 40, u64::MAX];
    prop_oneof![
        4 => prop::sample::select(numbers.to_vec()).prop_map(|n| json!(n)),
        1 => Just(json!(null)),
        1 => Just(json!(-5)),
        1 => Just(json!(1.5)),
        1 => Just(json!("full")),
        1 => Just(json!("M*E-|+/")),
        1 => Just(json!([1, 0])),
    ]
}

fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: if usual.cases == 256 { 300 } else { usual.cases }, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mangled_rows_are_judged_or_refused(
        row in prop::sample::select(rows("megatron_h200.jsonl")),
        edits in prop::collection::vec((any::<prop::sample::Index>(), hostile()), 1..4),
    ) {
        let mut row = row;
        let mut all = Vec::new();
        pointers(&row["case"], "/case".to_string(), &mut all);
        for (index, value) in edits {
            if let Some(slot) = row.pointer_mut(&all[index.index(all.len())]) {
                *slot = value;
            }
        }
        let judged = judge(&row);
        prop_assert_eq!(judged.figures.is_empty(), judged.why_not().is_some());
        prop_assert!(judged.figures.iter().all(|f| f.predicted.number().is_finite()), "{:?}", judged.figures);
    }

    #[test]
    fn mangled_published_rows_are_timed_or_refused(
        row in prop::sample::select(rows("published.jsonl")),
        edits in prop::collection::vec((any::<prop::sample::Index>(), hostile()), 1..4),
    ) {
        let mut row = row;
        let mut all = Vec::new();
        pointers(&row, String::new(), &mut all);
        for (index, value) in edits {
            if let Some(slot) = row.pointer_mut(&all[index.index(all.len())]) {
                *slot = value;
            }
        }
        let judged = judge_parts(&row, &[Part::Time], Pricing::AsRun);
        prop_assert_eq!(judged.figures.is_empty(), judged.why_not().is_some());
        prop_assert!(judged.figures.iter().all(|f| f.predicted.number().is_finite()), "{:?}", judged.figures);
    }
}

/// What is mangled is judged before.
#[test]
fn unmangled_rows_are_judged() {
    assert!(rows("megatron_h200.jsonl").iter().all(|row| judge(row).why_not().is_none()));
    let published = rows("published.jsonl");
    let timed =
        published.iter().filter(|row| judge_parts(row, &[Part::Time], Pricing::AsRun).why_not().is_none()).count();
    assert!(timed * 2 > published.len(), "{timed} of {}", published.len());
}

#[test]
fn rows_of_no_format_say_so() {
    for text in ["{}", "[]", "3", "{\"case\": 5}", "{\"ready\": {\"memory\": true}}"] {
        let row: Value = serde_json::from_str(text).unwrap();
        assert!(judge(&row).why_not().is_some(), "{text}");
    }
}
