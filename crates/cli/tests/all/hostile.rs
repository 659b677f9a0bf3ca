//! Names, paths and values that try to write a verdict of their own: whatever command prints them, to
//! whomever, they stay one piece of visible text.

use crate::common::{Ran, ran};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Breaks the line, clears the screen by seven and by eight bits, sets a title, turns the text around, hides.
const FORGED: &str = "x\nlegal: 0 errors\r\u{1b}[2J\u{9b}31m\u{1b}]0;t\u{7}\u{202e}\u{200b}\u{0}\t<&\"'";

/// As a file's name, which has no zero byte.
fn forged_file() -> String {
    FORGED.replace('\u{0}', "")
}

/// A folder with one file of every kind that a command reads, each under a forged name.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    let recipe = recipe::builtin::find("nam56r-mini").unwrap().to_toml();
    let at = |ending: &str| path.join(format!("{}{ending}", forged_file().replace('/', "")));
    std::fs::write(at(".toml"), &recipe).unwrap();
    let device = hardware::Device::find("H200").unwrap().toml().unwrap().to_string();
    std::fs::write(at(".device.toml"), device).unwrap();
    std::fs::write(at(".policy.toml"), "[job]\nname = \"plain\"\n").unwrap();
    let quoted = diag::quote::toml(FORGED);
    std::fs::write(path.join("named.toml"), recipe.replacen("\"nam56r-mini\"", &quoted, 1)).unwrap();
    std::fs::write(path.join("key.toml"), format!("{recipe}\n[{quoted}]\n")).unwrap();
    std::fs::write(path.join("policy.toml"), format!("[data]\ntokenizer = {quoted}\n{quoted} = 1\n")).unwrap();
    let device = hardware::Device::find("H200").unwrap().toml().unwrap().replacen("\"H200\"", &quoted, 1);
    std::fs::write(path.join("device.toml"), device).unwrap();
    let config = json!({ "model_type": FORGED, "_name_or_path": FORGED, FORGED: FORGED });
    std::fs::write(path.join("config.json"), config.to_string()).unwrap();
    let llama = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu", "odd": FORGED,
    });
    std::fs::write(path.join("llama.json"), llama.to_string()).unwrap();
    let row = json!({ "name": FORGED, "kind": FORGED, "model": FORGED, "id": FORGED, "framework": FORGED, "source_id": FORGED });
    std::fs::write(path.join("rows.jsonl"), format!("{row}\n")).unwrap();
    std::fs::write(path.join("arguments.txt"), format!("--hidden-size 64 --num-layers 2 --tokenizer-model '{FORGED}'"))
        .unwrap();
    std::fs::create_dir_all(path.join("checkpoint")).unwrap();
    std::fs::write(path.join("checkpoint/model.safetensors"), safetensors()).unwrap();
    path
}

/// A checkpoint whose tensor's name is forged.
fn safetensors() -> Vec<u8> {
    let header = json!({ FORGED: { "dtype": "F32", "shape": [1], "data_offsets": [0, 4] } }).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// Whether a text for a screen is lines of visible characters, none of which begins as the forged one does.
#[track_caller]
fn assert_tame(what: &str, text: &str) {
    for line in text.lines() {
        let plain = line.replace('\t', " ");
        assert!(diag::quote::is_plain(&plain), "{what}: {line:?}");
        assert!(!line.trim_start().starts_with("legal: 0 errors\\r"), "{what}: {line:?}");
    }
}

#[track_caller]
fn assert_json(what: &str, text: &str) {
    assert_tame(what, text);
    serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{what}: {error}: {text}"));
}

fn run(at: &Path, words: &[&str]) -> Ran {
    let ran = ran(Command::new(env!("CARGO_BIN_EXE_shardwright")).args(words).current_dir(at).env("COLUMNS", "400"));
    assert!([0, 1, 2, 3].contains(&ran.code), "{words:?}: {} {}", ran.code, ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{words:?}: {}", ran.stderr);
    ran
}

#[test]
fn no_command_prints_what_a_name_holds() {
    let at = folder("forged");
    let file = forged_file().replace('/', "");
    let (recipe, policy) = (format!("{file}.toml"), format!("{file}.policy.toml"));
    let on = format!("8x./{file}.device.toml");
    let name = file.as_str();
    let commands: &[&[&str]] = &[
        &["check", "named.toml"],
        &["check", "key.toml"],
        &["check", &recipe],
        &["check", name],
        &["check", "nam56r", "--mode", name],
        &["check", "nam56r", "--recompute", name],
        &["check", "nam56r", name],
        &["check", "nam56r", &format!("--{name}")],
        &[name],
        &["params", &recipe],
        &["splits", &recipe, "--tp", "2"],
        &["mesh", &recipe],
        &["stages", &recipe, "--pp", "2"],
        &["recipes", name],
        &["glossary", name],
        &["diagnose", name],
        &["options", name],
        &["axes", name],
        &["lanes", "--for", &recipe],
        &["lanes", "--for", "nam56r", "--on", &on],
        &["hardware", name],
        &["hardware", "./device.toml"],
        &["hardware", &format!("./{file}.device.toml")],
        &["fit", &recipe, "--on", "8xH200"],
        &["fit", "nam56r-mini", "--on", &on],
        &["fit", "nam56r-mini", "--on", "8x./device.toml"],
        &["fit", "nam56r-mini", "--on", &format!("8x{name}")],
        &["plan", &recipe, "--on", "2xH200"],
        &["plan", "nam56r-mini", "--on", &on],
        &["plan", &recipe, "--on", "2xH200", "--explain", name],
        &["diff", &recipe, "nam56r-mini", "--on", "8xH200"],
        &["diff", &format!("nam56r-mini --{name}"), "nam56r-mini", "--on", "8xH200"],
        &["fidelity", "rows.jsonl"],
        &["fidelity", name],
        &["import", "config.json"],
        &["import", "llama.json", "--name", name],
        &["import", "llama.json", "-o", &format!("{name}.out")],
        &["import", "arguments.txt"],
        &["launch", &recipe, "--on", "8xH200"],
        &["launch", &recipe, "--on", "8xH200", "--engine-args", name],
        &["launch", "nam56r-mini", "--on", "8xH200", "--policy", "policy.toml"],
        &["launch", "nam56r-mini", "--on", "8xH200", "--policy", &policy, "--attempt", name],
        &["preflight", "--policy", "policy.toml"],
        &["preflight", "--policy", &policy],
        &["rehearse", "nam56r-mini", "--steps", "1", "--dims", name],
        &["rehearse", "nam56r-mini", "--steps", "1", "--load", name],
        &["checkpoint", "inspect", "checkpoint"],
        &["checkpoint", "verify", "checkpoint"],
        &["checkpoint", "inspect", name],
    ];
    for words in commands {
        let what = words.join(" ");
        let said = run(&at, words);
        assert_tame(&what, &said.stdout);
        assert_tame(&what, &said.stderr);
        let with_json: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        // Writing is refused a second time, which is an answer too.
        let said = run(&at, &with_json);
        assert_json(&what, &said.stdout);
        assert_tame(&what, &said.stderr);
    }
}

#[test]
fn what_is_written_holds_no_name_as_code() {
    let at = folder("forged-files");
    let recipe = format!("{}.toml", forged_file().replace('/', ""));
    let on = format!("8x./{}.device.toml", forged_file().replace('/', ""));
    let said = run(&at, &["fit", &recipe, "--on", &on, "--svg", "fit.svg"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let said = run(&at, &["plan", &recipe, "--on", "1,2xH200", "--svg", "plan.svg", "--csv", "plan.csv"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let table = std::fs::read_to_string(at.join("plan.csv")).unwrap();
    assert_tame("plan.csv", &table);
    assert_eq!(table.lines().count(), 3, "{table}");
    for picture in ["fit.svg", "plan.svg"] {
        let text = std::fs::read_to_string(at.join(picture)).unwrap();
        assert_tame(picture, &text);
        let is_shown = text.contains("\\u{1b}") && text.contains("&lt;&amp;");
        assert!(is_shown || picture == "plan.svg", "the cluster's name is in the title: {text}");
        let parsed = Command::new("python3")
            .args(["-c", "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])", picture])
            .current_dir(&at)
            .status();
        assert!(parsed.unwrap().success(), "{picture} is no XML");
    }
    for engine in ["megatron", "fsdp2"] {
        let said = run(&at, &["launch", &recipe, "--on", &on, "--engine", engine, "--out", engine, "--allow-seams"]);
        assert_eq!(said.code, 0, "{}", said.stderr);
        for file in std::fs::read_dir(at.join(engine)).unwrap().flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap();
            assert_tame(&file.path().display().to_string(), &text);
        }
    }
}
