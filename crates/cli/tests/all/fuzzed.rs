//! Whole commands drawn at random, as `fuzz/commands` draws them; a debug build, so that arithmetic is
//! checked everywhere.

use std::process::Command;

#[test]
fn whole_commands_hold() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/commands");
    let keep = concat!(env!("CARGO_TARGET_TMPDIR"), "/fuzzed");
    let words = ["--runs", "120", "--seed", "tests", "--jobs", "2", "--seconds", "100", "--keep", keep];
    let mut run = Command::new("python3");
    run.arg(script).args(words).args(["--binary", env!("CARGO_BIN_EXE_shardwright")]);
    let output = run.output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
