//! Rule ids and the objects of findings are for people and scripts. Inside the house types decide:
//! nothing matches on their text outside the file that says it.

use std::fs;
use std::path::{Path, PathBuf};

/// Files whose whole point is to know the ids they say.
const OWN: [&str; 1] = ["crates/comm/src/failure.rs"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Code of a file, tests and comments apart.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let before_tests = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    before_tests.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// What decides by the text of an id or an object.
fn decides(line: &str) -> bool {
    const BY_TEXT: [&str; 8] = [
        ".rule == \"",
        ".rule != \"",
        "match finding.rule {",
        "match f.rule {",
        "matches!(finding.rule,",
        ".rule.starts_with(",
        ".object == \"",
        ".object.as_str() {",
    ];
    BY_TEXT.iter().any(|pattern| line.contains(pattern))
}

#[test]
fn no_text_of_an_id_or_object_decides_outside_its_own_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut files = Vec::new();
    for krate in fs::read_dir(root.join("crates")).unwrap().flatten() {
        sources(&krate.path().join("src"), &mut files);
    }
    assert!(files.len() > 300, "only {} sources were looked at", files.len());
    let mut seen = Vec::new();
    for path in &files {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        if OWN.contains(&name.as_str()) || name.ends_with("tests.rs") || name.starts_with("crates/fuzz/") {
            continue;
        }
        let lines = code(path);
        seen.extend(lines.lines().filter(|line| decides(line)).map(|line| format!("{name}: {}", line.trim())));
    }
    assert!(seen.is_empty(), "{seen:#?}");
}

#[test]
fn the_test_sees_what_it_looks_for() {
    assert!(decides("    if finding.rule == \"tp/heads\" {"));
    assert!(decides("matches!(finding.rule, \"comm/deadline\")"));
    assert!(!decides("findings.iter().any(|f| RULE.found(f))"));
}
