//! Every kind of row with each of its fields put to each wrong type: named, or judged, never a panic.

use fidelity::{Part, Pricing, judge_parts, mistyped};
use serde_json::{Value, json};

/// The first row of a file, or the first that `is_it`.
fn row(file: &str, is_it: fn(&Value) -> bool) -> Value {
    let path = format!("{}/../../data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.find(is_it).unwrap_or_else(|| panic!("{file} has such a row"))
}

/// Every field, tables too, as JSON pointers.
fn places(value: &Value, at: String, out: &mut Vec<String>) {
    if let Value::Object(fields) = value {
        fields.iter().for_each(|(key, value)| places(value, format!("{at}/{}", key.replace('/', "~1")), out));
    }
    if !at.is_empty() {
        out.push(at);
    }
}

#[test]
fn a_field_of_any_type_is_judged_or_named() {
    let any = |_: &Value| true;
    let rows = [
        row("megatron_h200.jsonl", any),
        row("megatron_h200.jsonl", |row| row["case"]["model"]["mla"].is_object()),
        row("steps_h200.jsonl", any),
        row("emitted_h200.jsonl", |row| row["out_of_memory"].is_null()),
        row("published.jsonl", |row| row["ready"]["memory"] == true && row["framework"]["name"] == "nanotron"),
        row("published.jsonl", |row| row["ready"]["throughput"] == true && row["model"]["experts"].is_u64()),
    ];
    let wrong = [
        json!(null),
        json!(7),
        json!("seven"),
        json!([7]),
        json!({ "seven": 7 }),
        json!(-7),
        json!(u64::MAX),
        json!(1e300),
    ];
    let (mut named, mut judged) = (0, 0);
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(mistyped(row), [], "row {at} as it stands");
        // A replay of each would take minutes; what is not in the case decides nothing but figures.
        let parts: &[Part] = if at == 2 || at > 3 { &[Part::Time] } else { &[Part::Memory] };
        let mut all = Vec::new();
        places(row, String::new(), &mut all);
        for (place, value) in all.iter().flat_map(|place| wrong.iter().map(move |value| (place, value))) {
            let mut row = row.clone();
            *row.pointer_mut(place).unwrap() = value.clone();
            // Sizes of seven and what is left out are other jobs, and slow ones to replay.
            let is_other_job = (value.is_null() || value == &json!(7)) && parts == [Part::Memory];
            match mistyped(&row).first() {
                Some(found) => {
                    named += 1;
                    assert!(found.why.contains("should be"), "{found:?}");
                    assert!(place.replace('/', ".").contains(&found.field), "{place}: {found:?}");
                }
                None if is_other_job => {}
                None => judged += 1,
            }
            if !is_other_job {
                let result = judge_parts(&row, parts, Pricing::AsRun);
                assert!(result.figures.iter().all(|f| f.predicted.number().is_finite()), "{place} = {value}");
            }
        }
    }
    assert!(named > 1000 && judged > 300, "{named} named, {judged} judged");
}

#[test]
fn rows_that_are_no_objects_say_what_they_are() {
    for (row, what) in
        [(json!(3), "the number 3"), (json!([]), "a list"), (json!(null), "null"), (json!("x"), "a text")]
    {
        assert_eq!(mistyped(&row)[0].why, format!("a row is an object, and this is {what}"));
    }
    let model = json!({ "ready": { "throughput": true }, "model": 5 });
    assert_eq!(mistyped(&model)[0].why, "`model` is the number 5, and should be an object");
    assert_eq!(mistyped(&model)[0].field, "model");
}
