//! The OpenAPI file: what is asked stands in it as the table has it, and answers look as it says.

use super::samples::{Sample, others, samples};
use super::shape::{Seen, breaks};
use crate::common::{run, run_args};
use serde_json::{Map, Value, json};
use serve::questions::QUESTIONS;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document() -> Value {
    serde_json::from_str(&run("serve --openapi").stdout).expect("JSON")
}

fn is_updating() -> bool {
    std::env::var_os("UPDATE_GOLDENS").is_some()
}

fn answered(sample: &Sample) -> Value {
    let ran = match sample.question {
        "diff" => run_args(&["diff", "--tp=2 -- nam56r", "--tp=2 --mbs=2 -- nam56r", "--on", "8xH200", "--json"]),
        _ => run(&format!("{} --json", sample.words)),
    };
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{}: {error}: {}", sample.words, ran.stderr))
}

#[test]
fn the_file_is_what_the_program_prints() {
    let (path, printed) = (workspace().join("docs/openapi.json"), run("serve --openapi").stdout);
    if is_updating() {
        std::fs::write(&path, &printed).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), printed, "UPDATE_GOLDENS=1 writes it");
}

/// Answers that schemas are made of, and others: `UPDATE_GOLDENS=1` looks at the first again.
#[test]
fn answers_look_as_it_says() {
    let path = workspace().join("crates/serve/src/answers.json");
    let all: Vec<(Sample, Value)> = samples()
        .into_iter()
        .map(|sample| {
            let value = answered(&sample);
            (sample, value)
        })
        .collect();
    if is_updating() {
        let mut schemas = Map::new();
        for question in QUESTIONS {
            let mut seen = Seen::default();
            all.iter()
                .filter(|(sample, _)| sample.question == question.name)
                .for_each(|(_, value)| seen.look(value, 0));
            schemas.insert(question.name.to_string(), seen.schema(0));
        }
        std::fs::write(&path, format!("{:#}\n", Value::Object(schemas))).unwrap();
        return;
    }
    let schemas = document()["components"]["schemas"].clone();
    let more = others().into_iter().map(|sample| {
        let value = answered(&sample);
        (sample, value)
    });
    let mut broken = Vec::new();
    for (sample, value) in all.into_iter().chain(more) {
        breaks(
            &value,
            &json!({ "$ref": format!("#/components/schemas/{}", sample.question) }),
            &schemas,
            sample.words,
            &mut broken,
        );
        breaks(
            &sample.body,
            &json!({ "$ref": format!("#/components/schemas/{}.asked", sample.question) }),
            &schemas,
            sample.words,
            &mut broken,
        );
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn refusals_look_as_it_says() {
    let schemas = document()["components"]["schemas"].clone();
    for line in
        ["check nam56r --tp 3 --world 8", "fit nam56r --on 8xH201", "params no-such", "fit", "splits nam56r --tp x"]
    {
        let printed = run(&format!("{line} --json")).stdout;
        let value: Value = serde_json::from_str(&printed).unwrap();
        let mut broken = Vec::new();
        breaks(&value, &json!({ "$ref": "#/components/schemas/refusal" }), &schemas, line, &mut broken);
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }
}

#[test]
fn every_question_has_a_sample_and_words_for_its_keys() {
    let document = document();
    let kept = ["receipts", "receipt", "compare", "drift", "import"];
    for question in QUESTIONS {
        let name = question.name;
        assert!(kept.contains(&name) || samples().iter().any(|sample| sample.question == name), "{name}");
        assert!(
            document["paths"][format!("/api/v1/{name}")]["post"]["summary"].as_str().is_some_and(|s| !s.is_empty()),
            "{name}"
        );
        let asked = &document["components"]["schemas"][format!("{name}.asked")]["properties"];
        for (key, schema) in asked.as_object().unwrap() {
            let is_said = schema["description"].as_str().is_some_and(|words| !words.is_empty());
            assert!(is_said || schema.get("$ref").is_some(), "{name}: {key} is no flag of the command");
        }
    }
}
