//! The help: what it shows runs as it stands, and manual pages say the same.

use crate::common::{folder, shell};

/// Lines below a title that ask to be typed.
fn typed(help: &str) -> Vec<String> {
    help.lines().filter(|line| line.starts_with("  shardwright ")).map(|line| line.trim().to_string()).collect()
}

#[test]
fn every_example_runs_as_printed() {
    let at = folder("help-examples");
    let top = shell("shardwright --help", &at, "80").stdout;
    let names = ["plan", "fit", "launch", "params", "splits", "check", "choices", "stages", "mesh", "schedule", "diff"];
    let names =
        names.iter().chain(&["axes", "recipes", "hardware", "lanes", "options", "rehearse", "probe", "receipt"]);
    let mut lines = typed(&top);
    assert_eq!(lines.pop().as_deref(), Some("shardwright serve"), "which does not end by itself");
    for name in names.chain(&["diagnose", "glossary", "man", "completions"]) {
        let own = typed(&shell(&format!("shardwright {name} --help"), &at, "80").stdout);
        assert!(!own.is_empty(), "{name}");
        lines.extend(own);
    }
    for line in lines {
        let ran = shell(&line, &at, "80");
        assert!(matches!(ran.code, 0 | 3), "{line}: {}\n{}", ran.code, ran.stderr);
    }
    assert!(at.join("pages/shardwright-receipt-compare.1").is_file());
}

#[test]
fn a_manual_page_has_what_the_help_has() {
    let at = folder("help-man");
    assert_eq!(shell("shardwright man --out pages", &at, "80").code, 0);
    let page = std::fs::read_to_string(at.join("pages/shardwright-fit.1")).unwrap();
    for word in ["--on", "--recompute", "shardwright fit llama3-70b", "EXTRA"] {
        assert!(page.replace("\\-", "-").contains(word), "{word}");
    }
    let version = shell("shardwright --version", &at, "80").stdout;
    assert!(version.starts_with(&format!("shardwright {}", env!("CARGO_PKG_VERSION"))), "{version}");
}
