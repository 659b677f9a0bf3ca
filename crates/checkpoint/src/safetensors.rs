//! Safetensors (huggingface/safetensors, README, section Format): one file; several with
//! `model.safetensors.index.json`; or the shards of torch's HuggingFaceStorageWriter, whose headers say
//! where in its tensor each begins (torch/distributed/checkpoint/_hf_utils.py, `DCP_SHARDING_INFO`).

use crate::about::About;
use crate::damaged;
use crate::dtype::Dtype;
use crate::files;
use crate::open::{Checkpoint, Chunk, Layout, Tensor};
use crate::reader::Files;
use crate::region::Region;
use diag::Finding;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// How files end.
pub const SUFFIX: &str = ".safetensors";
/// The index of several files.
pub const INDEX: &str = "model.safetensors.index.json";
/// Where a header says at which offsets its tensors begin.
pub const SHARDING: &str = "DCP_SHARDING_INFO";
/// Most bytes of a header, as the format's own reader has it.
const MOST_HEADER: u64 = 100_000_000;

/// A tensor of one file.
pub struct Stored {
    pub dtype: Dtype,
    /// Where in the whole tensor it begins.
    pub offsets: Vec<u64>,
    pub shape: Vec<u64>,
    pub start: u64,
}

fn bad(file: &str, what: impl std::fmt::Display) -> Finding {
    let message = format!("`{file}` is no safetensors file: {what}");
    damaged("checkpoint/header", file, message).hint("the file is damaged: restore it from a copy")
}

/// Reads a file's header and checks that its tensors fill the file, each byte once.
pub fn header(files: &mut Files, file: &str) -> Result<BTreeMap<String, Stored>, Finding> {
    let len = files.length(file)?;
    if len < 8 {
        return Err(bad(file, "it is shorter than a header"));
    }
    let head = files.read(file, 0, 8)?;
    let size = u64::from_le_bytes([head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]]);
    if size > MOST_HEADER || size > len - 8 {
        return Err(bad(file, format_args!("its header would have {size} bytes")));
    }
    let text = files.read(file, 8, size)?;
    let map: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|e| bad(file, format_args!("its header: {e}")))?;
    let sharding = map.get("__metadata__").and_then(|about| about.get(SHARDING)).and_then(Value::as_str);
    let sharding: Option<Value> = match sharding {
        Some(text) => Some(serde_json::from_str(text).map_err(|e| bad(file, format_args!("its {SHARDING}: {e}")))?),
        None => None,
    };
    let (mut out, mut spans) = (BTreeMap::new(), Vec::new());
    for (name, about) in map.iter().filter(|(name, _)| *name != "__metadata__") {
        let (stored, span) = entry(about, sharding.as_ref().map(|s| &s[name]["saved_offsets"]))
            .map_err(|what| bad(file, format_args!("`{}` {what}", diag::quote::terminal(name))))?;
        spans.push(span);
        out.insert(name.clone(), Stored { start: span[0].saturating_add(8 + size), ..stored });
    }
    spans.sort_unstable();
    let mut at = 0;
    for [start, end] in spans {
        if start != at {
            return Err(bad(file, format_args!("its tensors leave a gap or overlap at byte {at} of the data")));
        }
        at = end;
    }
    if at.saturating_add(8 + size) != len {
        let message = format!("`{file}` has {len} bytes, and its header describes {}", (8 + size).saturating_add(at));
        return Err(damaged("checkpoint/truncated", file, message).hint("restore the file from a copy"));
    }
    Ok(out)
}

fn numbers(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

fn entry(about: &Value, offsets: Option<&Value>) -> Result<(Stored, [u64; 2]), String> {
    let name = about["dtype"].as_str().unwrap_or_default();
    let dtype = Dtype::from_name(name)
        .ok_or_else(|| format!("has dtype `{}`, which we do not know", diag::quote::terminal(name)))?;
    let shape = numbers(&about["shape"]).ok_or("has no shape")?;
    let [start, end] =
        numbers(&about["data_offsets"]).and_then(|n| <[u64; 2]>::try_from(n).ok()).ok_or("has no offsets")?;
    let bytes = Region::whole(&shape).checked_elements().and_then(|n| n.checked_mul(dtype.bytes()));
    if start > end || bytes != Some(end - start) {
        return Err(format!("has {} bytes for shape {shape:?}", end.saturating_sub(start)));
    }
    let offsets = match offsets {
        Some(value) => numbers(value).filter(|o| o.len() == shape.len()).ok_or("is not in the sharding information")?,
        None => vec![0; shape.len()],
    };
    Ok((Stored { dtype, offsets, shape, start: 0 }, [start, end]))
}

/// One file.
pub fn open_file(path: &Path) -> Result<Checkpoint, Finding> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut checkpoint = Checkpoint::new(folder, Layout::Safetensors);
    let stored = header(&mut Files::new(folder), &name)?;
    stored.into_iter().try_for_each(|(key, stored)| add(&mut checkpoint.tensors, key, stored, &name))?;
    Ok(checkpoint)
}

/// All files of a folder.
pub fn open_folder(folder: &Path, names: &[String]) -> Result<Checkpoint, Finding> {
    let mut checkpoint = Checkpoint::new(folder, Layout::Safetensors);
    checkpoint.about = About::read(folder)?;
    let mut files = Files::new(folder);
    let mut found = BTreeMap::<String, String>::new();
    for name in names.iter().filter(|name| name.ends_with(SUFFIX)) {
        match header(&mut files, name) {
            Ok(stored) => {
                for (key, stored) in stored {
                    found.insert(key.clone(), name.clone());
                    add(&mut checkpoint.tensors, key, stored, name)?;
                }
            }
            Err(finding) => checkpoint.findings.push(finding),
        }
    }
    if names.iter().any(|name| name == INDEX) {
        checkpoint.findings.extend(check_index(folder, &found)?);
    }
    Ok(checkpoint)
}

/// Adds a stored box; a tensor reaches as far as its farthest box.
fn add(tensors: &mut BTreeMap<String, Tensor>, key: String, stored: Stored, file: &str) -> Result<(), Finding> {
    let ranges = stored.offsets.iter().zip(&stored.shape).map(|(o, n)| Some(*o..o.checked_add(*n)?));
    let ranges: Option<Vec<_>> = ranges.collect();
    let ranges =
        ranges.ok_or_else(|| bad(file, format_args!("`{}` begins at no offset", diag::quote::terminal(&key))))?;
    let tensor = tensors.entry(key.clone()).or_insert_with(|| Tensor {
        dtype: stored.dtype,
        shape: vec![0; stored.shape.len()],
        chunks: Vec::new(),
    });
    if tensor.dtype != stored.dtype || tensor.shape.len() != ranges.len() {
        return Err(bad(
            file,
            format_args!("`{}` has another dtype or rank than in another file", diag::quote::terminal(&key)),
        ));
    }
    tensor.shape.iter_mut().zip(&ranges).for_each(|(n, r)| *n = (*n).max(r.end));
    tensor.chunks.push(Chunk { at: Region(ranges), file: file.to_string(), start: stored.start, crc32: None });
    Ok(())
}

/// Where the index and the files disagree.
fn check_index(folder: &Path, found: &BTreeMap<String, String>) -> Result<Vec<Finding>, Finding> {
    let say = |key: &str, message: String| {
        damaged("checkpoint/weight-map", key, message).hint("restore the file from a copy, or write the index again")
    };
    let index: Value = serde_json::from_slice(&files::read_small(folder, INDEX)?)
        .map_err(|e| say(INDEX, format!("`{INDEX}` cannot be read: {e}")))?;
    let Some(map) = index["weight_map"].as_object() else {
        return Err(say(INDEX, format!("`{INDEX}` has no `weight_map`")));
    };
    let mut findings = Vec::new();
    for (key, file) in map {
        let (shown, file) = (diag::quote::terminal(key), file.as_str().unwrap_or_default());
        if found.get(key).is_none_or(|at| at != file) {
            findings.push(say(
                key,
                format!("`{INDEX}` has `{shown}` in `{}`, and it is not there", diag::quote::terminal(file)),
            ));
        }
    }
    for key in found.keys().filter(|key| !map.contains_key(*key)) {
        findings.push(say(key, format!("`{}` is stored and not in `{INDEX}`", diag::quote::terminal(key))));
    }
    Ok(findings)
}
