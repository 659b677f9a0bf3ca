//! What was promised, as a launch writes it down and as a job is priced now.

use crate::record::{Prediction, RankPrediction, StepPrediction};
use case::Case;
use launch::record::{MemoryVerdict, StageMemory};
use memory::fit::{Fit, HEADROOM};
use serde_json::{Value, json};

impl Prediction {
    /// From what a launch's record says: `memory` and `step` of its `launch.json`.
    pub fn of_record(by: &str, memory: &MemoryVerdict, step: &Value, devices: u64) -> Prediction {
        Prediction {
            by: by.to_string(),
            profile: None,
            step: step_of(step, devices),
            verdict: memory.verdict.clone(),
            ranks: memory.by_stage.iter().map(rank_of).collect(),
        }
    }

    /// Of a job that is priced now; how long that takes is the caller's to limit.
    pub fn of_case(by: &str, case: &Case) -> Prediction {
        let memory = match Fit::price(case, HEADROOM) {
            Ok(fit) => MemoryVerdict::of(&fit, false),
            Err(reason) => MemoryVerdict::unmodelled(case, &reason, false),
        };
        let step = cost::step(case).map_or(Value::Null, |step| json!(step));
        Prediction::of_record(by, &memory, &step, case.layout.world)
    }
}

fn step_of(step: &Value, devices: u64) -> Option<StepPrediction> {
    let seconds = step["seconds"].as_f64()?;
    let rate = step["tokens_per_second_per_device"].as_f64()?;
    let part = |part: &Value| Some((part["name"].as_str()?.to_string(), part["seconds"].as_f64()?));
    Some(StepPrediction {
        seconds,
        low: step["interval"]["low"].as_f64(),
        high: step["interval"]["high"].as_f64(),
        tokens: (rate * seconds * devices as f64).round() as u64,
        devices,
        parts: step["parts"].as_array().into_iter().flatten().filter_map(part).collect(),
        kernel_seconds: None,
        host_seconds: None,
    })
}

fn rank_of(stage: &StageMemory) -> RankPrediction {
    RankPrediction {
        stage: stage.stage as u64,
        first_rank: stage.first_rank,
        last_rank: stage.last_rank,
        allocated_peak: stage.allocated_peak_bytes,
        reserved_peak: stage.reserved_peak_bytes,
        outside: stage.outside_bytes,
        host: stage.host_bytes,
        lines: stage.lines.clone(),
        phases: stage
            .phases
            .iter()
            .map(|phase| (phase.phase.clone(), phase.allocated_bytes, phase.allocated_peak_bytes))
            .collect(),
    }
}
