//! Panics and work without end: one line and exit 70, or a refusal before anything is allocated.

use crate::common::{Ran, WIDE, json, ran, run};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// As typed, without a backtrace whatever the environment of the tests asks for.
fn quiet(line: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
    ran(command.args(line.split_whitespace()).env("COLUMNS", WIDE).env_remove("RUST_BACKTRACE"))
}

#[test]
fn a_panic_on_any_thread_is_one_line_to_report() {
    for (place, what) in [("main", "the command"), ("worker", "a worker"), ("loop", "a loop"), ("ranks", "a rank")] {
        let line = format!("params nam56r-mini --crash {place}");
        let ran = quiet(&line);
        assert_eq!((ran.code, ran.stdout.as_str()), (70, ""), "{place}");
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        assert!(
            ran.stderr.starts_with(&format!("bug: made to panic: {what}, at crates/cli/src/panics.rs:")),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(concat!("in shardwright ", env!("CARGO_PKG_VERSION"))), "{}", ran.stderr);
        assert!(ran.stderr.trim_end().ends_with(&line), "the command as typed: {}", ran.stderr);
    }
}

/// What was typed is shown, and cannot act on the terminal or break the line.
#[test]
fn a_hostile_command_stays_one_line() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
    let ran = ran(command.args(["params", "x\x1b[31m\ny", "--crash", "main"]).env_remove("RUST_BACKTRACE"));
    assert_eq!((ran.code, ran.stderr.lines().count()), (70, 1), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\x1b'), "{}", ran.stderr);
}

#[test]
fn a_panic_is_a_finding_for_scripts() {
    let ran = quiet("fit llama3-8b --on 8xH200 --json --crash worker");
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &answer["error"]), (70, &Value::Bool(true)));
    assert_eq!(answer["findings"][0]["rule"], "bug/panic");
    assert!(answer.get("verdict").is_none(), "nothing that was computed is believed");
}

/// A worker that died takes the launch with it, although the command went on.
#[test]
fn launch_writes_nothing_after_a_panic() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("crashed-launch");
    let line = format!("launch nam56r-mini --on 8xH200 --out {}", folder.display());
    let _ = std::fs::remove_dir_all(&folder);
    for place in ["worker", "ranks"] {
        assert_eq!(quiet(&format!("{line} --crash {place}")).code, 70, "{place}");
        assert!(!folder.exists(), "{place}");
    }
    assert_eq!(run(&line).code, 0, "without a panic it is written");
    assert!(folder.join("launch.sh").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

/// A fault that was asked for is no bug.
#[test]
fn a_rank_that_is_made_to_die_is_not_our_bug() {
    let ran = run("rehearse nam56r-mini --tp 2 --steps 1 --inject die:1@0 --dims hidden=16,vocab=32");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("comm/died"), "{}", ran.stdout);
}

#[test]
fn rehearsals_without_end_are_refused_at_once() {
    for dims in ["hidden=16777216", "vocab=1073741824", "depth=16384"] {
        let since = Instant::now();
        let ran = run(&format!("rehearse nam56r-mini --dims {dims} --work-limit 8GiB,4min"));
        // Of a build that is not optimised, on a machine that others use.
        assert!(since.elapsed() < Duration::from_secs(20), "{dims}: {:?}", since.elapsed());
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{dims}");
        assert!(ran.stderr.contains("[work/bytes]") && ran.stderr.contains("8.00 GiB are allowed"), "{}", ran.stderr);
        assert!(ran.stderr.contains("would do; or `--work-limit "), "{}", ran.stderr);
    }
}

/// The values that a refusal names do, as printed.
#[test]
fn what_a_refusal_offers_runs() {
    const LINE: &str = "rehearse nam56r-mini --dims hidden=16,vocab=32 --steps 4000";
    let refused = json(&format!("{LINE} --work-limit 5s"));
    assert_eq!(refused["findings"][0]["rule"], "work/operations");
    let hint = refused["findings"][0]["hint"].as_str().unwrap();
    let word = |after: &str| hint.split(after).nth(1).unwrap().split([' ', '`']).next().unwrap().to_string();
    let fewer = json(&format!("{} --work-limit 5s --steps {}", LINE.replace(" --steps 4000", ""), word("--steps ")));
    assert_eq!(fewer["parity"]["pass"], true, "{hint}");
    let (predicted, raised) = (&fewer["predicted_work"], word("--work-limit "));
    assert!(predicted["operations"].as_u64().unwrap() <= 5_000_000_000, "{predicted}");
    assert!(raised.ends_with("min"), "{hint}");
    let beyond = json(&format!("{LINE} --work-limit 1MiB,{raised}"));
    let rules: Vec<&Value> = beyond["findings"].as_array().unwrap().iter().map(|f| &f["rule"]).collect();
    assert_eq!(rules, ["work/bytes"], "the flag that was named raises the other limit");
}

#[test]
fn limits_that_cannot_be_read_say_how_they_are_written() {
    for wrong in ["4", "4GB", "1GiB,2GiB"] {
        let ran = run(&format!("plan nam56r-mini --on 8xH200 --work-limit {wrong}"));
        assert_eq!(ran.code, 2, "{wrong}");
        assert!(ran.stderr.contains("16GiB") || ran.stderr.contains("twice"), "{}", ran.stderr);
    }
}
