//! Torch's distributed checkpoint: one file a rank, `.metadata` last.

use super::{Copy, Failure, Plan};
use crate::dcp::{self, Metadata, Placed};
use crate::own;
use crate::reader::BUFFER;
use diag::Finding;
use std::io::Write;

pub fn write(copy: &mut Copy, plan: &Plan) -> Result<(), Finding> {
    let mut metadata = Metadata::default();
    let from = copy.job.from;
    for (rank, items) in plan.ranks.iter().enumerate() {
        let file = format!("__{rank}_0.distcp");
        copy.file(&file, |copy, out| {
            let mut start = 0;
            if rank == 0 {
                start = values(copy, &file, &mut metadata, out)?;
            }
            for item in items {
                let bytes = dcp::archive(out, item.tensor.dtype, &item.at.shape(), |out| copy.body(item, out))?;
                let (dtype, shape) = (item.tensor.dtype, item.tensor.shape.clone());
                let entry = metadata.tensors.entry(item.key.to_string()).or_insert((dtype, shape, Vec::new()));
                entry.2.push(Placed { at: Some(item.at.clone()), file: file.clone(), start, bytes });
                start += bytes;
            }
            Ok::<(), Failure>(())
        })?;
    }
    for key in metadata.tensors.keys().chain(metadata.values.keys()) {
        let path = from.nested.get(key).cloned().unwrap_or_else(|| nested(key));
        metadata.nested.insert(key.clone(), path);
    }
    copy.write_about()?;
    copy.fresh.write(dcp::NAME, &dcp::metadata(&metadata))
}

/// How the state dict our programs save spells a key.
fn nested(key: &str) -> Vec<String> {
    match (own::parse(key), key.strip_prefix("run.")) {
        (_, Some(name)) => vec!["run".to_string(), name.to_string()],
        (Some((path, _)), _) if key.starts_with("model.") => vec!["model".to_string(), path.to_string()],
        (Some((path, _)), _) => {
            let state = key.rsplit('.').next().unwrap_or_default();
            vec!["optimizer".to_string(), path.to_string(), state.to_string()]
        }
        _ => vec![key.to_string()],
    }
}

/// Copies what is no tensor as it stands, and adds step and position where the source had them elsewhere.
fn values(copy: &mut Copy, file: &str, metadata: &mut Metadata, out: &mut impl Write) -> Result<u64, Failure> {
    let mut start = 0;
    let from = copy.job.from;
    for (key, value) in &from.values {
        let (mut at, end) = (value.start, value.start + value.bytes);
        while at < end {
            let bytes = copy.reader.files.read(&value.file, at, (end - at).min(copy.job.buffer.min(BUFFER) as u64))?;
            out.write_all(&bytes)?;
            at += bytes.len() as u64;
        }
        metadata.values.insert(key.clone(), Placed { at: None, file: file.to_string(), start, bytes: value.bytes });
        start += value.bytes;
    }
    for (key, value) in [("run.step", from.about.step), ("run.data_position", from.about.data_position)] {
        let Some(value) = value.filter(|_| !from.values.contains_key(key) && !from.tensors.contains_key(key)) else {
            continue;
        };
        let bytes = dcp::number(value);
        out.write_all(&bytes)?;
        let placed = Placed { at: None, file: file.to_string(), start, bytes: bytes.len() as u64 };
        metadata.values.insert(key.to_string(), placed);
        start += bytes.len() as u64;
    }
    Ok(start)
}
