//! One description of a checkpoint, whichever format it is in.

use crate::about::About;
use crate::dtype::Dtype;
use crate::region::Region;
use crate::{damaged, dcp, index, own, safetensors};
use diag::{Blame, Finding};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use units::named;

named! {
    /// Who else reads such files.
    pub enum Layout {
        /// Our own runtime: an index, and pieces with checksums.
        Shardwright = "shardwright",
        /// `torch.distributed.checkpoint`.
        Dcp = "dcp",
        /// Hugging Face: one file, several with an index, or shards with their offsets.
        Safetensors = "safetensors",
    }
}

/// A stored box of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which elements, stored row by row.
    pub at: Region,
    /// The file in the checkpoint's folder.
    pub file: String,
    /// First byte.
    pub start: u64,
    /// CRC-32 of the bytes, where the format has one.
    pub crc32: Option<u32>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Number format.
    pub dtype: Dtype,
    /// Sizes of the dimensions.
    pub shape: Vec<u64>,
    /// What is stored of it.
    pub chunks: Vec<Chunk>,
}

impl Tensor {
    /// Bytes of all its elements; `open` has checked that they can be counted.
    pub fn bytes(&self) -> u64 {
        Region::whole(&self.shape).elements() * self.dtype.bytes()
    }
}

/// Something stored that is no tensor: an archive of `torch.save`, kept as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The file.
    pub file: String,
    /// First byte of the archive.
    pub start: u64,
    /// Its bytes.
    pub bytes: u64,
    /// As Python would print it; `None` where it is more than plain values.
    pub shown: Option<String>,
    /// The value of a whole number.
    pub number: Option<u64>,
}

/// A checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Where its files are.
    pub folder: PathBuf,
    /// Its format.
    pub layout: Layout,
    /// By key: `model.<path>` and `optimizer.<path>.<state>` where we or our programs wrote it.
    pub tensors: BTreeMap<String, Tensor>,
    /// What is no tensor, by key.
    pub values: BTreeMap<String, Value>,
    /// What it says of itself.
    pub about: About,
    /// How DCP's nested state dict spells a key, where it says so.
    pub nested: BTreeMap<String, Vec<String>>,
    /// What is wrong with it as far as it was read.
    pub findings: Vec<Finding>,
}

impl Checkpoint {
    /// Nothing yet.
    pub(crate) fn new(folder: &Path, layout: Layout) -> Checkpoint {
        Checkpoint {
            folder: folder.to_path_buf(),
            layout,
            tensors: BTreeMap::new(),
            values: BTreeMap::new(),
            about: About::default(),
            nested: BTreeMap::new(),
            findings: Vec::new(),
        }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(Tensor::bytes).fold(0, u64::saturating_add)
    }

    /// Refuses sizes whose products overflow, so that nothing after this has to.
    fn check_sizes(&self) -> Result<(), Finding> {
        let mut total = 0u64;
        for (name, tensor) in &self.tensors {
            let bytes =
                Region::whole(&tensor.shape).checked_elements().and_then(|n| n.checked_mul(tensor.dtype.bytes()));
            let sum = bytes.and_then(|b| total.checked_add(b)).filter(|t| *t < 1 << 62);
            let inside = |chunk: &Chunk| {
                let ranges = chunk.at.0.iter().zip(&tensor.shape);
                let bytes = chunk.at.checked_elements().and_then(|n| n.checked_mul(tensor.dtype.bytes()));
                chunk.at.0.len() == tensor.shape.len()
                    && ranges.into_iter().all(|(r, n)| r.start <= r.end && r.end <= *n)
                    && bytes.and_then(|b| b.checked_add(chunk.start)).is_some()
            };
            match sum {
                Some(sum) if tensor.chunks.iter().all(inside) => total = sum,
                _ => {
                    let message = format!("the shape or the pieces of `{}` are no sizes", diag::quote::terminal(name));
                    return Err(damaged("checkpoint/limit", name, message).hint("the checkpoint is damaged"));
                }
            }
        }
        Ok(())
    }
}

/// Opens a checkpoint: a folder of any of the formats, or a `.safetensors` file.
pub fn open(path: &Path) -> Result<Checkpoint, Finding> {
    let has = |name: &str| path.join(name).symlink_metadata().is_ok();
    let checkpoint = if path.is_file() {
        safetensors::open_file(path)?
    } else if has(index::NAME) {
        own::open(path)?
    } else if has(dcp::NAME) {
        dcp::open(path)?
    } else {
        let names = listed(path)?;
        match names.iter().any(|name| name.ends_with(safetensors::SUFFIX)) {
            true => safetensors::open_folder(path, &names)?,
            false => return Err(unknown(path, &names)),
        }
    };
    checkpoint.check_sizes()?;
    Ok(checkpoint)
}

/// Names in a folder, sorted.
fn listed(path: &Path) -> Result<Vec<String>, Finding> {
    let list = || -> std::io::Result<Vec<String>> {
        std::fs::read_dir(path)?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect()
    };
    let mut names = list().map_err(|e| {
        let message = format!("cannot read `{}`: {e}", path.display());
        damaged("checkpoint/format", &path.display().to_string(), message)
            .hint("give the folder of a checkpoint, or a .safetensors file")
    })?;
    names.sort();
    Ok(names)
}

/// A folder that is no checkpoint; says what it could be.
fn unknown(path: &Path, names: &[String]) -> Finding {
    let message = format!("`{}` is no checkpoint that we know", path.display());
    let finding = Finding::error("checkpoint/format", Blame::Usage, path.display().to_string(), message);
    if names.iter().any(|n| n.starts_with("__") && n.ends_with(dcp::NAME)) {
        return finding
            .hint("every rank wrote its own `.metadata`: save with torch's default planner and use_collectives=True");
    }
    let step = |name: &&String| name.strip_prefix("step-").and_then(|n| n.parse::<u64>().ok());
    match names.iter().filter(|n| step(n).is_some()).max_by_key(step) {
        Some(newest) => finding.hint(format!("it holds checkpoints: the newest is `{}`", path.join(newest).display())),
        None => finding.hint(format!(
            "known are folders with `{}` (our own), `{}` (torch DCP) or *{} files",
            index::NAME,
            dcp::NAME,
            safetensors::SUFFIX
        )),
    }
}
