//! Writes what `torch.distributed.checkpoint` reads: archives as `torch.save` makes them, and `.metadata`.

use super::MODULE;
use crate::dtype::Dtype;
use crate::pickle::Writer;
use crate::region::Region;
use crate::zip::Archive;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// What an archive calls its only storage.
const KEY: &str = "0";

/// An item and the span it was written to.
pub struct Placed {
    /// Its box; `None` for what is no tensor.
    pub at: Option<Region>,
    /// The file.
    pub file: String,
    /// First byte.
    pub start: u64,
    /// Bytes of the archive.
    pub bytes: u64,
}

/// All of `.metadata`.
#[derive(Default)]
pub struct Metadata {
    /// Tensors by key, with their boxes.
    pub tensors: BTreeMap<String, (Dtype, Vec<u64>, Vec<Placed>)>,
    /// What is no tensor, by key.
    pub values: BTreeMap<String, Placed>,
    /// How the nested state dict spells each key.
    pub nested: BTreeMap<String, Vec<String>>,
}

fn counts(out: &mut Writer, values: &[u64]) {
    out.tuple(|out| values.iter().for_each(|n| out.int(*n)));
}

fn size(out: &mut Writer, values: &[u64]) {
    out.call("torch", "Size", |out| counts(out, values));
}

/// Row-major strides.
fn strides(shape: &[u64]) -> Vec<u64> {
    let mut out = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        out[d - 1] = out[d] * shape[d].max(1);
    }
    out
}

/// The archive of a box, whose bytes `body` writes; gives the bytes of the archive.
pub fn archive<W: Write, E: From<io::Error>>(
    out: &mut W,
    dtype: Dtype,
    shape: &[u64],
    body: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<u64, E> {
    let elements: u64 = shape.iter().product();
    let mut archive = Archive::new(out);
    archive.record("data.pkl", &tensor(dtype, shape, elements))?;
    archive.record("byteorder", b"little")?;
    archive.stream(&format!("data/{KEY}"), elements * dtype.bytes(), body)?;
    archive.record("version", b"3\n")?;
    Ok(archive.finish()?)
}

/// The archive of a whole number.
pub fn number(value: u64) -> Vec<u8> {
    let (mut out, mut pickle) = (Vec::new(), Writer::default());
    pickle.int(value);
    let mut archive = Archive::new(&mut out);
    let records = [("data.pkl", pickle.finish()), ("byteorder", b"little".to_vec()), ("version", b"3\n".to_vec())];
    let written =
        records.iter().try_for_each(|(name, bytes)| archive.record(name, bytes)).and_then(|()| archive.finish());
    debug_assert!(written.is_ok(), "memory takes every byte");
    out
}

/// `torch._utils._rebuild_tensor_v2(storage, 0, size, stride, False, OrderedDict())`; `_v3` with the dtype
/// at the end where the storage has no type.
fn tensor(dtype: Dtype, shape: &[u64], elements: u64) -> Vec<u8> {
    let mut out = Writer::default();
    let function = if dtype.storage().is_some() { "_rebuild_tensor_v2" } else { "_rebuild_tensor_v3" };
    out.call("torch._utils", function, |out| {
        out.tuple(|out| {
            out.text("storage");
            match dtype.storage() {
                Some(class) => out.global("torch", class),
                None => out.global("torch.storage", "UntypedStorage"),
            }
            out.text(KEY);
            out.text("cpu");
            out.int(if dtype.storage().is_some() { elements } else { elements * dtype.bytes() });
        });
        out.op(b'Q');
        out.int(0);
        counts(out, shape);
        counts(out, &strides(shape));
        out.bool(false);
        out.call("collections", "OrderedDict", |_| {});
        if dtype.storage().is_none() {
            out.global("torch", dtype.torch());
        }
    });
    out.finish()
}

/// `.metadata`.
pub fn metadata(of: &Metadata) -> Vec<u8> {
    let mut out = Writer::default();
    out.object(MODULE, "Metadata", |out| {
        out.dict(|out| {
            out.text("state_dict_metadata");
            out.dict(|out| {
                for (key, (dtype, shape, placed)) in &of.tensors {
                    out.text(key);
                    storage_metadata(out, *dtype, shape, placed);
                }
                for key in of.values.keys() {
                    out.text(key);
                    out.global(MODULE, "BytesStorageMetadata");
                    out.op(b')');
                    out.op(0x81);
                }
            });
            out.text("planner_data");
            out.dict(|out| {
                for (key, path) in &of.nested {
                    out.text(key);
                    out.tuple(|out| path.iter().for_each(|step| out.text(step)));
                }
            });
            out.text("storage_data");
            out.dict(|out| {
                for (key, (_, _, placed)) in &of.tensors {
                    placed.iter().enumerate().for_each(|(i, placed)| storage_info(out, key, Some(i), placed));
                }
                of.values.iter().for_each(|(key, placed)| storage_info(out, key, None, placed));
            });
            out.text("storage_meta");
            out.none();
            out.text("version");
            out.text("1.0.0");
        });
    });
    out.finish()
}

fn storage_metadata(out: &mut Writer, dtype: Dtype, shape: &[u64], placed: &[Placed]) {
    out.object(MODULE, "TensorStorageMetadata", |out| {
        out.dict(|out| {
            out.text("properties");
            out.object(MODULE, "TensorProperties", |out| {
                out.tuple(|out| {
                    out.global("torch", dtype.torch());
                    out.call("torch.serialization", "_get_layout", |out| out.text("torch.strided"));
                    out.bool(false);
                    out.call(MODULE, "_MEM_FORMAT_ENCODING", |out| out.int(0));
                    out.bool(false);
                });
            });
            out.text("size");
            size(out, shape);
            out.text("chunks");
            out.list(|out| {
                for at in placed.iter().filter_map(|placed| placed.at.as_ref()) {
                    out.object(MODULE, "ChunkStorageMetadata", |out| {
                        out.dict(|out| {
                            out.text("offsets");
                            size(out, &at.0.iter().map(|r| r.start).collect::<Vec<_>>());
                            out.text("sizes");
                            size(out, &at.shape());
                        });
                    });
                }
            });
        });
    });
}

fn storage_info(out: &mut Writer, key: &str, index: Option<usize>, placed: &Placed) {
    out.object(MODULE, "MetadataIndex", |out| {
        out.dict(|out| {
            out.text("fqn");
            out.text(key);
            out.text("offset");
            match &placed.at {
                Some(at) => size(out, &at.0.iter().map(|r| r.start).collect::<Vec<_>>()),
                None => out.none(),
            }
            out.text("index");
            match index {
                Some(index) => out.int(index as u64),
                None => out.none(),
            }
        });
    });
    out.object("torch.distributed.checkpoint.filesystem", "_StorageInfo", |out| {
        out.dict(|out| {
            out.text("relative_path");
            out.text(&placed.file);
            out.text("offset");
            out.int(placed.start);
            out.text("length");
            out.int(placed.bytes);
        });
    });
}
