//! What `./test` runs is everything there is: it names kinds of tests, and one of another kind would never run.

use std::fs;
use std::path::{Path, PathBuf};

/// Names of integration tests that `./test` runs: the last two where MPI is.
const RUN: [&str; 3] = ["all", "mpi", "processes"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files of a folder and of those below it.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

fn crates() -> Vec<PathBuf> {
    fs::read_dir(root().join("crates")).unwrap().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn integration_tests_have_names_that_are_run() {
    let script = fs::read_to_string(root().join("test")).unwrap();
    RUN.iter().for_each(|name| assert!(script.contains(&format!("--test {name}")), "{name}"));
    let mut seen = 0;
    for entry in crates().iter().flat_map(|krate| fs::read_dir(krate.join("tests"))).flatten().flatten() {
        let path = entry.path();
        if !path.join("main.rs").is_file() && path.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(RUN.contains(&name.as_str()), "./test does not run {}: make it part of tests/all", path.display());
        seen += 1;
    }
    assert!(seen >= 18, "{seen}");
}

/// What a line of a doc comment says after the fence of a block.
fn fence(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let words = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    words.trim().strip_prefix("```")
}

#[test]
fn doc_comments_hold_no_code_to_run() {
    let mut sources = Vec::new();
    crates().iter().for_each(|krate| files(&krate.join("src"), &mut sources));
    sources.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    assert!(sources.len() > 300, "only {} sources were looked at", sources.len());
    for path in sources {
        let text = fs::read_to_string(&path).unwrap();
        for opened in text.lines().filter_map(fence).step_by(2) {
            assert_eq!(opened, "text", "./test runs no code of doc comments: {}", path.display());
        }
    }
    assert_eq!([fence("    /// ```"), fence("//! ```text"), fence("// ```")], [Some(""), Some("text"), None]);
}
