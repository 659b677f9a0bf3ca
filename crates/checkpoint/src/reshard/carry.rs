//! What a format has a place for. What has none is refused by name before anything is written.

use super::Job;
use crate::dtype::Dtype;
use crate::open::{Checkpoint, Layout, Tensor};
use crate::own;
use crate::reader::Reader;
use diag::{Blame, Finding};

/// Values that every format has a place for: in `shardwright.json`, or in our own index.
const EVERYWHERE: [&str; 2] = ["run.step", "run.data_position"];

/// Whether a tensor is written: our own format counts steps once, not for each tensor.
pub fn keeps(layout: Layout, key: &str) -> bool {
    layout != Layout::Shardwright || !is_step(key)
}

fn is_step(key: &str) -> bool {
    key.starts_with("optimizer.") && key.ends_with(".step")
}

fn refuse(object: &str, message: String, hint: &str) -> Finding {
    Finding::error("checkpoint/carry", Blame::Usage, object, message).hint(hint)
}

/// Everything of the source that the new format cannot hold.
pub fn check(job: &Job) -> Result<(), Vec<Finding>> {
    let mut findings = Vec::new();
    if job.layout != Layout::Dcp {
        let others = job.from.values.keys().filter(|key| !EVERYWHERE.contains(&key.as_str()));
        findings.extend(others.map(|key| {
            let message =
                format!("`{}` is no tensor, and format {} holds only tensors", diag::quote::terminal(key), job.layout);
            refuse(key, message, "--format dcp keeps it as it is")
        }));
    }
    if job.layout == Layout::Shardwright {
        findings.extend(own_format(job));
    }
    if findings.is_empty() { Ok(()) } else { Err(findings) }
}

fn own_format(job: &Job) -> Vec<Finding> {
    let mut findings = Vec::new();
    let about = &job.from.about;
    let facts = [("step", about.step), ("data_position", about.data_position), ("seed", about.seed)];
    for (name, _) in facts.iter().filter(|(_, value)| value.is_none()) {
        let message = format!("the checkpoint does not say its `{name}`, which our own format states");
        findings.push(refuse(
            name,
            message,
            "add it to `shardwright.json` beside the checkpoint (docs/checkpoints.md)",
        ));
    }
    if job.against.is_none() && about.recipe.as_ref().is_none_or(|of| of.lines.is_empty()) {
        let message = "the checkpoint does not say which recipe it is of, which our own format states".to_string();
        findings.push(refuse("recipe", message, "--of RECIPE says it"));
    }
    let dtypes = |tensor: &Tensor| matches!(tensor.dtype, Dtype::F32 | Dtype::F64);
    let mut first = None;
    for (key, tensor) in &job.from.tensors {
        if is_step(key) {
            findings.extend(other_step(job.from, key, tensor));
            continue;
        }
        let dtype = *first.get_or_insert(tensor.dtype);
        if own::parse(key).is_none_or(|(_, kind)| kind.is_none()) || tensor.bytes() == 0 {
            let message = format!("`{}` has no place in our own format", diag::quote::terminal(key));
            findings.push(refuse(key, message, "it keeps `model.<path>`, and AdamW's or Muon's state of it"));
        } else if !dtypes(tensor) || tensor.dtype != dtype {
            let message = format!("`{key}` is {}, and our own format is F32 or F64 throughout", tensor.dtype);
            findings.push(refuse(key, message, "no number is converted: --format dcp or safetensors keeps it"));
        }
    }
    findings
}

/// Torch's AdamW counts steps for each tensor; where a count is not the run's, it cannot be left out.
fn other_step(from: &Checkpoint, key: &str, tensor: &Tensor) -> Option<Finding> {
    let mut found = None;
    if tensor.shape.is_empty() {
        let whole = crate::region::Region::whole(&tensor.shape);
        let read = Reader::new(from, 16).region(tensor, &whole, &mut Vec::new(), |bytes: &[u8]| {
            found = match (tensor.dtype, bytes) {
                (Dtype::F32, [a, b, c, d]) => Some(f64::from(f32::from_le_bytes([*a, *b, *c, *d]))),
                (Dtype::F64, bytes) => bytes.try_into().ok().map(f64::from_le_bytes),
                (Dtype::I64, bytes) => bytes.try_into().ok().map(|b| i64::from_le_bytes(b) as f64),
                _ => None,
            };
            Ok::<(), Finding>(())
        });
        if let Err(finding) = read {
            return Some(finding);
        }
    }
    if found.is_some() && found == from.about.step.map(|step| step as f64) {
        return None;
    }
    let message =
        format!("`{}` is not the run's step, and our own format counts steps once", diag::quote::terminal(key));
    Some(refuse(key, message, "--format dcp or safetensors keeps it"))
}
