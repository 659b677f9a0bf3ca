//! Writes ranks that were measured on an H200 before there was `probe` as receipts of probes: rows of
//! `data/truth/emitted_*_h200.jsonl`, whose launches we wrote and Megatron's own trainer ran.
//!
//! usage: cargo run --release -p shardwright-receipt --example measured FOLDER

use case::Case;
use evidence::Evidence;
use receipt::{About, Kind, Prediction, RankPrediction, Receipt, SCHEMA};
use serde_json::{Value, json};
use std::path::Path;

/// Files with their rows' day, the last of which was measured after the Megatron ledger last changed.
const FILES: [(&str, &str); 3] = [
    ("emitted_kernels_h200.jsonl", "2026-11-16T03:00:00Z"),
    ("emitted_again_h200.jsonl", "2026-11-16T06:15:00Z"),
    ("emitted_kept_h200.jsonl", "2026-11-16T06:07:00Z"),
];

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    std::fs::create_dir_all(&folder).expect("a folder that can be made");
    for (file, day) in FILES {
        let path = format!("{}/../../data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        for (number, line) in text.lines().enumerate() {
            let row: Value = serde_json::from_str(line).expect("a row");
            let name = row["name"].as_str().expect("a name");
            let Ok(case) = fidelity::emitted::case(&row) else { continue };
            let receipt = receipt(&row, &case, &format!("data/truth/{file}:{}", number + 1), day);
            let to = Path::new(&folder).join(format!("{name}.json"));
            std::fs::write(&to, receipt.text()).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
            println!("{}  {}", &receipt.id()[..12], to.display());
        }
    }
}

fn receipt(row: &Value, case: &Case, path: &str, day: &str) -> Receipt {
    let by = env!("CARGO_PKG_VERSION");
    let rank = row["rank"].as_u64().expect("a rank");
    let stage = row["stage"].as_u64().unwrap_or(0);
    let mut promised = Prediction::of_case(by, case);
    promised.ranks.retain(|class: &RankPrediction| class.stage == stage);
    let alone = cost::alone(case, stage as usize, cost::Numbers::stood_in(case, false));
    promised.step = promised.step.zip(alone.ok()).map(|(mut step, alone)| {
        (step.seconds, step.low, step.high, step.devices) = (alone.step, None, None, 1);
        (step.kernel_seconds, step.host_seconds) = (Some(alone.kernels), Some(alone.host));
        step.parts = [("kernels".to_string(), alone.kernels), ("host".to_string(), alone.host)].into();
        step
    });
    let About { identity, case, arguments, mut overlay, versions, prediction } =
        About::of_case(case, by, Some(promised));
    overlay["probe"] = json!({
        "rank": rank, "stage": stage, "taken": "by the script that `probe` was made of; other ranks stood in for",
    });
    Receipt {
        schema: SCHEMA.to_string(),
        kind: Kind::Probe,
        recorded: day.to_string(),
        supersedes: None,
        identity,
        case,
        arguments,
        overlay,
        versions,
        prediction,
        evidence: evidence(row, rank, path),
    }
}

/// The row in the hook's lines, read back: one way to evidence.
fn evidence(row: &Value, rank: u64, path: &str) -> Evidence {
    let mut lines = vec![json!({
        "kind": "start", "engine": "megatron", "world": row["world"],
        "versions": { "megatron-core": "0.19.2", "transformer-engine": "2.13.0", "torch": "2.11.0" },
        "machine": { "device": "NVIDIA H200" },
    })];
    let memory = |phase: &str, held: &Value| {
        json!({
            "kind": "memory", "phase": phase, "allocated": held["alloc"], "allocated_peak": held["peak"],
            "reserved": held["reserved"], "reserved_peak": held["reserved_peak"], "retries": held["retries"],
        })
    };
    lines.push(memory("optimizer", &row["setup"]));
    let is_nan = row["numbers"] == "same";
    for (i, step) in row["steps"].as_array().into_iter().flatten().enumerate() {
        lines.push(memory(&format!("opt{i}"), step));
        // What ran under a profiler is no step's time.
        if step["kind"].as_str().unwrap_or("plain") == "plain" {
            lines.push(json!({
                "kind": "step", "number": i + 1, "seconds": step["s"], "nan": is_nan, "warm_up": i == 0,
            }));
        }
    }
    for kernel in row["profile"]["top"].as_array().into_iter().flatten() {
        let seconds = kernel[2].as_f64().unwrap_or(0.0) / 1e6;
        lines.push(json!({ "kind": "kernel", "name": kernel[0], "calls": kernel[1], "seconds": seconds }));
    }
    if let (Some(seconds), Some(busy)) = (row["profile"]["step_s"].as_f64(), row["profile"]["busy_s"].as_f64()) {
        lines.push(json!({ "kind": "profile", "seconds": seconds, "busy_seconds": busy }));
    }
    lines.push(json!({ "kind": "end", "status": "finished" }));
    let text: String = lines
        .into_iter()
        .map(|mut line| {
            (line["schema"], line["rank"]) = (json!(evidence::HOOK_SCHEMA), json!(rank));
            format!("{line}\n")
        })
        .collect();
    evidence::read(path, text.as_bytes(), None, &mut |_| {})
        .unwrap_or_else(|finding| panic!("{path}: {}", finding.message))
}
