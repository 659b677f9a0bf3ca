//! A fault that is made in a rehearsal on one axis is found from the norms of two runs, and the command that tests the
//! split runs.

use crate::common::{run, run_args};
use serde_json::Value;
use std::path::PathBuf;

const SMALL: &str = "--steps 2 --dims hidden=16,vocab=32,seq=16,depth=4";

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("localised");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn localised(folder: &std::path::Path) -> (Value, i32) {
    let path = |name: &str| folder.join(name).display().to_string();
    let ran = run_args(&["receipt", "localise", &path("one-rank.json"), &path("all-ranks.json"), "--json"]);
    (serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", ran.stdout, ran.stderr)), ran.code)
}

#[test]
fn a_fault_on_one_axis_is_found_from_two_runs() {
    // The layout has more than one axis, so that the right one has to be told from others.
    let faults = [
        ("llama3-8b --tp 2 --sp --dp 2", "unsummed:tp", "tp", "reduction"),
        ("llama3-8b --tp 2 --sp --dp 2", "unsummed:dp", "dp", "reduction"),
        ("llama3-8b --tp 2 --sp --dp 2", "unheard:sp", "tp", "forward"),
        ("llama3-8b --tp 2 --cp 2", "unheard:cp", "cp", "forward"),
        ("llama3-8b --tp 2 --pp 2", "unheard:pp", "pp", "forward"),
        ("mixtral-8x7b --tp 2 --ep 2 --etp 1 --dp 2", "unheard:ep", "ep", "forward"),
        ("mixtral-8x7b --tp 2 --etp 1 --dp 2", "unsummed:edp", "edp", "reduction"),
        ("mixtral-8x7b --tp 2 --etp 2 --dp 2", "unheard:etp", "etp", "forward"),
    ];
    for (at, (words, fault, axis, reading)) in faults.into_iter().enumerate() {
        let folder = folder(&format!("fault-{at}"));
        let ran = run(&format!("rehearse {words} {SMALL} --inject {fault} --receipts {}", folder.display()));
        assert_eq!(ran.code, 1, "{fault}: {}", ran.stdout);
        assert!(ran.stdout.contains("shardwright receipt localise"), "{}", ran.stdout);
        let (found, code) = localised(&folder);
        assert_eq!(code, 0);
        assert_eq!(
            (&found["reading"], &found["suspects"][0]["axis"]),
            (&reading.into(), &axis.into()),
            "{fault}: {found}"
        );
        assert!(
            found["suspects"].as_array().unwrap().iter().all(|s| s["axis"] == axis),
            "{fault}: {}",
            found["suspects"]
        );
        // The split itself is well: the command that tests it says so.
        let command = found["suspects"][0]["rehearse"].as_str().unwrap();
        let command = command.strip_prefix("shardwright ").unwrap();
        let tested = run(&format!("{command} {SMALL}"));
        assert_eq!(tested.code, 0, "{command}: {}{}", tested.stdout, tested.stderr);
    }
}

#[test]
fn runs_that_agree_do_not_part() {
    let folder = folder("agree");
    let ran = run(&format!("rehearse nam56r --tp 2 --ep 2 --etp 1 {SMALL} --receipts {}", folder.display()));
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    let (found, code) = localised(&folder);
    assert_eq!((code, found["parted"].is_null(), found["first"].is_null()), (0, true, true), "{found}");
    // Two rehearsals are compared like other runs.
    let path = |name: &str| folder.join(name).display().to_string();
    let ran = run_args(&["receipt", "compare", &path("one-rank.json"), &path("all-ranks.json"), "--json"]);
    let compared: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((compared["layer"].as_str(), ran.code), (Some("infrastructure"), 0), "{compared}");
    assert!(["bits", "order"].contains(&compared["losses"]["same"].as_str().unwrap_or("")), "{}", compared["losses"]);
}

#[test]
fn without_norms_nothing_is_claimed() {
    let folder = folder("bare");
    assert_eq!(run(&format!("rehearse llama3-8b --tp 2 {SMALL} --receipts {}", folder.display())).code, 0);
    for name in ["one-rank.json", "all-ranks.json"] {
        let path = folder.join(name);
        let mut value: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        value["evidence"]["tensors"] = Value::Array(Vec::new());
        std::fs::write(&path, value.to_string()).unwrap();
    }
    let path = |name: &str| folder.join(name).display().to_string();
    let ran = run_args(&["receipt", "localise", &path("one-rank.json"), &path("all-ranks.json")]);
    assert!(ran.code == 1 && ran.stderr.contains("[receipt/nothing-parts]"), "{}", ran.stderr);
}

#[test]
fn norms_are_written_as_the_hook_writes_them() {
    let path = folder("norms").with_extension("jsonl");
    let ran = run(&format!("rehearse llama3-8b --tp 2 {SMALL} --stats {}", path.display()));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for path in [path.clone(), path.with_extension("one-rank.jsonl")] {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().all(|line| line["schema"] == "shardwright/hook/1"));
        let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
        assert_eq!((of("start"), of("step"), of("end")), (1, 2, 1));
        let tensors = |tensor: &str| lines.iter().filter(|line| line["tensor"] == tensor).count();
        // The stream that enters, four layers of two blocks each, and the stream behind every layer.
        assert_eq!((tensors("activation"), tensors("activation-gradient")), (2 * 13, 2 * 5));
        assert!(tensors("gradient") > 0);
    }
}

#[test]
fn faults_that_nothing_can_show_are_refused() {
    for fault in ["unsummed:dp", "unheard:sp", "unheard:cp"] {
        let ran = run(&format!("rehearse llama3-8b --pp 2 {SMALL} --inject {fault}"));
        assert!(ran.code == 1 && ran.stderr.contains("[rehearse/inject]"), "{fault}: {}", ran.stderr);
    }
    assert_eq!(run("rehearse llama3-8b --tp 2 --inject unsummed:cp").code, 2);
}
