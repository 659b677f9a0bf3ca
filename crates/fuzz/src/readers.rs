//! The readers, each with what it promises.

use crate::Reader;
use crate::files::{Spoilt, text_files};
use crate::request::{request, seeds as request_seeds};
use case::{Asked, Case, Options, Terms};
use diag::Finding;
use evidence::Evidence;
use evidence::snapshot::Snapshot;
use fleet::Ramp;
use fleet::words::{FleetText, Prices};
use hardware::{Cluster, Device, Profile};
use launch::Policy;
use launch::preflight::parse;
use layout::Engine;
use layout::Recompute;
use recipe::import::{hf, megatron_args};
use recipe::{Pattern, Recipe, builtin, megatron};
use runtime::rehearse::Inject;
use runtime::shrink::Dims;
use serde_json::Value;
use std::sync::OnceLock;

/// Every reader there is.
pub const READERS: &[Reader] = &[
    Reader { name: "recipe", run: recipe_toml, seeds: recipes },
    Reader { name: "config", run: config, seeds: configs },
    Reader { name: "arguments", run: arguments, seeds: Vec::new },
    Reader {
        name: "pattern",
        run: pattern,
        seeds: || lines(&["AEMEAEMEAEMR", "(AF)x32", "M*M*|ME/D", "M-M*-/*-/*-", "[A+E]x4"]),
    },
    Reader { name: "device", run: device, seeds: || text_files("data/hardware", "toml") },
    Reader { name: "profile", run: profile, seeds: || text_files("data/hardware/curves", "toml") },
    Reader {
        name: "cluster",
        run: cluster,
        seeds: || {
            lines(&[
                "8xH200",
                "64x8xH200",
                "64xH100@roce400",
                "72xGB200",
                "16xTPUv5e",
                "?xH100",
                "8..512xH200",
                "H100=2.5,A100=1.2",
                "32:32:50B",
                "15T",
            ])
        },
    },
    Reader { name: "policy", run: policy, seeds: || text_files("docs", "toml") },
    Reader { name: "case", run: case_json, seeds: cases },
    Reader { name: "receipt", run: receipt, seeds: receipts },
    Reader {
        name: "words",
        run: words,
        seeds: || {
            lines(&[
                "nam56r\n--tp\n2\n--sp\n--recompute\nselective:core_attn+moe_act",
                "--moe-token-dispatcher-type\nalltoall\n--overlap-grad-reduce",
                "heads=4,kv_heads=2,hidden=64",
                "die:rank=1,step=2",
            ])
        },
    },
    Reader { name: "row", run: row, seeds: rows },
    Reader { name: "machine", run: machine, seeds: machine_files },
    Reader { name: "index", run: index, seeds: Vec::new },
    Reader { name: "dcp-metadata", run: |bytes| Spoilt::Metadata.open(bytes), seeds: || Spoilt::Metadata.seeds() },
    Reader { name: "dcp-payload", run: |bytes| Spoilt::Payload.open(bytes), seeds: || Spoilt::Payload.seeds() },
    Reader { name: "safetensors", run: |bytes| Spoilt::Shard.open(bytes), seeds: || Spoilt::Shard.seeds() },
    Reader { name: "safetensors-index", run: |bytes| Spoilt::Index.open(bytes), seeds: || Spoilt::Index.seeds() },
    Reader { name: "request", run: request, seeds: request_seeds },
    Reader { name: "log", run: log, seeds: samples },
    Reader { name: "snapshot", run: snapshot, seeds: || text_files("crates/evidence/tests/samples", "pickle") },
];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|line| line.as_bytes().to_vec()).collect()
}

/// A refusal says something, and can be shown beside its text.
fn refused(findings: &[Finding], source: &str) {
    assert!(!findings.is_empty(), "refused without a finding");
    for finding in findings {
        assert!(!finding.rule.is_empty() && !finding.message.is_empty(), "{finding:?}");
        diag::render(finding, Some(("fuzz", source)));
    }
}

/// What was read can be counted, with no tensor that is empty or larger than all of them, and written so that it reads
/// back the same.
fn usable(recipe: &Recipe) {
    let total = recipe.counts().all.total;
    let held = recipe.tensors().iter().map(|tensor| tensor.elements()).try_fold(0u64, u64::checked_add);
    assert!(recipe.tensors().iter().all(|tensor| tensor.elements() > 0), "an empty tensor");
    assert!(total > 0 && held.is_some_and(|held| held <= total), "{held:?} of {total}");
    let written = recipe.to_toml();
    let again = Recipe::parse(&written).unwrap_or_else(|f| panic!("{f:#?}\n{written}"));
    assert_eq!(again.counts().all.total, recipe.counts().all.total, "{written}");
    assert_eq!(again.to_toml(), written);
}

fn recipe_toml(bytes: &[u8]) {
    let text = text(bytes);
    match Recipe::parse(&text) {
        Ok(recipe) => usable(&recipe),
        Err(findings) => refused(&findings, &text),
    }
}

/// Built-in recipes, those of parity tests, and kinds that only imported ones have.
fn recipes() -> Vec<Vec<u8>> {
    let types = ["bailing_hybrid", "kimi_linear", "olmo_hybrid", "rwkv7", "zamba", "zamba2"];
    let all: Vec<Value> = configs().iter().filter_map(|config| serde_json::from_slice(config).ok()).collect();
    let import = |name: &str| {
        let config = all.iter().find(|config| config["model_type"] == name).expect("a config of every type is kept");
        let imported = hf::import(&config.to_string(), &hf::Asked::named(name));
        imported.unwrap_or_else(|f| panic!("{name}: {f:#?}")).recipe.to_toml().into_bytes()
    };
    let folders = ["data/recipes", "data/engines/parity"];
    folders.iter().flat_map(|folder| text_files(folder, "toml")).chain(types.into_iter().map(import)).collect()
}

/// Published configs, and one of every model type.
fn configs() -> Vec<Vec<u8>> {
    let mut seeds = text_files("data/truth/configs", "json");
    let rows = text_files("data/truth", "jsonl").into_iter().flat_map(|file| {
        let lines: Vec<Vec<u8>> = file.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lines
    });
    let config = |line: Vec<u8>| {
        let mut row: Value = serde_json::from_slice(&line).ok()?;
        let name = row.get("class").and(row.get("model_type")).cloned()?;
        let config = row.get_mut("config")?.as_object_mut()?;
        config.insert("model_type".to_string(), name);
        serde_json::to_vec(config).ok()
    };
    seeds.extend(rows.filter_map(config));
    seeds
}

fn config(bytes: &[u8]) {
    let text = text(bytes);
    match hf::import(&text, &hf::Asked::named("fuzz")) {
        Ok(imported) => usable(&imported.recipe),
        Err(findings) => refused(&findings, &text),
    }
}

fn arguments(bytes: &[u8]) {
    let text = text(bytes);
    match megatron_args::import(&text, "fuzz") {
        Ok(imported) => usable(&imported.recipe),
        Err(findings) => refused(&findings, &text),
    }
}

fn pattern(bytes: &[u8]) {
    let text = text(bytes);
    if let Ok(pattern) = Pattern::parse(&text) {
        assert_eq!(Pattern::parse(&pattern.to_string()).ok(), Some(pattern), "{text:?}");
    }
    let _ = megatron::read(&text);
    let _ = megatron::read_layers(&text);
}

fn device(bytes: &[u8]) {
    let text = text(bytes);
    if let Err(findings) = Device::parse(&text) {
        refused(&findings, &text);
    }
}

fn profile(bytes: &[u8]) {
    let _ = Profile::parse("fuzz", &text(bytes));
}

fn cluster(bytes: &[u8]) {
    let text = text(bytes);
    let _ = Cluster::parse(&text);
    let _ = (FleetText::parse(&text), Prices::parse(&text), Ramp::parse(&text), fleet::words::count(&text));
}

fn policy(bytes: &[u8]) {
    let text = text(bytes);
    if let Err(findings) = Policy::parse(&text) {
        refused(&findings, &text);
    }
}

/// A receipt that was read is told of without a panic, and is written and read back the same.
fn receipt(bytes: &[u8]) {
    let Ok(read) = receipt::Receipt::read(&text(bytes)) else { return };
    let written = read.text();
    let again = receipt::Receipt::read(&written).expect("what is written reads back");
    assert_eq!(again.text(), written);
    receipt::store::Row::of(&again.id(), &again);
}

fn receipts() -> Vec<Vec<u8>> {
    let recipe = builtin::find("nam56r-mini").expect("it ships");
    let about = receipt::About {
        identity: receipt::Identity::of_recipe(&recipe),
        case: None,
        arguments: Vec::new(),
        overlay: Value::Null,
        versions: Default::default(),
        prediction: Some(receipt::Prediction {
            by: "0".to_string(),
            profile: None,
            step: None,
            verdict: "fits".to_string(),
            ranks: vec![receipt::RankPrediction {
                stage: 0,
                first_rank: 0,
                last_rank: 7,
                allocated_peak: 1 << 30,
                reserved_peak: 1 << 31,
                outside: 1 << 29,
                host: 0,
                lines: Default::default(),
                phases: vec![("model".to_string(), 1, 2)],
            }],
        }),
    };
    let rehearsed = serde_json::json!({
        "schema": "shardwright/1", "losses": { "all_ranks": [4.5, 4.25, null] },
        "phases": [{ "rank": 0, "phase": "model", "peak_bytes": 4096 }],
    });
    let run = evidence::read("r.json", rehearsed.to_string().as_bytes(), None, &mut |_| {}).unwrap_or_default();
    let receipt = receipt::Receipt::new(receipt::Kind::Rehearsal, "2026-11-16T00:00:00Z".to_string(), about, run);
    vec![receipt.text().into_bytes()]
}

/// A case that was read is written and read back the same.
fn case_json(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    match Case::from_json(&value, Terms::SPLIT) {
        Ok(case) => {
            let written = case.to_json();
            let again = Case::from_json(&written, Terms::SPLIT).unwrap_or_else(|f| panic!("{f:#?}\n{written:#}"));
            // What was derived the first time is said the second.
            assert_eq!(without_defaults(again.to_json()), without_defaults(written));
        }
        Err(findings) => refused(&findings, ""),
    }
}

fn without_defaults(mut case: Value) -> Value {
    case["defaults"] = Value::Null;
    case
}

/// One word a line: as a job, as every engine's options, as sizes and faults of a rehearsal.
fn words(bytes: &[u8]) {
    let text = text(bytes);
    let words: Vec<String> = text.lines().map(str::to_string).collect();
    let _ = Asked::parse(&words);
    for (_, engine) in Engine::ALL {
        let _ = case::words::read(Some(*engine), &words, &mut usual_options().clone());
    }
    let _ = (Recompute::parse(&text), Dims::parse(&text), Inject::parse(&text));
}

fn usual_options() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| typed(&["llama3-8b", "--on", "8xH200"]).expect("a job everybody runs").options)
}

fn row(bytes: &[u8]) {
    let Ok(row) = serde_json::from_slice::<Value>(bytes) else { return };
    let judged = fidelity::judge(&row);
    assert_eq!(judged.figures.is_empty(), judged.why_not().is_some(), "{row}");
    assert!(judged.figures.iter().all(|figure| figure.predicted.number().is_finite()), "{row}");
}

fn machine(bytes: &[u8]) {
    let mounts = parse::mountinfo(bytes);
    launch::preflight::volume_of(&mounts, bytes);
    parse::listeners(bytes);
    parse::socket_inode(bytes);
    parse::limits(bytes);
    parse::memory_total(bytes);
    parse::command_line(bytes);
    parse::parent(bytes);
    parse::gpus(bytes, bytes);
}

/// Its checksum is mended, so that what lies behind it is reached.
fn index(bytes: &[u8]) {
    let _ = checkpoint::Index::parse(bytes);
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let Ok(index) = serde_json::from_value::<checkpoint::Index>(value) else { return };
    if let Ok(read) = checkpoint::Index::parse(&index.to_json()) {
        assert_eq!(read.to_json(), index.to_json());
    }
}

/// What was read of a log, its format found out or told, is written and read back the same.
fn log(bytes: &[u8]) {
    let told = evidence::Format::ALL[bytes.len() % evidence::Format::ALL.len()].1;
    for format in [None, Some(told)] {
        match evidence::read("fuzz", bytes, format, &mut |_| ()) {
            Ok(read) => {
                let written = serde_json::to_string(&read).expect("evidence is data");
                let again: Evidence = serde_json::from_str(&written).unwrap_or_else(|e| panic!("{e}\n{written}"));
                assert_eq!(again, read);
                assert_eq!((read.sources.len(), read.sources[0].bytes), (1, bytes.len() as u64));
            }
            Err(finding) => refused(&[finding], ""),
        }
    }
}

fn snapshot(bytes: &[u8]) {
    match Snapshot::read(bytes, "fuzz") {
        Ok(snapshot) => {
            for device in snapshot.devices() {
                assert!(snapshot.peak(device).reserved >= snapshot.held(device).1);
                receipt::snapshot_diff::diff(&snapshot, device, &snapshot);
            }
            let same = receipt::snapshot_diff::diff(&snapshot, 0, &snapshot);
            assert!(same.sizes.is_empty() && same.measured == same.predicted, "{same:?}");
        }
        Err(finding) => refused(&[finding], ""),
    }
}

fn samples() -> Vec<Vec<u8>> {
    let endings = ["log", "txt", "csv", "jsonl", "json"];
    endings.iter().flat_map(|ending| text_files("crates/evidence/tests/samples", ending)).collect()
}

fn typed(words: &[&str]) -> Option<Case> {
    let asked = Asked::parse(words).ok()?;
    let recipe = builtin::find(&asked.recipe.recipe).ok()?;
    let cluster = Cluster::parse(asked.on.as_deref()?).ok();
    Case::build(asked, recipe, cluster, Terms::SPLIT).ok()
}

fn cases() -> Vec<Vec<u8>> {
    let jobs: [&[&str]; 4] = [
        &["nam56r-mini", "--on", "8xH200", "--tp", "2", "--ep", "2"],
        &["llama3-8b", "--on", "8xH200", "--tp", "2", "--pp", "2", "--engine", "megatron"],
        &["qwen3-30b-a3b", "--on", "8xH100", "--ep", "8", "--engine", "torchtitan"],
        &["llama3-8b", "--on", "8xH200", "--zero", "3", "--engine", "fsdp2", "--recompute", "full"],
    ];
    jobs.iter().filter_map(|words| Some(typed(words)?.to_json().to_string().into_bytes())).collect()
}

fn rows() -> Vec<Vec<u8>> {
    let files = text_files("data/truth", "jsonl");
    let mut out = Vec::new();
    for file in files {
        let lines: Vec<&[u8]> = file.split(|byte| *byte == b'\n').filter(|line| line.len() > 2).collect();
        out.extend(lines.iter().step_by(lines.len().div_ceil(12)).map(|line| line.to_vec()));
    }
    out
}

fn machine_files() -> Vec<Vec<u8>> {
    let read = |path: &str| std::fs::read(path).ok();
    let linux = ["/proc/self/mountinfo", "/proc/self/limits", "/proc/meminfo", "/proc/self/stat", "/proc/self/cmdline"];
    let mut out: Vec<Vec<u8>> = linux.iter().filter_map(|path| read(path)).collect();
    out.push(b"0, NVIDIA H200, 143771, 141 MiB, 0, [N/A], Enabled\n0, 4242, python, 512 MiB\n".to_vec());
    out.push(b"  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345\n".to_vec());
    out
}
