//! `docs/mission.md` run row by row: every command as printed, and what a reader is told to see.

use crate::common::Ran;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/mission.md");

/// Rows of each part.
const PARTS: [(char, usize); 6] = [('A', 12), ('B', 6), ('C', 7), ('D', 7), ('E', 5), ('F', 12)];

/// Rows of the third reading that have something to run.
const THIRD: [&str; 3] = ["G1", "G2", "G6"];

/// A command of a row, how it ends, and what its output holds.
pub(crate) struct Shown {
    pub line: String,
    code: i32,
    pub see: Vec<String>,
}

pub(crate) struct Row {
    pub label: String,
    pub shown: Vec<Shown>,
}

/// A page as rows: `### LABEL …`, then blocks of commands, each with a line that starts with `See`.
pub(crate) fn rows_of(page: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("### ") {
            let label = title.split_whitespace().next().expect("a label").to_string();
            rows.push(Row { label, shown: Vec::new() });
        } else if line == "```sh" {
            let row = rows.last_mut().expect("a command stands below a row");
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            row.shown.extend(block.iter().map(|line| Shown { line: line.to_string(), code: 0, see: Vec::new() }));
        } else if line.starts_with("See") {
            let last = rows.last_mut().and_then(|row| row.shown.last_mut()).expect("a command to see something of");
            last.see.extend(line.split('`').skip(1).step_by(2).map(str::to_string));
            if let Some(at) = line.find("exit ") {
                last.code =
                    line[at + 5..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
            }
        }
    }
    rows
}

/// A folder with what the page's commands read, and room for what they write.
fn folder(part: char) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mission-{part}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    for name in ["docs", "data"] {
        std::os::unix::fs::symlink(project.join(name), folder.join(name)).unwrap();
    }
    folder
}

/// Runs a line as a shell does, with our binary where `shardwright` stands.
fn run(line: &str, folder: &Path) -> Ran {
    let binary = Path::new(env!("CARGO_BIN_EXE_shardwright"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let shell = ["-o", "pipefail", "-c", line];
    let output = Command::new("bash")
        .args(shell)
        .current_dir(folder)
        .envs([("PATH", path.as_str()), ("COLUMNS", "200")])
        .output()
        .expect("bash runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Ran { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code().unwrap_or(-1) }
}

/// Columns are for the eye: what is compared has single spaces.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn holds(part: char) {
    let rows = rows_of(PAGE);
    check(rows.iter().filter(|row| row.label.starts_with(part)), &folder(part));
}

/// Runs the commands of rows in a folder, and looks for what a reader is told to see.
pub(crate) fn check<'a>(rows: impl Iterator<Item = &'a Row>, folder: &Path) {
    let mut wrong = Vec::new();
    for row in rows {
        for shown in &row.shown {
            let ran = run(&shown.line, folder);
            let printed = squeezed(&format!("{}\n{}", ran.stdout, ran.stderr));
            if ran.code != shown.code {
                let (code, tail) = (ran.code, ran.stderr.lines().next().unwrap_or_default());
                wrong.push(format!("{}: `{}` exits {code}, not {}: {tail}", row.label, shown.line, shown.code));
            }
            let missing = shown.see.iter().filter(|text| !printed.contains(&squeezed(text)));
            wrong.extend(missing.map(|text| format!("{}: `{}` does not print `{text}`", row.label, shown.line)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_row_has_a_command_and_something_to_see() {
    let rows = rows_of(PAGE);
    let parts = PARTS.iter().flat_map(|&(part, count)| (1..=count).map(move |n| format!("{part}{n}")));
    let expected: Vec<String> = parts.chain(THIRD.map(str::to_string)).collect();
    let found: Vec<&str> = rows.iter().map(|row| row.label.as_str()).collect();
    assert_eq!(found, expected);
    for row in &rows {
        assert!(!row.shown.is_empty(), "{} has no command", row.label);
        assert!(row.shown.iter().all(|shown| !shown.see.is_empty()), "{}: nothing to see", row.label);
    }
    let lines: BTreeSet<&str> = rows.iter().flat_map(|row| &row.shown).map(|shown| shown.line.as_str()).collect();
    assert!(lines.iter().all(|line| line.contains("shardwright ")), "{lines:?}");
}

#[test]
fn part_a_memory() {
    holds('A');
}

#[test]
fn part_b_splits() {
    holds('B');
}

#[test]
fn part_c_naming() {
    holds('C');
}

#[test]
fn part_d_what_can_be_split() {
    holds('D');
}

#[test]
fn part_e_lanes() {
    holds('E');
}

#[test]
fn part_f_second_reading() {
    holds('F');
}

#[test]
fn part_g_third_reading() {
    holds('G');
}
