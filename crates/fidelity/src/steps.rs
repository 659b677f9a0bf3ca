//! Steps of small stacks timed on one device (`data/truth/steps_h200.jsonl`, by
//! `tools/measure_steps.py`). Forward and backward are compared: nothing travels, and the script's
//! AdamW keeps its state in bf16, which no engine does.

use crate::{Figure, Judged, Part, Why, kind, lay_out, said};
use case::options::{AttentionKernel, Elementwise};
use case::{Case, Options};
use hardware::Cluster;
use layout::Engine;
use serde_json::Value;

/// Judges a row with `step_seconds`: time only.
pub(super) fn judge(row: &Value, parts: &[Part]) -> Judged {
    let mut judged = Judged::of_our_own(&row["case"]["name"], "steps-h200");
    judged.is_pretraining = false;
    if !parts.contains(&Part::Time) {
        return judged;
    }
    if let Err(why) = predict(row, &mut judged) {
        judged.refuse(Part::Time, why);
    }
    judged
}

fn predict(row: &Value, judged: &mut Judged) -> Result<(), Why> {
    let case = case(&row["case"])?;
    judged.kind = kind(&case.recipe);
    let [Some(forward), Some(backward)] = ["forward_seconds", "backward_seconds"].map(|key| row[key].as_f64()) else {
        return Err("the row lacks the seconds of a pass".into());
    };
    let step = cost::step(&case)?;
    let passes = step.parts.iter().filter(|line| !matches!(line.name, "optimizer" | "reserve"));
    judged.figures.push(Figure::step_time(forward + backward, passes.map(|line| line.seconds).sum()));
    Ok(())
}

/// The job of a row. The script is nobody's engine; its kernels are torch's own, as FSDP2's are.
fn case(said: &Value) -> Result<Case, Why> {
    let cluster = Cluster::parse("1xH200").map_err(|finding| finding.message)?;
    let case = lay_out(said::recipe(said)?, &said::request(said, None)?, Some(cluster))?;
    let mut options = Options::of(Some(Engine::Fsdp2), &case.recipe);
    let is_compiled = said["compile"].as_bool() == Some(true);
    options.kernels.elementwise = if is_compiled { Elementwise::Compiled } else { Elementwise::Eager };
    options.kernels.attention = match said["attention"].as_str() {
        Some("flash") => AttentionKernel::Flash2,
        _ => AttentionKernel::Flash3,
    };
    Ok(case.with_options(|own| *own = options))
}
