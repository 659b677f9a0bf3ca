//! `receipt` as it is typed: from a launch that ran with a stand-in for its engine to what is kept of it.

#![cfg(unix)]

use crate::common::{Ran, ran};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with a launch of `llama3-8b` in it, and a stand-in for torchrun that does this.
fn folder(name: &str, engine: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("receipt-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(path.join("bin")).unwrap();
    let path = path.canonicalize().unwrap();
    let program = path.join("bin/torchrun");
    fs::write(&program, format!("#!/usr/bin/env bash\n{engine}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(path.join("engine")).unwrap();
    fs::write(path.join("engine/pretrain_gpt.py"), "").unwrap();
    let place = |key: &str| format!("{key} = \"{}/mnt/{key}\"\n", path.display());
    let places: String = ["checkpoints", "data", "logs", "caches", "temporary"].map(place).concat();
    fs::write(path.join("policy.toml"), format!("[storage]\n{places}forbid_root_volume = false\n")).unwrap();
    let made = at(&path, "launch llama3-8b --tp 2 --on 8xH200 --policy policy.toml --out launch");
    assert_eq!(made.code, 0, "{}", made.stderr);
    path
}

fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
    command.current_dir(folder).env("COLUMNS", "80").env("SHARDWRIGHT_STORE", folder.join("store"));
    command
}

fn at(folder: &Path, line: &str) -> Ran {
    ran(program(folder).args(line.split_whitespace()))
}

fn json_at(folder: &Path, line: &str) -> Value {
    let ran = at(folder, &format!("{line} --json"));
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{line}: {error}: {}{}", ran.stdout, ran.stderr))
}

/// Runs the launch, with the built program to record it.
fn launched(folder: &Path, variables: &[(&str, &str)]) -> Ran {
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.arg("./launch.sh").current_dir(folder.join("launch")).env("PATH", path).env("COLUMNS", "80");
    bash.env("SHARDWRIGHT_PACKAGES", "ignore").env("SHARDWRIGHT_ENGINE", folder.join("engine"));
    bash.env("SHARDWRIGHT", env!("CARGO_BIN_EXE_shardwright")).env("SHARDWRIGHT_STORE", folder.join("store"));
    ran(bash.envs(variables.iter().copied()))
}

/// Without the places where lines were broken.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn assert_rule(ran: &Ran, rule: &str) {
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(
        ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ").contains(&format!("[{rule}]")),
        "{}",
        ran.stderr
    );
}

/// Steps as Megatron-LM 0.19 prints them (`megatron/training/training.py`), from bash.
const MEGATRON: &str = r#"
first=${FIRST:-1}
for step in $(seq "$first" $((first + 5))); do
  echo "[default7]: [2026-08-20 10:01:4$((step % 10))] iteration $step/ 100 | consumed samples: $((step * 512)) | elapsed time per iteration (ms): 500.0 | throughput per GPU (TFLOP/s/GPU): 101.2 | learning rate: 3.000000E-04 | global batch size: 512 | lm loss: 9.$((90 - step))0000E+00 | loss scale: 1.0 | grad norm: 3.210 | number of skipped iterations: 0 | number of nan iterations: 0 |"
done
echo "[default0]:[Rank 0] (after $first iterations) memory (MB) | allocated: 30000.0 | max allocated: 55000.0 | reserved: 60000.0 | max reserved: 60000.0"
exit ${FAIL:-0}"#;

#[test]
fn a_launch_ends_in_five_lines_and_a_receipt() {
    let folder = folder("launch", MEGATRON);
    let ended = launched(&folder, &[]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().skip(7).collect();
    assert_eq!((lines.len(), lines[0]), (5, "finished, exit status 0, 6 steps"), "{}", ended.stdout);
    let promised = |line: &str| line.contains(" promised, ") && line.contains('%');
    assert!(lines[1].starts_with("a step took 500 ms (") && promised(lines[1]), "{}", ended.stdout);
    assert!(lines[2].starts_with("peak allocated 53.7 GiB (") && promised(lines[2]), "{}", ended.stdout);
    assert_eq!(lines[3], "loss 9.8900 at step 1, 9.8400 at step 6");
    let command = lines[4].strip_prefix("receipt: `shardwright ").unwrap().strip_suffix('`').unwrap();
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{}", ended.stdout);
    let shown = at(&folder, command);
    assert!(shown.code == 0 && shown.stdout.contains("nvidia-pretraining"), "{}{}", shown.stdout, shown.stderr);
    for words in ["rank 0: allocated at most", "node0.log:7", "3 steps of node0.log", "tokens/s, all devices"] {
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
    // It fails, and says so; the later receipt holds both attempts and supersedes the first.
    let failed = launched(&folder, &[("FAIL", "9"), ("FIRST", "5")]);
    assert_eq!(failed.code, 9, "the engine's status is the job's");
    assert!(failed.stdout.contains("failed, exit status 9, 10 steps, 2 attempts"), "{}", failed.stdout);
    let all = json_at(&folder, "receipt list --all");
    let receipts = all["receipts"].as_array().unwrap();
    assert_eq!(receipts.len(), 2);
    assert_eq!(receipts[0]["superseded"]["with"], receipts[1]["id"]);
    let whole = json_at(&folder, &format!("receipt show {}", receipts[1]["id"].as_str().unwrap()));
    let steps = whole["receipt"]["evidence"]["steps"].as_array().unwrap();
    let attempts: Vec<u64> = steps.iter().map(|step| step["attempt"].as_u64().unwrap_or(0)).collect();
    assert_eq!(attempts, [[0; 6], [1; 6]].concat());
    // The same once more is the same.
    let again = json_at(&folder, "receipt record launch");
    assert_eq!((&again["id"], &again["is_new"]), (&receipts[1]["id"], &json!(false)));
    assert_rule(&at(&folder, "receipt record launch --tp 4"), "receipt/layout");
    fs::write(folder.join("launch/plan.json"), "{}").unwrap();
    let changed = at(&folder, "receipt record launch");
    assert_rule(&changed, "receipt/changed");
    assert!(changed.stderr.contains("`plan.json`"), "{}", changed.stderr);
}

/// A replay's own snapshot is the one predicted; one of another job is not, and says where it parts.
#[test]
fn a_snapshot_is_held_against_the_replay_of_the_job() {
    let folder = folder("snapshot", MEGATRON);
    let printed = ran(Command::new(folder.join("bin/torchrun")).env("FIRST", "1")).stdout;
    fs::write(folder.join("one.log"), printed).unwrap();
    let recorded = |job: &str| json_at(&folder, &format!("receipt record --log one.log {job}"))["id"].clone();
    let job = "llama3-8b --tp 2 --on 8xH200 --engine megatron";
    let id = recorded(&format!("--recipe {job}"));
    let show = |file: &str| format!("receipt show {} --snapshot {file}", id.as_str().unwrap());
    for (flags, file) in [("", "own.pickle"), ("--recompute full", "other.pickle")] {
        assert_eq!(at(&folder, &format!("fit {job} {flags} --memory-snapshot {file}")).code, 0);
    }
    let own = at(&folder, &show("own.pickle"));
    assert!(own.stdout.contains("no block is there that was not predicted, and none is missing"), "{}", own.stdout);
    let answer = &json_at(&folder, &show("own.pickle"))["snapshot"]["difference"];
    let promised =
        json_at(&folder, &show("own.pickle"))["receipt"]["prediction"]["ranks"][0]["allocated_peak"].as_f64();
    assert_eq!((&answer["measured"], &answer["sizes"]), (&answer["predicted"], &json!([])));
    let near = answer["predicted"]["bytes"].as_f64().unwrap() / promised.unwrap();
    assert!((0.99..1.01).contains(&near), "{near}");
    let other = at(&folder, &show("other.pickle"));
    for words in ["-7.00 GiB", "activations: projection output x32", "of it not there, at most"] {
        assert!(other.stdout.contains(words), "{words}: {}", other.stdout);
    }
    let widest = other.stdout.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 80, "{widest}: {}", other.stdout);
    assert_rule(&at(&folder, &show("none.pickle")), "file/read");
    assert_rule(&at(&folder, &show("one.log")), "checkpoint/pickle");
    let mut bare = json_at(&folder, &format!("receipt show {}", id.as_str().unwrap()))["receipt"].clone();
    bare["case"] = Value::Null;
    fs::write(folder.join("bare.json"), bare.to_string()).unwrap();
    let refused = at(&folder, "receipt show bare.json --snapshot own.pickle");
    assert_rule(&refused, "receipt/snapshot");
    assert!(flat(&refused.stderr).contains("nothing says what to replay"), "{}", refused.stderr);
}

/// A rehearsal's answer, as its reader takes it.
fn rehearsal(folder: &Path, name: &str) {
    let losses: Vec<f64> = (1..=5).map(|step| 11.0 / f64::from(step)).collect();
    let phases = json!([{ "rank": 0, "phase": "fwdbwd0", "peak_bytes": 4096 }]);
    let text =
        json!({ "schema": "shardwright/1", "losses": { "all_ranks": losses }, "first_step": 0, "phases": phases });
    fs::write(folder.join(name), text.to_string()).unwrap();
}

#[test]
fn logs_alone_are_recorded_listed_shown_and_superseded() {
    let folder = folder("logs", MEGATRON);
    for (first, name) in [("1", "one.log"), ("21", "two.log")] {
        let printed = ran(Command::new(folder.join("bin/torchrun")).env("FIRST", first)).stdout;
        fs::write(folder.join(name), printed).unwrap();
    }
    let job = "--recipe llama3-8b --tp 2 --on 8xH200 --engine megatron";
    let one = json_at(&folder, &format!("receipt record --log one.log {job}"));
    assert_eq!((&one["kind"], &one["outcome"]["steps"], &one["is_new"]), (&json!("run"), &json!(6), &json!(true)));
    let id = |value: &Value| value["id"].as_str().unwrap().to_string();
    let one = id(&one);
    let two =
        json_at(&folder, &format!("receipt record --log two.log {job} --supersedes {} --because longer", &one[..9]));
    assert_eq!(two["supersedes"]["id"], one.as_str());
    let two = id(&two);
    let listed = at(&folder, "receipt list");
    assert!(listed.stdout.contains(&two[..12]) && !listed.stdout.contains(&one[..12]), "{}", listed.stdout);
    assert!(flat(&listed.stdout).contains("and 1 superseded (--all lists them)"), "{}", listed.stdout);
    assert!(at(&folder, "receipt list --recipe other").stdout.contains("no receipts in"));
    // What is shown: who, what was promised, what was measured, from where, within 80 columns.
    let shown = at(&folder, &format!("receipt show {}", &two[..10]));
    for words in ["first loss, step 21", "9.6900", "two.log:1", "activations", "Sources", "megatron-lm", "longer"] {
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
    let widest = shown.stdout.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 80, "{widest}: {}", shown.stdout);
    let whole = json_at(&folder, &format!("receipt show {two}"));
    assert_eq!(whole["receipt"]["schema"], "shardwright/receipt/1");
    assert_eq!(whole["receipt"]["prediction"]["ranks"][0]["phases"][1][0], "model");
    // By its file, too; and files that are none.
    let file = format!("store/receipts/{two}.json");
    assert_eq!(json_at(&folder, &format!("receipt show {file}"))["id"], two.as_str());
    assert_rule(&at(&folder, "receipt show launch/plan.json"), "receipt/file");
    assert_rule(&at(&folder, "receipt show zzz"), "receipt/id");
    // Retracted, with another in its place or without.
    let taken = at(&folder, &format!("receipt supersede {two} --with {one} --because again"));
    assert_eq!((taken.code, taken.stdout), (0, format!("{} is superseded by {}\n", &two[..12], &one[..12])));
    let gone = at(&folder, &format!("receipt supersede {one} --because wrong"));
    assert_eq!((gone.code, gone.stdout), (0, format!("{} is retracted\n", &one[..12])));
    assert_rule(&at(&folder, &format!("receipt supersede {one} --with {one} --because x")), "receipt/supersede");
    assert!(at(&folder, &format!("receipt show {one}")).stdout.contains("no longer believed, retracted: wrong"));
    let verified = at(&folder, "receipt verify");
    assert!(flat(&verified.stdout).contains("2 receipts and 2 retractions"), "{}{}", verified.stdout, verified.stderr);
    assert_eq!(json_at(&folder, "receipt rebuild")["receipts"], 2);
    fs::write(folder.join(&file), "damaged").unwrap();
    assert_rule(&at(&folder, "receipt verify"), "receipt/damaged");
    assert!(folder.join(format!("store/quarantine/{two}.json")).exists());
}

#[test]
fn what_cannot_be_recorded_is_refused_by_name() {
    let folder = folder("refused", "true");
    rehearsal(&folder, "one.json");
    fs::write(folder.join("other.txt"), "hello\n").unwrap();
    assert_rule(&at(&folder, "receipt record ."), "receipt/launch");
    assert_rule(&at(&folder, "receipt record launch"), "receipt/no-logs");
    assert_rule(&at(&folder, "receipt record launch --log bin"), "receipt/log");
    assert_rule(&at(&folder, "receipt record launch --log none.log"), "receipt/log");
    let unread = at(&folder, "receipt record launch --log other.txt");
    assert!(unread.code == 1 && unread.stderr.contains("hint: "), "{}", unread.stderr);
    assert_rule(&at(&folder, "receipt record --log one.json --recipe llama3-8b --kind run"), "receipt/kind");
    assert_rule(
        &at(&folder, "receipt record --log one.json --recipe llama3-8b --supersedes ab --because x"),
        "receipt/id",
    );
    assert_rule(&at(&folder, "receipt verify"), "receipt/store");
    assert!(!folder.join("store").exists(), "nothing was made");
    for line in
        ["receipt record", "receipt record --recipe llama3-8b", "receipt record launch --supersedes ab", "receipt"]
    {
        assert_eq!(at(&folder, line).code, 2, "{line}");
    }
    let nowhere = ran(program(&folder).args(["receipt", "list"]).env_clear());
    assert_rule(&nowhere, "receipt/nowhere");
    // Where it is kept: what is typed before the environment, and that before the usual place.
    for (variables, typed, place) in [
        (vec![("HOME", "home")], "", "home/.local/share/shardwright"),
        (vec![("HOME", "home"), ("XDG_DATA_HOME", "/xdg")], "", "/xdg/shardwright"),
        (vec![("HOME", "home"), ("SHARDWRIGHT_STORE", "said")], "", "said"),
        (vec![("HOME", "home"), ("SHARDWRIGHT_STORE", "said")], "--store typed", "typed"),
    ] {
        let mut command = program(&folder);
        command.env_clear().envs(variables).args(["receipt", "list", "--json"]).args(typed.split_whitespace());
        let value: Value = serde_json::from_str(&ran(&mut command).stdout).unwrap();
        assert_eq!(value["store"], place);
    }
}

/// A rehearsal is of the model made small: nothing was promised of it.
#[test]
fn a_rehearsal_is_kept_as_one() {
    let folder = folder("rehearsal", "true");
    rehearsal(&folder, "one.json");
    let job = "--recipe llama3-8b --tp 2 --on 8xH200 --engine megatron";
    let kept = json_at(&folder, &format!("receipt record --log one.json {job}"));
    assert_eq!((&kept["kind"], &kept["outcome"]["steps"]), (&json!("rehearsal"), &json!(5)));
    let shown = json_at(&folder, &format!("receipt show {}", kept["id"].as_str().unwrap()));
    assert_eq!(shown["receipt"]["prediction"], Value::Null);
}
