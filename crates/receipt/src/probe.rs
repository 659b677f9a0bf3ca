//! Receipts of a probe: one for every class of ranks that was run, with what was predicted of that rank by itself.

use crate::record::{Kind, Prediction, RankPrediction, Receipt, StepPrediction};
use diag::{Blame, Finding};
use launch::probe::{Class, Planned};
use serde_json::json;

/// Reads the `probe.json` of a probe directory; `object` is what findings call it.
pub fn read(text: &str, object: &str) -> Result<Planned, Finding> {
    Planned::read(text).map_err(|why| {
        let message = format!("`{}` is no plan of a probe: {why}", diag::quote::terminal(object));
        Finding::error("receipt/probe", Blame::Environment, object, message)
            .hint("give the directory that `shardwright probe --out DIR` wrote")
    })
}

/// The receipt of one class. `of_launch` is what the directory's launch and the lines of the class come to; a probe's
/// prediction is of the rank by itself, and takes the place of the launch's.
pub fn receipt(planned: &Planned, class: &Class, of_launch: Receipt) -> Receipt {
    let mut receipt = Receipt { kind: Kind::Probe, prediction: Some(prediction(planned, class)), ..of_launch };
    let overlay = json!({
        "rank": class.rank, "asked_rank": class.asked_rank, "stage": class.stage, "stands_for": class.stands_for,
        "world": planned.world, "dp": planned.dp, "asked": planned.job.asked, "changes": planned.changes,
        "correction": class.correction,
    });
    match receipt.overlay.as_object_mut() {
        Some(all) => drop(all.insert("probe".to_string(), overlay)),
        None => receipt.overlay = json!({ "probe": overlay }),
    }
    receipt
}

/// What was predicted of the rank by itself, in the world that was probed.
pub fn prediction(planned: &Planned, class: &Class) -> Prediction {
    let predicted = &class.predicted;
    let step = predicted.step_seconds.map(|seconds| StepPrediction {
        seconds,
        low: None,
        high: None,
        tokens: planned.tokens,
        devices: 1,
        parts: [("kernels", predicted.kernel_seconds), ("host", predicted.host_seconds)]
            .into_iter()
            .filter_map(|(name, seconds)| Some((name.to_string(), seconds?)))
            .collect(),
        kernel_seconds: predicted.kernel_seconds,
        host_seconds: predicted.host_seconds,
    });
    Prediction {
        by: planned.by.clone(),
        profile: None,
        step,
        verdict: if predicted.unmodelled.is_some() { "unmodelled" } else { "fits" }.to_string(),
        ranks: rank(class).into_iter().collect(),
    }
}

/// Bytes of the rank; none where no ledger replays it.
fn rank(class: &Class) -> Option<RankPrediction> {
    let held = &class.predicted.held;
    let outside = ["runtime-reserve", "communicators", "allocator-overhead"];
    let lines = held.lines.iter().filter(|(name, _)| !outside.contains(&name.as_str()));
    Some(RankPrediction {
        stage: class.stage as u64,
        first_rank: class.rank,
        last_rank: class.rank,
        allocated_peak: held.allocated_peak?,
        reserved_peak: held.reserved_peak?,
        outside: held.outside?,
        host: held.host?,
        lines: lines.map(|(name, bytes)| (name.clone(), *bytes)).collect(),
        phases: class
            .predicted
            .phases
            .iter()
            .map(|phase| (phase.phase.clone(), phase.allocated, phase.allocated_peak))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Identity, SCHEMA};
    use evidence::{Evidence, Memory, MemoryKind};
    use serde_json::Value;
    use std::collections::BTreeMap;

    const PLANNED: &str = include_str!("../tests/data/probe.json");

    fn blank(evidence: Evidence) -> Receipt {
        Receipt {
            schema: SCHEMA.to_string(),
            kind: Kind::Run,
            recorded: "2026-11-16T00:00:00Z".to_string(),
            supersedes: None,
            identity: Identity::default(),
            case: None,
            arguments: Vec::new(),
            overlay: Value::Null,
            versions: BTreeMap::new(),
            prediction: None,
            evidence,
        }
    }

    #[test]
    fn every_figure_of_a_probe_has_its_prediction_beside_it() {
        let planned = read(PLANNED, "probe.json").unwrap();
        let class = &planned.classes[0];
        let memory = |phase: &str, bytes: u64| Memory {
            rank: Some(class.rank),
            kind: MemoryKind::AllocatedPeak,
            bytes,
            resolution: 0,
            phase: Some(phase.to_string()),
            step: None,
            source: 0,
            line: 1,
        };
        let evidence = Evidence { memory: vec![memory("fwdbwd1", 1 << 35)], ..Evidence::default() };
        let receipt = receipt(&planned, class, blank(evidence));
        assert_eq!(receipt.kind, Kind::Probe);
        let prediction = receipt.prediction.as_ref().unwrap();
        let rank = &prediction.ranks[0];
        let measured = &receipt.evidence.memory[0];
        let beside = rank.phases.iter().find(|(name, ..)| Some(name) == measured.phase.as_ref()).unwrap();
        assert!(beside.2 > 0 && rank.lines.values().sum::<u64>() == rank.allocated_peak);
        let step = prediction.step.as_ref().unwrap();
        assert!(step.kernel_seconds.is_some() && step.host_seconds.is_some() && step.devices == 1);
        // The world was made smaller, and the receipt says so with what that changes.
        assert_eq!(receipt.overlay["probe"]["world"], json!({ "asked": 1024, "probed": 128 }));
        let correction = receipt.overlay["probe"]["correction"].as_array().unwrap();
        assert!(correction.iter().any(|line| line["what"] == "other-optimizer" && line["add"].as_i64() < Some(0)));
        assert_eq!(Receipt { recorded: String::new(), ..receipt.clone() }.text().lines().count(), 1);
    }

    #[test]
    fn another_schema_is_refused_by_name() {
        let other = PLANNED.replace("shardwright/probe/1", "shardwright/probe/9");
        let finding = read(&other, "probe.json").unwrap_err();
        assert_eq!(finding.rule, "receipt/probe");
        assert!(finding.message.contains("shardwright/probe/9"), "{}", finding.message);
    }
}
