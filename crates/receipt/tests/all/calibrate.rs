//! Ranks that were measured on an H200, as receipts: calibrating on some lowers the error on the others.

use evidence::{Bench, DEVICE_BUSY, Evidence, Kernel, Step};
use receipt::calibrate::{Sample, fit, judge, means, samples};
use receipt::{Identity, Kind, Receipt, SCHEMA};
use serde_json::Value;
use std::collections::BTreeMap;

/// A row of `data/truth` as the receipt of a probe.
fn receipt(row: &Value) -> Option<Receipt> {
    let case = fidelity::emitted::case(row).ok()?;
    let is_nan = row["numbers"] == "same";
    let rank = row["rank"].as_u64().unwrap();
    let timed = |(i, step): (usize, &Value)| Step {
        number: i as u64 + 1,
        seconds: step["s"].as_f64(),
        warm_up: i == 0 || step["kind"] != "plain",
        nan: is_nan,
        ..Step::default()
    };
    let busy = row["profile"]["busy_s"].as_f64()?;
    let kernels = vec![Kernel { rank, name: "all".to_string(), calls: 1, seconds: busy, source: 0 }];
    let benches = vec![Bench {
        rank,
        name: DEVICE_BUSY.to_string(),
        calls: 1,
        seconds: busy,
        issue_seconds: None,
        bytes: None,
        flops: None,
        source: 0,
        line: 1,
    }];
    let steps = row["steps"].as_array()?.iter().enumerate().map(timed).collect();
    Some(Receipt {
        schema: SCHEMA.to_string(),
        kind: Kind::Probe,
        recorded: String::new(),
        supersedes: None,
        identity: Identity::default(),
        case: Some(case.to_json()),
        arguments: Vec::new(),
        overlay: Value::Null,
        versions: BTreeMap::new(),
        prediction: None,
        evidence: Evidence { steps, kernels, benches, ..Evidence::default() },
    })
}

fn read(file: &str) -> Vec<Sample> {
    let path = format!("{}/../../data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named: Vec<(String, Receipt)> =
        rows.iter().filter_map(|row| Some((row["name"].as_str().unwrap().to_string(), receipt(row)?))).collect();
    samples(named.iter().map(|(name, receipt)| (name.as_str(), receipt))).0
}

#[test]
fn what_was_measured_first_lowers_the_error_on_what_was_kept_aside() {
    let (seen, kept) = (read("emitted_kernels_h200.jsonl"), read("emitted_kept_h200.jsonl"));
    let fitted = fit(&seen);
    let (before, left_out) = means(&fitted.judged);
    assert!(left_out < before, "leaving one out: {before:.4} to {left_out:.4}");
    let (before, after) = means(&judge(&kept, &fitted.factors));
    assert!(after < before, "kept aside: {before:.4} to {after:.4}");
}
