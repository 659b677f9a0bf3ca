//! Receipts and folders of a test's own.

use receipt::{About, Identity, Kind, Receipt, Store};
use std::path::{Path, PathBuf};

/// A folder that nothing is in.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("receipts-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A receipt of a run that is told from others by its number.
pub fn receipt(number: u64) -> Receipt {
    let step = |at: u64| evidence::Step {
        number: at,
        seconds: Some(0.5 + number as f64 / 1024.0),
        loss: Some(11.0 / at as f64),
        line: at,
        ..evidence::Step::default()
    };
    let mut run = evidence::Evidence { steps: (1..=6).map(step).collect(), ..evidence::Evidence::default() };
    run.sources.push(evidence::Source {
        format: evidence::Format::MegatronLm,
        path: format!("logs/{number}.log"),
        bytes: 100,
        sha256: receipt::sha256("a log"),
        digits: Default::default(),
        unread: 0,
        first_unread: None,
    });
    run.mark_warm_up();
    let identity = Identity {
        launch_id: Some(format!("launch-{number}")),
        ..Identity::of_recipe(&recipe::builtin::find("nam56r-mini").unwrap())
    };
    let about = About {
        identity,
        case: None,
        arguments: Vec::new(),
        overlay: serde_json::Value::Null,
        versions: Default::default(),
        prediction: None,
    };
    Receipt::new(Kind::Run, "2026-11-16T00:00:00Z".to_string(), about, run)
}

/// Names of files in a folder of a store.
pub fn names(store: &Store, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(store.root().join(folder)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
