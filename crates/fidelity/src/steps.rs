//! Steps of small stacks timed on one device (`data/truth/steps_h200.jsonl`, by
//! `tools/measure_steps.py`). Forward and backward are compared: nothing travels, and the script's
//! AdamW keeps its state in bf16, which no engine does.

use crate::measured::Case;
use crate::{Figure, Judged, Part, Refusal, kind};
use case::Options;
use case::options::{AttentionKernel, Elementwise};
use cost::Prices;
use hardware::Cluster;
use layout::request::Engine;
use layout::{StagePlan, check};
use serde_json::Value;

/// Judges a row with `step_seconds`: time only.
pub(super) fn judge(row: &Value, parts: &[Part]) -> Judged {
    let mut judged = Judged {
        name: row["case"]["name"].as_str().unwrap_or("unnamed").to_string(),
        kind: "dense",
        source: "steps-h200".to_string(),
        device: "H200".to_string(),
        is_pretraining: false,
        sweep: String::new(),
        tokens_per_device: 0.0,
        figures: Vec::new(),
        refusals: Vec::new(),
        params_differ: None,
    };
    if !parts.contains(&Part::Time) {
        return judged;
    }
    let measured = ["forward_seconds", "backward_seconds"].map(|key| row[key].as_f64());
    let predicted = Case::read(&row["case"]).and_then(|case| {
        judged.kind = kind(&case.recipe);
        predict(&case, &row["case"])
    });
    match (predicted, measured) {
        (Ok(predicted), [Some(forward), Some(backward)]) => {
            judged.figures.push(Figure::step_time(forward + backward, predicted));
        }
        (Ok(_), _) => {
            let why = "the row lacks the seconds of a pass".to_string();
            judged.refusals.push(Refusal { part: Some(Part::Time), why });
        }
        (Err(why), _) => judged.refusals.push(Refusal { part: Some(Part::Time), why }),
    }
    judged
}

/// Seconds of forward and backward.
fn predict(case: &Case, told: &Value) -> Result<f64, String> {
    let checked = check(&case.recipe, &case.request);
    let layout = checked.layout.clone().filter(|_| checked.is_legal());
    let layout = layout.ok_or_else(|| "the layout is refused".to_string())?;
    let cluster = Cluster::parse("1xH200").map_err(|f| f.message)?;
    let mut options = Options::of(Some(Engine::Fsdp2), &case.recipe);
    let is_compiled = told["compile"].as_bool() == Some(true);
    options.kernels.elementwise = if is_compiled { Elementwise::Compiled } else { Elementwise::Eager };
    options.kernels.attention = match told["attention"].as_str() {
        Some("flash") => AttentionKernel::Flash2,
        _ => AttentionKernel::Flash3,
    };
    let stages = StagePlan::new(&case.recipe, &layout, None).map_err(|f| f.message)?;
    let prices = Prices::new(&case.recipe, &layout, &cluster, &options).map_err(|e| e.to_string())?;
    let step = prices.step(&layout, &stages).map_err(|e| e.to_string())?;
    let passes = step.parts.iter().filter(|line| !matches!(line.name, "optimizer" | "reserve"));
    Ok(passes.map(|line| line.seconds).sum())
}
