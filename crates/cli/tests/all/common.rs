//! Running the built binary as a user would.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a command printed, and how it ended.
#[allow(dead_code)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

/// Runs `shardwright` with words split at spaces.
#[allow(dead_code)]
pub fn run(line: &str) -> Ran {
    run_args(&line.split_whitespace().collect::<Vec<_>>())
}

/// Columns of a screen on which no table or sentence has to be broken.
#[allow(dead_code)]
pub const WIDE: &str = "400";

/// Runs `shardwright` with these arguments, on a wide screen.
#[allow(dead_code)]
pub fn run_args(args: &[&str]) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_shardwright")).args(args).env("COLUMNS", WIDE))
}

/// Runs a command.
#[allow(dead_code)]
pub fn ran(command: &mut Command) -> Ran {
    let output: Output = command.output().expect("the binary runs");
    Ran {
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
        code: output.status.code().unwrap_or(-1),
    }
}

/// Runs a command and reads its JSON answer.
#[allow(dead_code)]
pub fn json(line: &str) -> serde_json::Value {
    let ran = run(&format!("{line} --json"));
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{line}: {e}\n{}", ran.stdout))
}

/// A file of this test run's own, with this content.
#[allow(dead_code)]
pub fn scratch(name: &str, text: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

/// An empty folder of this test run's own.
#[allow(dead_code)]
pub fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

/// Runs a line as a shell does, with `shardwright` on its path.
#[allow(dead_code)]
pub fn shell(line: &str, at: &Path, columns: &str) -> Ran {
    let script = format!("shardwright() {{ \"$BIN\" \"$@\"; }}\n{line}");
    let bin = env!("CARGO_BIN_EXE_shardwright");
    ran(Command::new("bash").args(["-c", &script]).env("BIN", bin).env("COLUMNS", columns).current_dir(at))
}
