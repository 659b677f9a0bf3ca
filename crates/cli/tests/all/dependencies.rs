//! Which crate may depend on which: data flows one way, and each crate knows nothing of the later ones
//! (`ARCHITECTURE.md`). Dependencies of tests count as well.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Every crate by its folder, with the crates it may name. A crate may only name ones further up.
const MAY_USE: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("diag", &[]),
    ("work", &["units", "diag"]),
    ("store", &[]),
    ("reading", &["diag"]),
    ("recipe", &["units", "diag", "reading"]),
    ("hardware", &["units", "diag", "reading"]),
    ("layout", &["units", "diag", "recipe"]),
    ("case", &["units", "diag", "work", "recipe", "hardware", "layout"]),
    ("replay", &["units", "diag", "work", "recipe"]),
    ("ledger", &["units", "diag", "work", "recipe", "hardware", "layout", "case", "replay"]),
    ("memory", &["units", "diag", "work", "recipe", "hardware", "layout", "case", "replay", "ledger"]),
    ("cost", &["units", "diag", "work", "recipe", "hardware", "layout", "case"]),
    ("fleet", &["units", "diag", "work", "recipe", "hardware", "layout", "case"]),
    (
        "search",
        &["units", "diag", "work", "recipe", "hardware", "layout", "case", "replay", "ledger", "memory", "cost"],
    ),
    (
        "launch",
        &[
            "units", "diag", "work", "reading", "recipe", "hardware", "layout", "case", "replay", "ledger", "memory",
            "cost", "search",
        ],
    ),
    (
        "fidelity",
        &[
            "units", "diag", "work", "reading", "recipe", "hardware", "layout", "case", "replay", "ledger", "memory",
            "cost", "search", "launch",
        ],
    ),
    ("comm", &["units", "diag"]),
    ("checkpoint", &["units", "diag", "work", "store", "recipe", "layout"]),
    (
        "runtime",
        &[
            "units",
            "diag",
            "work",
            "store",
            "recipe",
            "layout",
            "case",
            "replay",
            "ledger",
            "memory",
            "comm",
            "checkpoint",
        ],
    ),
    ("draw", &["units", "diag"]),
    ("evidence", &["units", "diag", "checkpoint"]),
    (
        "receipt",
        &[
            "units",
            "diag",
            "work",
            "store",
            "reading",
            "recipe",
            "hardware",
            "layout",
            "case",
            "replay",
            "ledger",
            "memory",
            "cost",
            "launch",
            "fidelity",
            "checkpoint",
            "evidence",
        ],
    ),
    ("serve", &["units", "diag", "draw"]),
    (
        "cli",
        &[
            "units",
            "diag",
            "work",
            "store",
            "reading",
            "recipe",
            "hardware",
            "layout",
            "case",
            "replay",
            "ledger",
            "memory",
            "cost",
            "search",
            "launch",
            "fidelity",
            "fleet",
            "comm",
            "checkpoint",
            "runtime",
            "evidence",
            "receipt",
            "serve",
            "draw",
        ],
    ),
    ("python", &["cli"]),
    (
        "fuzz",
        &[
            "units",
            "diag",
            "recipe",
            "hardware",
            "layout",
            "case",
            "launch",
            "fidelity",
            "fleet",
            "checkpoint",
            "runtime",
            "evidence",
            "receipt",
            "serve",
            "cli",
        ],
    ),
];

/// Crates that are planned: they need not exist, but where they do the table holds.
const PLANNED: &[&str] = &["case", "replay", "ledger"];

/// One dependency as a crate's `Cargo.toml` states it.
struct Dependency {
    package: String,
    /// Folder of a crate of this workspace; `None` for crates of others.
    ours: Option<String>,
    /// Whether the crate itself needs it, rather than its tests or its build.
    is_normal: bool,
}

/// Dependencies of every crate of the workspace, by folder, as cargo reads them.
fn workspace() -> BTreeMap<String, Vec<Dependency>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let words = ["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path", manifest];
    let output = Command::new(cargo).args(words).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

fn package(package: &Value) -> (String, Vec<Dependency>) {
    let path = package["manifest_path"].as_str().unwrap().trim_end_matches("/Cargo.toml");
    let dependencies = package["dependencies"].as_array().unwrap().iter().map(|dependency| Dependency {
        package: dependency["name"].as_str().unwrap().to_string(),
        ours: dependency["path"].as_str().map(folder),
        is_normal: dependency["kind"].is_null(),
    });
    (folder(path), dependencies.collect())
}

/// The last name of a path.
fn folder(path: &str) -> String {
    path.rsplit(['/', '\\']).next().unwrap().to_string()
}

#[test]
fn every_crate_depends_only_on_what_its_row_allows() {
    let rows: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, dependencies) in workspace() {
        let Some(allowed) = rows.get(name.as_str()) else {
            wrong.push(format!("`{name}` has no row: say what it may depend on"));
            continue;
        };
        let ours: BTreeSet<&str> = dependencies.iter().filter_map(|d| d.ours.as_deref()).collect();
        let others = ours.iter().filter(|other| !allowed.contains(other));
        wrong.extend(others.map(|other| format!("`{name}` may not depend on `{other}`")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A row that stands for no crate, or names one that comes later, would allow anything.
#[test]
fn the_table_is_in_order_and_has_no_row_too_many() {
    let crates = workspace();
    let mut above: Vec<&str> = Vec::new();
    for (name, allowed) in MAY_USE {
        assert!(allowed.iter().all(|other| above.contains(other)), "`{name}` names a crate below it");
        assert!(!above.contains(name), "`{name}` has two rows");
        assert!(crates.contains_key(*name) || PLANNED.contains(name), "`{name}` does not exist");
        above.push(name);
    }
}

/// What cargo says of packages we know: otherwise the test above would see no dependency at all.
#[test]
fn dependencies_are_read() {
    let crates = workspace();
    let has = |name: &str, other: &str| crates[name].iter().any(|d| d.ours.as_deref() == Some(other) && d.is_normal);
    assert!(has("recipe", "diag") && has("cli", "runtime") && !has("units", "diag"));
    assert!(crates["recipe"].iter().any(|d| d.package == "toml" && d.ours.is_none()));
}

/// Who owns what is decided over types: JSON is for those who read rows or print answers.
#[test]
fn layout_reads_and_writes_no_json() {
    let crates = workspace();
    assert!(!crates["layout"].iter().any(|d| d.package == "serde_json" && d.is_normal));
}

/// `cargo run --release -- plan …` is the README's first command: it has to mean one program.
#[test]
fn what_cargo_runs_is_one_program() {
    let manifest = include_str!("../../../../Cargo.toml");
    assert!(manifest.contains("default-members = [\"crates/cli\"]"));
    let first = include_str!("../../../../README.md").lines().find(|line| line.starts_with("cargo run")).unwrap();
    assert!(first.starts_with("cargo run --release -- plan"), "{first}");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata");
    let default: Vec<&Value> = metadata["workspace_default_members"].as_array().unwrap().iter().collect();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let programs = packages
        .filter(|package| default.contains(&&package["id"]))
        .flat_map(|package| package["targets"].as_array().unwrap())
        .filter(|target| target["kind"][0] == "bin");
    assert_eq!(programs.count(), 1);
}
