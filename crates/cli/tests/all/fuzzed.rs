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

/// A file with a mistake a line is refused with what a person can read, and no slower for each.
#[test]
fn of_many_mistakes_some_are_shown() {
    let folder = std::path::PathBuf::from(concat!(env!("CARGO_TARGET_TMPDIR"), "/mistakes"));
    std::fs::create_dir_all(&folder).unwrap();
    let keys: String = (0..20_000).map(|i| format!("unknown_key_{i} = {i}\n")).collect();
    let flags: String = (0..20_000).map(|i| format!(" --unknown-flag-{i} {i}")).collect();
    for (file, text, words) in [
        ("many.toml", format!("name = \"x\"\n{keys}"), ["params", "many.toml"]),
        ("many.sh", format!("python pretrain_gpt.py --num-layers 4{flags}\n"), ["import", "many.sh"]),
    ] {
        std::fs::write(folder.join(file), text).unwrap();
        let run = Command::new(env!("CARGO_BIN_EXE_shardwright")).args(words).current_dir(&folder).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{said}");
        assert!(said.lines().count() < 1000 && said.trim_end().ends_with("more; --json has them all"), "{file}");
    }
}
