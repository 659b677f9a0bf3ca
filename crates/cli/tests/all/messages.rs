//! How answers read: on a narrow screen, first things first, with suggestions that are right, and with one
//! shape for every refusal.

use crate::common::{Ran, folder, json, ran, run, run_args, scratch, shell};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const README: &str = include_str!("../../../../README.md");

fn at_width(line: &str, columns: &str) -> Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    ran(Command::new(env!("CARGO_BIN_EXE_shardwright")).args(words).env("COLUMNS", columns))
}

/// What may be longer than the screen: a command to be copied, a line of somebody's file, or one word.
fn may_be_long(line: &str) -> bool {
    let plain = line.trim_start();
    let is_copied = ["shardwright ", "cd ", "sbatch ", "kubectl ", "bash "].iter().any(|word| plain.starts_with(word));
    let quotes_a_command = plain.starts_with("`shardwright ");
    is_copied || quotes_a_command || !plain.trim_end().contains(' ')
}

fn hold_width(line: &str, ran: &Ran) {
    for text in ran.stdout.lines().chain(ran.stderr.lines()) {
        assert!(
            text.chars().count() <= 80 || may_be_long(text),
            "`{line}` prints {} columns:\n{text}",
            text.chars().count()
        );
        assert!(!text.contains("\\u{1b}"), "`{line}` prints its own escapes as text:\n{text}");
    }
}

#[test]
fn the_readmes_commands_fit_eighty_columns() {
    let at = folder("readme-width");
    let example = include_str!("../../../../docs/example_policy.toml");
    std::fs::write(at.join("policy.toml"), example).expect("a file");
    let typed: Vec<&str> = README.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert!(typed.len() >= 10, "{typed:?}");
    let besides = [
        "shardwright launch nam56r --mode nemo_native --on 8xH200 --explain --out explained",
        "shardwright plan llama3-8b --tp 2 --cp 1 --pp 1 --gbs 64 --zero 1 --on 8xH200 --top 3 --stats --explain --tp=16",
        "shardwright plan llama3-8b --tp 2 --cp 1 --pp 1 --gbs 64 --zero 1 --mbs 1 --on 4,8xH200 --sequences 4k,8k",
    ];
    for line in typed.into_iter().chain(besides) {
        let ran = shell(line, &at, "80");
        assert!(ran.code != 2 && ran.code != 70 && ran.code != 127, "`{line}` exits {}:\n{}", ran.code, ran.stderr);
        hold_width(line, &ran);
    }
}

#[test]
fn other_answers_and_refusals_fit_eighty_columns() {
    for line in [
        "axes",
        "axes cp",
        "lanes",
        "lanes --for nam56r --on 8xH200",
        "hardware",
        "hardware GB200",
        "hardware tcpxo",
        "options",
        "options megatron",
        "options torchtitan",
        "recipes",
        "glossary",
        "glossary bubble",
        "mesh --tp 8 --cp 4 --pp 16 --ep 16 --world 131072 --rank 77777",
        "params nam56r --mode nemo_native --with mtp",
        "check nam56r --tp 16 --ep 5 --cp 2 --world 100 --no-sp --engine megatron",
        "splits deepseek-v3 --tp 2 --pp 16 --ep 64 --etp 1 --world 2048 --zero 1 --with mtp",
        "splits gpt3-175b --tp 8 --pp 8 --world 128 --zero 0 --rank 127",
        "stages gpt3-175b --pp 3 --boundaries 30,62",
        "stages nam56r --pp 2",
        "choices nam56r --on 8xH200",
        "fit llama3-8b --pp 4 --schedule dualpipe --microbatches 16 --on 8xH200",
        "fit llama3-8b --tp 2 --pp 2 --gbs 64 --on 8xH200 --checklist",
        "fit nam56r --serve --tp 2 --batch 64 --context 32k --on 8xH200",
        "plan llama3-8b --tp 3 --on 8xH200",
        "launch llama3-70b --on 8xH200",
        "launch nam56r --engine torchtitan --on 8xH200",
        "diagnose torch.compile hangs",
        "diagnose gibberish",
        "params no-such-org/no-such-model",
        "fit llama3-8b --on 8xMI250X",
    ] {
        let ran = at_width(line, "80");
        assert!(ran.code != 2 && ran.code != 70, "`{line}` exits {}:\n{}", ran.code, ran.stderr);
        assert!(!ran.stdout.is_empty() || !ran.stderr.is_empty(), "{line}");
        hold_width(line, &ran);
    }
}

/// Without a terminal and without `COLUMNS`, a screen of eighty is assumed.
#[test]
fn eighty_columns_are_assumed() {
    let line = ["axes"];
    let assumed = ran(Command::new(env!("CARGO_BIN_EXE_shardwright")).args(line).env_remove("COLUMNS"));
    assert_eq!(assumed.stdout, at_width("axes", "80").stdout);
}

/// A screen of two hundred shows what the goldens show, wherever they fit it.
#[test]
fn a_wide_screen_shows_everything() {
    let goldens = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let mut compared = 0;
    for name in [
        "params_nam56r",
        "check_nam56r_everything_wrong",
        "stages_nam56r_virtual",
        "hardware_all",
        "lanes_all",
        "mesh_experts",
    ] {
        let golden = std::fs::read_to_string(goldens.join(format!("{name}.txt"))).expect("a golden");
        let (line, said) =
            golden.strip_prefix("$ shardwright ").and_then(|text| text.split_once('\n')).expect("a line");
        assert!(golden.lines().all(|line| line.chars().count() <= 200), "{name}");
        let ran = at_width(line, "200");
        assert_eq!(format!("{}{}[exit {}]\n", ran.stdout, ran.stderr, ran.code), said, "{name}");
        compared += 1;
    }
    assert_eq!(compared, 6);
}

#[test]
fn the_verdict_is_the_first_line() {
    let first = |line: &str| run(line).stdout.lines().next().unwrap_or_default().to_string();
    assert!(first("check nam56r --tp 3").starts_with("not legal: "));
    assert!(first("check llama3-8b --tp 2").starts_with("legal: "));
    assert!(first("fit llama3-70b --on 8xH200").starts_with("does not fit on H200: "));
    assert!(first("fit llama3-8b --tp 2 --on 8xH200").starts_with("fits on H200: "));
    assert!(first("fit llama3-405b --serve --on 8xH200").starts_with("does not fit: "));
    assert!(first("plan llama3-8b --tp 3 --on 8xH200").starts_with("No layout of these degrees fills the world"));
    assert!(
        first("plan llama3-405b --pp 2 --cp 1 --mbs 1 --gbs 64 --on 8xH100").starts_with("No layout fits for megatron")
    );
    let policy = scratch("first-line.toml", "[environment]\nrequired = [\"SHARDWRIGHT_NONESUCH\"]\n");
    let refused = run_args(&["preflight", "--policy", policy.to_str().unwrap()]);
    assert!(refused.stdout.starts_with("not fit to launch: "), "{}", refused.stdout);
    assert!(run("launch llama3-70b --on 8xH200").stderr.starts_with("error: the plan does not fit"));
}

/// A bad input of every command, and its exit.
const REFUSED: &[(&str, i32)] = &[
    ("params nonesuch", 1),
    ("splits nam56r --rank 9 --world 8", 1),
    ("check nam56r --tp 3", 1),
    ("mesh --world 8 --rank 9", 1),
    ("stages nam56r --pp 60", 1),
    ("axes xp", 1),
    ("diagnose broken", 1),
    ("import nonesuch.json", 1),
    ("recipes nonesuch", 1),
    ("hardware nonesuch", 1),
    ("fit llama3-70b --on 8xH200", 3),
    ("fit llama3-405b --serve --on 8xH200", 3),
    ("fit llama3-8b --on 8xnonesuch", 1),
    ("diff llama3-8b nonesuch --on 8xH200", 1),
    ("fidelity nonesuch.jsonl", 1),
    ("plan llama3-8b --tp 3 --on 8xH200", 1),
    ("plan llama3-405b --pp 2 --cp 1 --mbs 1 --gbs 64 --on 8xH100", 3),
    ("plan llama3-405b --cp 1 --mbs 1 --gbs 64 --zero 0 --pp 1 --on 1,2xH100", 3),
    ("rehearse nam56r --tp 3", 1),
    ("preflight --policy nonesuch.toml", 1),
    ("launch llama3-70b --on 8xH200", 3),
    ("launch nam56r --engine torchtitan --on 8xH200", 1),
    ("lanes --for nonesuch", 1),
    ("glossary nonesuch", 1),
    ("options nonesuch", 2),
    ("completions nonesuch", 2),
    ("check nam56r --seq 8kb", 2),
    ("nonesuch", 2),
];

#[test]
fn every_refusal_has_one_shape_in_json() {
    for (line, code) in REFUSED {
        let ran = run(&format!("{line} --json"));
        assert_eq!(ran.code, *code, "{line}\n{}", ran.stderr);
        let answer: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{}", ran.stdout));
        assert_eq!((&answer["schema"], &answer["error"]), (&"shardwright/1".into(), &true.into()), "{line}");
        let findings = answer["findings"].as_array().unwrap_or_else(|| panic!("`{line}` has no findings"));
        assert!(findings.iter().any(|f| f["severity"] == "error"), "{line}: {findings:?}");
        for finding in findings {
            for key in ["rule", "blame", "severity", "object", "message"] {
                assert!(finding[key].is_string(), "`{line}`: a finding without `{key}`");
            }
        }
    }
    let policy = scratch("refused.toml", "[environment]\nrequired = [\"SHARDWRIGHT_NONESUCH\"]\n");
    let answer: Value =
        serde_json::from_str(&run_args(&["preflight", "--policy", policy.to_str().unwrap(), "--json"]).stdout).unwrap();
    assert_eq!(answer["error"], true);
    assert!(!answer["findings"].as_array().unwrap().is_empty());
    assert!(json("params nam56r").get("error").is_none(), "an answer is no error");
}

#[test]
fn a_device_is_suggested_only_where_it_is_meant() {
    let hint = |device: &str| {
        let answer = json(&format!("fit llama3-8b --on 8x{device}"));
        answer["findings"][0]["hint"].as_str().unwrap_or_default().to_string()
    };
    assert!(hint("A100-80GB").starts_with("did you mean `A100`?"), "{}", hint("A100-80GB"));
    assert!(hint("A100-40GB").starts_with("did you mean `A100-40G`?"));
    for other in ["H30", "P100", "MI250X", "3090"] {
        assert!(!hint(other).contains("did you mean"), "{other}: {}", hint(other));
        assert!(hint(other).contains("hardware H200 --toml > mine.toml"), "{other}: {}", hint(other));
        let asked = json(&format!("hardware {other}"));
        assert!(!asked["findings"][0]["hint"].as_str().unwrap().contains("did you mean"), "{asked}");
    }
}

#[test]
fn the_way_to_describe_a_device_runs_as_printed() {
    let at = folder("describe");
    let commands = quoted(hardware::describe_your_own());
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in commands {
        assert_eq!(shell(&command, &at, "80").code, 0, "{command}");
    }
    assert_eq!(shell("shardwright fit llama3-8b --tp 2 --on 8x./mine.toml", &at, "80").code, 0);
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/example_device.toml").exists());
}

/// Commands of ours in backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).filter(|part| part.starts_with("shardwright ")).map(str::to_string).collect()
}

#[test]
fn flags_and_models_are_suggested_only_where_they_are_meant() {
    let said = |line: &str| run(line).stderr;
    assert!(
        said("check nam56r --tensor-parallel 2").contains("'--tp'"),
        "{}",
        said("check nam56r --tensor-parallel 2")
    );
    assert!(said("check nam56r --pipeline_model_parallel_size 2").contains("'--pp'"));
    assert!(said("fit nam56r --on 8xH200 --headrom 8").contains("'--headroom'"));
    assert!(!said("params llama4").contains("did you mean"), "{}", said("params llama4"));
    assert!(!said("params llama3-7b").contains("did you mean"));
    let config = scratch("llama4.json", "{\"model_type\": \"llama4\"}");
    let refused = run_args(&["import", config.to_str().unwrap()]).stderr;
    assert!(refused.contains("`llama4` is not supported") && !refused.contains("did you mean"), "{refused}");
    let usage = json("check nam56r --tensor-parallel 2");
    assert!(usage["findings"][0]["hint"].as_str().unwrap().contains("--tp"), "{usage}");
}

#[test]
fn tokens_headroom_and_a_cluster_are_typed_alike_everywhere() {
    assert_eq!(
        json("check llama3-8b --seq 8k")["layout"]["seq"],
        8192,
        "{}",
        json("check llama3-8b --seq 8k")["layout"]
    );
    assert_eq!(json("fit llama3-8b --serve --tp 2 --context 32k --on 8xH200")["context"], 32768);
    assert!(run("check llama3-8b --seq 8kb").stderr.contains("they have no bytes"));
    let sweep = json("plan llama3-8b --tp 2 --cp 1 --pp 1 --gbs 64 --zero 1 --mbs 1 --on 8xH200 --sequences 4k,8192");
    let lengths: Vec<_> = sweep["sweep"].as_array().unwrap().iter().map(|row| row["seq"].clone()).collect();
    assert_eq!(lengths, [4096, 8192]);
    for flag in ["--headroom 8", "--keep-headroom 8", "--headroom 8GiB"] {
        let fit = json(&format!("fit llama3-8b --tp 2 --on 8xH200 {flag}"));
        assert_eq!(fit["verdict"], "fits", "{flag}");
        let plan = run(&format!("plan llama3-8b --tp 2 --cp 1 --pp 1 --gbs 64 --zero 1 --mbs 1 --on 8xH200 {flag}"));
        assert!(plan.code == 0 && plan.stdout.contains("8.00 GiB asked for"), "{flag}: {}", plan.stderr);
    }
    assert_eq!(json("fit llama3-8b --tp 2 --on 8xH200 --headroom 99%")["verdict"], "tight");
    assert!(!run("fit --help").stdout.contains("keep-headroom"));
    assert_eq!(json("check nam56r --mode nemo_native --on 2x8xH200")["layout"]["world"], 16);
}

#[test]
fn a_bubble_is_never_below_nothing() {
    for line in
        ["--tp 2", "--pp 2 --gbs 64", "--pp 4 --gbs 64", "--pp 4 --vpp 2 --gbs 64", "--pp 8 --microbatches 1 --dp 1"]
    {
        let bubble = json(&format!("fit llama3-8b {line} --on 8xH200"))["step"]["bubble"].as_f64().unwrap();
        assert!(bubble.is_sign_positive() && bubble < 1.0, "{line}: {bubble}");
    }
}

const TINY: &str = "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 2, \
                    \"num_attention_heads\": 4, \"vocab_size\": 256, \"max_position_embeddings\": 128}";

#[test]
fn a_folder_and_a_name_in_the_local_cache_are_recipes() {
    let home = folder("hf-home");
    let repository = home.join("hub/models--some-org--tiny-llama");
    for revision in ["aaa", "bbb"] {
        std::fs::create_dir_all(repository.join("snapshots").join(revision)).unwrap();
    }
    std::fs::write(repository.join("snapshots/aaa/config.json"), TINY).unwrap();
    std::fs::write(
        repository.join("snapshots/bbb/config.json"),
        TINY.replace("\"hidden_size\": 64", "\"hidden_size\": 128"),
    )
    .unwrap();
    let asked = |name: &str, variable: &str, value: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
        command.args(["params", name, "--json"]).env_remove("HF_HUB_CACHE").env_remove("HF_HOME").env(variable, value);
        let ran = ran(&mut command);
        serde_json::from_str::<Value>(&ran.stdout).unwrap_or_else(|e| panic!("{name}: {e}\n{}", ran.stderr))
    };
    let name = "some-org/tiny-llama";
    // Two revisions, and nothing that says which is main.
    assert_eq!(asked(name, "HF_HOME", &home)["findings"][0]["rule"], "recipe/unknown");
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), "bbb\n").unwrap();
    let found = asked(name, "HF_HOME", &home);
    assert_eq!(found["recipe"], "tiny-llama", "{found}");
    assert_eq!(asked(name, "HF_HUB_CACHE", &home.join("hub"))["total"], found["total"]);
    let folder = repository.join("snapshots/aaa");
    let of_folder = asked(folder.to_str().unwrap(), "HF_HOME", &home);
    // A snapshot is named after its repository, not after its revision.
    assert_eq!(of_folder["recipe"], "tiny-llama");
    assert_ne!(of_folder["total"], found["total"]);
    let missing = asked("some-org/other", "HF_HOME", &home);
    let finding = &missing["findings"][0];
    assert!(finding["message"].as_str().unwrap().contains("models--some-org--other"), "{finding}");
    assert!(finding["hint"].as_str().unwrap().starts_with("nothing is downloaded"), "{finding}");
}

/// What `diagnose` tells to run, runs; a check and a preflight may say no.
#[test]
fn what_diagnose_names_runs_as_printed() {
    let at = folder("diagnose");
    let mut done = std::collections::BTreeSet::new();
    for diagnosis in layout::diagnose::all() {
        for step in diagnosis.inspect {
            assert_eq!(step.matches("shardwright").count(), quoted(step).len(), "{}: {step}", diagnosis.id);
            for command in quoted(step).into_iter().filter(|command| done.insert(command.clone())) {
                let ran = shell(&command, &at, "80");
                let may_refuse = command.contains(" check ") || command.contains(" preflight ");
                assert!(
                    ran.code == 0 || (may_refuse && ran.code == 1),
                    "{command} exits {}:\n{}",
                    ran.code,
                    ran.stderr
                );
            }
        }
    }
    assert!(done.len() > 12, "{done:?}");
}

#[test]
fn a_diagnosis_names_an_axis_or_a_family() {
    let axis = json("diagnose all-to-all hang in the MoE layer");
    assert_eq!((&axis["axis"], &axis["family"]), (&"ep".into(), &Value::Null));
    let family = json("diagnose No space left on device");
    assert_eq!((&family["axis"], &family["family"]), (&"none".into(), &"infrastructure".into()));
    assert_eq!(family["matches"][0]["family"], "infrastructure");
    assert!(run("diagnose disk full").stdout.contains("(family infrastructure)"));
    let unknown = json("diagnose gibberish");
    let hint = unknown["findings"][0]["hint"].as_str().unwrap();
    for (_, name, _) in layout::diagnose::Family::ALL {
        assert!(hint.contains(&format!(" {name}: ")), "{name} is missing from: {hint}");
    }
}

#[test]
fn the_glossary_is_reachable() {
    assert!(run("glossary seam").stdout.starts_with("seam: "));
    assert!(run("glossary nam52").stdout.contains("NAM56R"));
    assert!(run("--help").stdout.contains("shardwright glossary WORD"));
    let missing = run("glossary laen");
    assert!(missing.code == 1 && missing.stderr.contains("did you mean `lane`"), "{}", missing.stderr);
}

#[test]
fn a_hint_does_not_lead_back_to_where_it_came_from() {
    let text = "name = \"r\"\npattern = \"AR\"\nhidden = 64\nvocab = 64\nsequence = 64\n[attention]\nheads = 4\n\
                [recurrent]\nheads = 4\nkey_dim = 8\nvalue_dim = 8\n";
    let without = scratch("no-modes.toml", text);
    let said = run_args(&["check", without.to_str().unwrap(), "--engine", "megatron"]).stderr;
    assert!(said.contains("the recipe lists no modes") && !said.contains("--mode nemo_native"), "{said}");
    // As the hint says.
    let with = scratch("with-mode.toml", &text.replace("sequence = 64\n", "sequence = 64\nmodes = [\"author_dp\"]\n"));
    let with = with.to_str().unwrap();
    assert!(run_args(&["check", with, "--engine", "megatron"]).stdout.contains("mode = author_dp"));
    assert_eq!(run_args(&["check", with, "--engine", "megatron", "--mode", "author_dp"]).code, 0);
}
