//! docs/models.md: every model type that is imported, with the engines that run it and the one that plans it on eight H200,
//! and every other that transformers trains causally, with the reason. The table is made here from `data/truth/hf_types.jsonl`; `UPDATE_GOLDENS=1` renews it.

use crate::common::{run_args, scratch};
use recipe::import::hf::{self, Asked};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Engines that price a plan, and how eight ranks share out state there.
const ENGINES: [(&str, &str); 5] =
    [("megatron", "1"), ("fsdp2", "3"), ("deepspeed", "3"), ("torchtitan", "3"), ("nanotron", "1")];

/// Models that two engines at least must run.
const TWICE: [&str; 7] = ["jamba", "falcon_h1", "gpt_oss", "qwen3_next", "olmoe", "granitemoehybrid", "bamba"];

/// How a model of its class's own size is planned, the cheapest search first: what is left open is recompute and
/// where optimizer state lives, then the degrees of a stage, then everything.
const SEARCHES: [(&str, &str); 5] = [
    ("fsdp2", "--tp 1 --cp 1 --pp 1 --zero 3 --mbs 1 --gbs 8"),
    ("deepspeed", "--tp 1 --cp 1 --pp 1 --zero 3 --mbs 1 --gbs 8"),
    ("megatron", "--cp 1 --pp 1 --mbs 1 --gbs 16"),
    ("fsdp2", ""),
    ("megatron", ""),
];

fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The config of each type, eight layers deep, and how transformers calls its class.
fn configs() -> BTreeMap<String, (Value, String)> {
    let text = std::fs::read_to_string(project().join("data/truth/hf_types.jsonl")).expect("rows");
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut row: Value = serde_json::from_str(line).expect("a row");
        let name = row["model_type"].as_str().expect("a type").to_string();
        let class = row["class"].as_str().unwrap_or_default().to_string();
        let mut config = row["config"].take();
        if config.is_object() {
            config["model_type"] = name.clone().into();
            mend(&mut config);
            found.insert(name, (config, class));
        }
    }
    found
}

/// The class default of `glm4_moe` has heads of 42, half of which turn: no model can run it.
fn mend(config: &mut Value) {
    if config["model_type"] == "glm4_moe" {
        config["head_dim"] = 128.into();
    }
}

/// The first engine that plans a model with its class's own defaults on eight H200; where none does, the last that
/// prices it does not fit it, at so many parameters.
fn planned(name: &str) -> Result<&'static str, String> {
    let mut config = serde_json::json!({ "model_type": name });
    mend(&mut config);
    let imported = hf::import(&config.to_string(), &Asked::named(name));
    let recipe = imported.unwrap_or_else(|findings| panic!("{name}: {findings:#?}")).recipe;
    let file = scratch(&format!("planned-{name}.toml"), &recipe.to_toml());
    let mut misfits = Vec::new();
    for (engine, pins) in SEARCHES {
        let words = ["plan", file.to_str().expect("a path"), "--on", "8xH200", "--engine", engine];
        let ran = run_args(&words.into_iter().chain(pins.split_whitespace()).collect::<Vec<_>>());
        match ran.code {
            0 => return Ok(engine),
            // No layout fits.
            3 if pins.is_empty() => misfits.push(engine),
            code => assert!([1, 3].contains(&code), "{name} on {engine}: {}", ran.stderr),
        }
    }
    assert!(!misfits.is_empty(), "{name} has a price nowhere");
    let billions = recipe.counts().all.total as f64 / 1e9;
    Err(format!("{billions:.0} B parameters: no layout of {} fits eight H200", misfits.join(" or ")))
}

/// What an engine makes of a recipe.
enum Cell {
    /// It runs it: `runs` where a start of it is on record, `yes` where none is, or `own` where it wraps a model that the
    /// user brings.
    Runs(&'static str),
    /// It is priced, and `launch` cannot say it.
    Priced(String),
    Refused(String),
}

/// The first error, the exit status and what was printed.
fn asked(command: &str, file: &str, engine: &str, zero: &str, more: &[&str]) -> (Option<String>, i32, String) {
    let job = [command, file, "--on", "8xH200", "--engine", engine, "--dp", "8", "--zero", zero, "--mbs", "1"];
    let rest = ["--microbatches", "1", "--seq", "1024"];
    let ran = run_args(&[&job[..], &rest[..], more].concat());
    let errors = ran.stderr.lines().filter_map(|line| line.strip_prefix("error: "));
    // What does not fit is the model's size, not its kind.
    let error = errors.map(str::trim).find(|error| !error.ends_with("[launch/memory]"));
    (error.map(without_layers), ran.code, ran.stdout)
}

/// A reason without the layers it names, which are those of this size.
fn without_layers(why: &str) -> String {
    match why.split_once(", layers ") {
        Some((before, rest)) => {
            format!("{before}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit() || ", ".contains(c)))
        }
        None => why.to_string(),
    }
}

/// Types and engines whose launch took two steps (`tools/engines/check_types.py`).
fn started() -> BTreeSet<(String, String)> {
    let text = std::fs::read_to_string(project().join("data/truth/hf_started.jsonl")).expect("rows");
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a row"));
    let word = |row: &Value, key: &str| row[key].as_str().expect("a word").to_string();
    rows.filter(|row| row["losses"].is_array()).map(|row| (word(&row, "model_type"), word(&row, "engine"))).collect()
}

fn runs(file: &str, engine: &str, zero: &str, is_ours: bool, is_started: bool) -> Cell {
    let (refused, code, _) = asked("fit", file, engine, zero, &["--levers", "no"]);
    if let Some(why) = refused {
        return Cell::Refused(why);
    }
    assert!(code >= 0, "{file} on {engine}");
    if engine == "deepspeed" || (engine == "fsdp2" && !is_ours) {
        return Cell::Runs("own");
    }
    let (refused, _, said) = asked("launch", file, engine, zero, &["--allow-seams", "--override-memory", "--json"]);
    if let Some(why) = refused {
        return Cell::Priced(why);
    }
    let launch: Value = serde_json::from_str(&said).expect("a launch");
    let brings = launch["seams"].as_array().expect("seams").iter().any(|seam| seam["filled_by"].is_null());
    Cell::Runs(match (brings, is_started) {
        (true, _) => "own",
        (false, true) => "runs",
        (false, false) => "yes",
    })
}

struct Answer {
    name: String,
    class: String,
    pattern: String,
    by_engine: Vec<Cell>,
    planned: Result<&'static str, String>,
    lost: usize,
}

fn answers() -> Vec<Answer> {
    let known: Vec<&str> = hf::model_types().collect();
    let asked: Vec<(String, (Value, String))> =
        configs().into_iter().filter(|(name, _)| known.contains(&name.as_str())).collect();
    let started = started();
    let answer = |name: &str, config: &Value, class: &str| {
        let imported = hf::import(&config.to_string(), &Asked { sequence: Some(1024), ..Asked::named(name) });
        let recipe = imported.unwrap_or_else(|findings| panic!("{name}: {findings:#?}")).recipe;
        let file = scratch(&format!("model-{name}.toml"), &recipe.to_toml());
        let is_ours = ledger::fsdp2::missing(&recipe).is_empty();
        let path = file.to_str().expect("a path");
        let is_started = |engine: &str| started.contains(&(name.to_string(), engine.to_string()));
        let by_engine = ENGINES.map(|(engine, zero)| runs(path, engine, zero, is_ours, is_started(engine))).into();
        Answer {
            name: name.to_string(),
            class: class.to_string(),
            pattern: recipe.pattern.to_string(),
            by_engine,
            planned: planned(name),
            lost: recipe.not_carried.len(),
        }
    };
    let half = asked.len().div_ceil(2);
    std::thread::scope(|scope| {
        let parts = asked.chunks(half).map(|part| {
            scope.spawn(move || {
                part.iter().map(|(name, (config, class))| answer(name, config, class)).collect::<Vec<_>>()
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().flat_map(|part| part.join().expect("answers")).collect()
    })
}

/// The generated part of the page.
fn table(answers: &[Answer]) -> String {
    let mut reasons: Vec<&String> = Vec::new();
    let mut out = String::new();
    let names = ENGINES.map(|(engine, _)| engine).join(" | ");
    let _ = writeln!(out, "| model type | class | pattern | {names} | planned by | keys lost |");
    let _ = writeln!(out, "|---|---|---|{}---|---|", "---|".repeat(ENGINES.len()));
    for answer in answers {
        let mut number = |why| {
            let at = reasons.iter().position(|known| *known == why).unwrap_or_else(|| {
                reasons.push(why);
                reasons.len() - 1
            });
            at + 1
        };
        let cells = answer.by_engine.iter().map(|cell| match cell {
            Cell::Runs(how) => how.to_string(),
            Cell::Priced(why) => format!("priced ({})", number(why)),
            Cell::Refused(why) => format!("({})", number(why)),
        });
        let mut cells = cells.collect::<Vec<_>>();
        cells.push(match &answer.planned {
            Ok(engine) => engine.to_string(),
            Err(why) => format!("({})", number(why)),
        });
        let cells = cells.join(" | ");
        let Answer { name, class, pattern, lost, .. } = answer;
        let _ = writeln!(out, "| `{name}` | {class} | `{pattern}` | {cells} | {lost} |");
    }
    let _ = writeln!(out, "\nWhy not:\n");
    for (at, why) in reasons.iter().enumerate() {
        let _ = writeln!(out, "{}. {why}", at + 1);
    }
    let _ = writeln!(out, "\n## What is not imported\n");
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    hf::refused_types().for_each(|(name, why)| by_reason.entry(why).or_default().push(name));
    let _ = writeln!(out, "| why | model types |\n|---|---|");
    for (why, names) in by_reason {
        let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let _ = writeln!(out, "| {why} | {names} |");
    }
    out
}

#[test]
fn every_imported_model_is_run_by_some_engine_and_the_page_says_which() {
    let answers = answers();
    assert!(answers.len() >= 60, "{} models", answers.len());
    for answer in &answers {
        let count = answer.by_engine.iter().filter(|cell| matches!(cell, Cell::Runs(_))).count();
        let least = if TWICE.contains(&answer.name.as_str()) { 2 } else { 1 };
        assert!(count >= least, "{} is run by {count} engines", answer.name);
    }
    let path = project().join("docs/models.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (head, rest) = page.split_once("<!-- table -->\n").expect("a place for the table");
    let made = table(&answers);
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::write(&path, format!("{head}<!-- table -->\n{made}")).expect("the page is written");
    } else {
        assert_eq!(rest, made, "UPDATE_GOLDENS=1 renews docs/models.md");
    }
}
