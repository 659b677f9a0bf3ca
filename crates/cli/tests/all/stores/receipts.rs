//! `receipt record` on a file system that fails, and killed at random calls. It is apart from the other writers: what
//! it leaves besides its target is an index, which is made again.

use super::field::shim;
use super::{Random, number};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with the log of a rehearsal, and a store.
struct Field(PathBuf);

impl Field {
    fn new(name: &str) -> Field {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stores-receipts-{name}"));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Field(root.canonicalize().unwrap())
    }

    /// A log that no other run of this test has.
    fn log(&self, run: u64) {
        let losses: Vec<f64> = (1..=5).map(|step| 11.0 / (step + run) as f64).collect();
        let text = serde_json::json!({ "schema": "shardwright/1", "losses": { "all_ranks": losses }, "first_step": 0 });
        fs::write(self.0.join("log.json"), text.to_string()).unwrap();
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
        command.args(line.split_whitespace()).args(["--store", "kept", "--json"]).current_dir(&self.0);
        command.env("LD_PRELOAD", shim()).env("SHIM_ROOT", self.0.join("kept"));
        command
    }

    fn record(&self) -> Command {
        self.command("receipt record --log log.json --recipe llama3-8b --tp 2")
    }

    fn json(&self, line: &str) -> Value {
        let output = self.command(line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Names that the list has; every file is whole and nothing was set aside.
    fn listed(&self) -> Vec<String> {
        let names = |value: &Value| {
            value["receipts"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_string()).collect()
        };
        let verified = self.json("receipt verify");
        let is_quiet = verified["findings"].as_array().unwrap().iter().all(|note| note["rule"] == "receipt/index");
        assert!(is_quiet && !self.0.join("kept/quarantine").exists(), "{verified}");
        names(&self.json("receipt list --all"))
    }
}

fn id(output: &Output) -> String {
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["id"].as_str().unwrap().to_string()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    both.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn receipts_survive_faults_and_kills_at_random_calls() {
    let (field, mut random) = (Field::new("faults"), Random::new(23));
    field.log(0);
    let count = field.0.join("count");
    let first = field.record().env("SHIM_COUNT", &count).output().unwrap();
    assert!(first.status.success(), "{first:?}");
    let calls: u64 = fs::read_to_string(&count).unwrap().lines().last().unwrap().parse().unwrap();
    let (mut kept, mut refused, mut killed) = (vec![id(&first)], 0, 0);
    let runs = number("SHARDWRIGHT_FAULTS", 27);
    for run in 1..=runs {
        field.log(run);
        let kind = ["enospc", "eio", "eintr", "short", "full", "gone", "readonly", "kill"][random.below(8) as usize];
        let call = 1 + random.below(calls);
        let output = field.record().env("SHIM_KIND", kind).env("SHIM_AT", call.to_string()).output().unwrap();
        let what = format!("run {run}, {kind} at call {call} of {calls}: {}", text(&output));
        match output.status.code() {
            Some(0) => kept.push(id(&output)),
            Some(1) => {
                refused += 1;
                assert!(text(&output).contains("os error"), "{what}");
            }
            None => {
                assert_eq!(output.status.signal(), Some(9), "{what}");
                killed += 1;
            }
            other => panic!("{other:?}: {what}"),
        }
        let listed = field.listed();
        let missing: Vec<&String> = kept.iter().filter(|id| !listed.contains(id)).collect();
        assert!(missing.is_empty(), "{what}: {missing:?} are gone");
    }
    println!("{runs} receipts with faults: {} kept, {refused} refused, {killed} killed", kept.len() - 1);
    assert!(refused > runs / 10 && killed > 0, "{refused} refused, {killed} killed");
}

/// A disk that is full, and one that takes nothing: what was kept is there, can be listed, and the error says what to do.
#[test]
fn a_full_disk_and_a_read_only_store_end_in_a_clear_error() {
    let field = Field::new("full");
    field.log(0);
    let first = id(&field.record().output().unwrap());
    field.log(1);
    for (kind, words) in [("full", "No space left on device"), ("readonly", "Read-only file system")] {
        let output = field.record().env("SHIM_KIND", kind).env("SHIM_AT", "1").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let finding = &said["findings"][0];
        assert_eq!(finding["rule"], "receipt/store", "{said}");
        let message = finding["message"].as_str().unwrap();
        assert!(message.starts_with("nothing was recorded: ") && message.contains(words), "{message}");
        assert!(finding["hint"].as_str().unwrap().contains("--store DIR"), "{finding}");
        assert_eq!(field.listed(), [first.clone()]);
        let left: Vec<_> = fs::read_dir(field.0.join("kept/receipts")).unwrap().collect();
        assert_eq!(left.len(), 1, "{kind}: {left:?}");
    }
    // What cannot be written can be read, without an index if need be.
    for is_indexed in [true, false] {
        let mut list = field.command("receipt list");
        let listed = list.env("SHIM_KIND", "readonly").env("SHIM_AT", "1").output().unwrap();
        assert!(listed.status.success() && text(&listed).contains(&first), "{listed:?}");
        assert!(text(&listed).contains("receipt/index"), "it says that the index is not used: {listed:?}");
        let mut show = field.command(&format!("receipt show {}", &first[..8]));
        let shown = show.env("SHIM_KIND", "readonly").env("SHIM_AT", "1").output().unwrap();
        assert!(shown.status.success() && text(&shown).contains(&first), "{shown:?}");
        if is_indexed {
            fs::remove_file(field.0.join("kept/index.sqlite")).unwrap();
        }
    }
    let mut rebuild = field.command("receipt rebuild");
    let refused = rebuild.env("SHIM_KIND", "readonly").env("SHIM_AT", "1").output().unwrap();
    assert!(refused.status.code() == Some(1) && text(&refused).contains("receipts are untouched"), "{refused:?}");
}
