//! The OpenAPI file: what is asked stands in it as the table has it, and answers look as it says.

use super::samples::{Sample, others, samples};
use super::shape::{Seen, breaks};
use crate::common::{folder, run, run_args};
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
        "diff" => run_args(&["diff", "--on=8xH200", "--json", "--", "--tp=2 -- nam56r", "--tp=2 --mbs=2 -- nam56r"]),
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

/// Answers about a store of two runs, and about a config.
fn kept() -> Vec<(&'static str, Value)> {
    let store = folder("served-kept").display().to_string();
    let logs = workspace().join("crates/evidence/tests/samples");
    let asked = |words: &str| -> Value {
        let ran = run(&format!("{words} --json"));
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{words}: {error}: {}", ran.stderr))
    };
    let record = |log: &str| {
        let log = logs.join(log).display().to_string();
        let job = "--recipe llama3-8b --tp 2 --on 8xH200 --engine megatron";
        let answer = asked(&format!("receipt record --log {log} {job} --store {store}"));
        answer["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_string()
    };
    let (one, two) = (record("megatron-lm.log"), record("megatron-lm-0.5.log"));
    let config = workspace().join("data/truth/configs");
    let config = std::fs::read_dir(config).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
    vec![
        ("receipts", asked(&format!("receipt list --store {store}"))),
        ("receipt", asked(&format!("receipt show {one} --store {store}"))),
        ("receipt", asked(&format!("receipt show {two} --store {store}"))),
        ("compare", asked(&format!("receipt compare {one} {two} --store {store}"))),
        ("drift", asked(&format!("receipt drift {one} {two} --store {store}"))),
        ("import", asked(&format!("import {}", config.display()))),
    ]
}

/// `UPDATE_GOLDENS=1` looks at the answers again.
#[test]
fn answers_look_as_it_says() {
    let path = workspace().join("crates/serve/src/answers.json");
    let mut all: Vec<(&str, Value)> = samples().iter().map(|sample| (sample.question, answered(sample))).collect();
    all.extend(kept());
    all.extend(others().iter().map(|sample| (sample.question, answered(sample))));
    if is_updating() {
        let mut schemas = Map::new();
        for question in QUESTIONS {
            let mut seen = Seen::default();
            all.iter().filter(|(name, _)| *name == question.name).for_each(|(_, value)| seen.look(value, 0));
            let mut schema = seen.schema(0);
            // A no has these, whatever was asked.
            if let Some(required) = schema["required"].as_array_mut() {
                required.retain(|key| key != "findings" && key != "error");
            }
            schemas.insert(question.name.to_string(), schema);
        }
        std::fs::write(&path, format!("{:#}\n", Value::Object(schemas))).unwrap();
        return;
    }
    let schemas = document()["components"]["schemas"].clone();
    let named = |name: String| json!({ "$ref": format!("#/components/schemas/{name}") });
    let mut broken = Vec::new();
    for (question, value) in &all {
        breaks(value, &named(question.to_string()), &schemas, question, &mut broken);
    }
    for Sample { question, body, words } in samples().iter().chain(&others()) {
        breaks(body, &named(format!("{question}.asked")), &schemas, words, &mut broken);
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
