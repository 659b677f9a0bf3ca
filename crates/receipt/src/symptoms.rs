//! What a receipt shows of things that went wrong, in words that `diagnose` knows.

use crate::Receipt;
use evidence::EventKind;
use serde::Serialize;

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Symptom {
    /// What was recorded, and where.
    pub seen: String,
    /// The diagnosis it is known by; none where the source's own words are looked up.
    pub diagnosis: Option<&'static str>,
    /// Words to look up.
    pub words: String,
}

/// What makes ranks of this job wait for one another, if one thing does: unevenly routed experts, then uneven stages.
fn straggler(receipt: &Receipt) -> Option<&'static str> {
    let has_experts = receipt.identity.features.iter().any(|feature| feature == "moe");
    let stages = receipt.case.as_ref().and_then(|case| case["layout"]["pp"].as_u64()).unwrap_or(1);
    if has_experts {
        return Some("ep-imbalance");
    }
    (stages > 1).then_some("pp-bubble")
}

/// Everything that went wrong, each kind once, in the order it happened.
pub fn symptoms(receipt: &Receipt) -> Vec<Symptom> {
    let evidence = &receipt.evidence;
    let mut out: Vec<Symptom> = Vec::new();
    let stepped = evidence.steps.iter().map(|step| step.number).max();
    for event in &evidence.events {
        let place =
            evidence.sources.get(event.source).map_or(String::new(), |s| format!(" ({}:{})", s.path, event.line));
        let at = match (event.step, event.rank) {
            (Some(step), Some(rank)) => format!(" at step {step} on rank {rank}"),
            (Some(step), None) => format!(" at step {step}"),
            (None, Some(rank)) => format!(" on rank {rank}"),
            (None, None) => String::new(),
        };
        let said = if event.detail.is_empty() { String::new() } else { format!(": {}", event.detail) };
        let (what, diagnosis) = match event.kind {
            // Before a step ran, what starting takes is at fault and not what steps keep.
            EventKind::OutOfMemory if stepped.is_none() => {
                ("out of memory before the first step", Some("startup-peak"))
            }
            EventKind::OutOfMemory => ("out of memory", Some("device-memory")),
            EventKind::AllocationRetry => ("the allocator gave its cache back and asked again", Some("device-memory")),
            EventKind::Straggler => ("a straggler", straggler(receipt)),
            EventKind::Failure => ("a failure", None),
            _ => continue,
        };
        let seen = format!("{what}{at}{said}{place}");
        let words = if event.detail.is_empty() { what.to_string() } else { event.detail.clone() };
        if !out.iter().any(|known| known.diagnosis == diagnosis && (diagnosis.is_some() || known.words == words)) {
            out.push(Symptom { seen, diagnosis, words });
        }
    }
    let bad = evidence.steps.iter().find(|step| step.nan || step.loss.is_some_and(|loss| !loss.is_finite()));
    if let Some(step) = bad {
        let all = evidence.steps.iter().filter(|s| s.nan || s.loss.is_some_and(|loss| !loss.is_finite())).count();
        let seen = format!("the loss or a gradient is no number from step {} on, {all} steps in all", step.number);
        let words = "nan loss after step".to_string();
        out.push(Symptom { seen, diagnosis: Some("not-a-number"), words });
    }
    out
}
