//! Where in a file the bytes of a box begin: inside an archive of `torch.save`, whose pickle says how they
//! are to be read, or behind the header of a safetensors file.

use super::{Key, Span};
use crate::damaged;
use crate::dtype::Dtype;
use crate::open::{Checkpoint, Chunk, Value};
use crate::pickle::{Id, Node, Pickle};
use crate::reader::Files;
use crate::safetensors::{self, Stored};
use crate::zip::{self, Record};
use diag::Finding;
use std::collections::BTreeMap;

/// Bytes of a pickle we agree to read in an archive.
const MOST_PICKLE: u64 = 1 << 24;
/// Characters of a value that are shown.
const SHOWN: usize = 200;

/// Everything the pickle of a tensor may name.
fn allowed(module: &str, name: &str) -> bool {
    match module {
        "torch._utils" => matches!(name, "_rebuild_tensor_v2" | "_rebuild_tensor_v3"),
        "torch.storage" => name == "UntypedStorage",
        "torch" => Dtype::from_storage(name).is_some() || Dtype::from_torch(name).is_some(),
        "collections" => name == "OrderedDict",
        _ => false,
    }
}

type Headers = BTreeMap<String, BTreeMap<String, Stored>>;

/// Finds the bytes of every box and value. What cannot be found is dropped with a finding.
pub fn locate(checkpoint: &mut Checkpoint, spans: &mut BTreeMap<Key, Span>, files: &mut Files) -> Result<(), Finding> {
    let mut headers = Headers::new();
    let Checkpoint { tensors, values, findings, .. } = checkpoint;
    for (name, tensor) in tensors {
        let mut placed = Vec::new();
        for chunk in std::mem::take(&mut tensor.chunks) {
            let offset = chunk.at.0.iter().map(|r| r.start).collect();
            let Some(span) = spans.remove(&(name.clone(), Some(offset))) else { continue };
            match place(files, &mut headers, name, tensor.dtype, &chunk, &span) {
                Ok(chunk) => placed.push(chunk),
                Err(finding) => findings.push(finding),
            }
        }
        tensor.chunks = placed;
    }
    for (name, value) in values {
        match spans.remove(&(name.clone(), None)) {
            Some(span) => match read_value(files, &span) {
                Ok(read) => *value = read,
                Err(finding) => findings.push(finding),
            },
            None => {
                let message = format!("`{}` is in the state dict and stored nowhere", diag::quote::terminal(name));
                findings.push(damaged("checkpoint/coverage", name, message));
            }
        }
    }
    match spans.first_key_value() {
        Some(((name, _), _)) => {
            let message =
                format!("`{}` is stored at an offset that none of its chunks has", diag::quote::terminal(name));
            Err(damaged("checkpoint/coverage", name, message).hint("`.metadata` is damaged: restore it from a copy"))
        }
        None => Ok(()),
    }
}

fn place(
    files: &mut Files,
    headers: &mut Headers,
    name: &str,
    dtype: Dtype,
    chunk: &Chunk,
    span: &Span,
) -> Result<Chunk, Finding> {
    let is_archive = span.bytes >= 4 && files.read(&span.file, span.start, 4)? == b"PK\x03\x04";
    if is_archive {
        return in_archive(files, name, dtype, chunk, span);
    }
    if !headers.contains_key(&span.file) {
        let header = safetensors::header(files, &span.file).map_err(|_| neither(span))?;
        headers.insert(span.file.clone(), header);
    }
    let stored = headers.get(&span.file).and_then(|header| header.get(name)).ok_or_else(|| neither(span))?;
    if stored.dtype != dtype || stored.shape != chunk.at.shape() {
        return Err(differs(name, span));
    }
    Ok(Chunk { file: span.file.clone(), start: stored.start, crc32: None, at: chunk.at.clone() })
}

fn neither(span: &Span) -> Finding {
    let message =
        format!("byte {} of `{}` begins neither an archive of torch.save nor safetensors", span.start, span.file);
    damaged("checkpoint/zip", &span.file, message).hint("restore the file from a copy")
}

fn differs(name: &str, span: &Span) -> Finding {
    let message = format!(
        "`{}` is stored in `{}` in another shape or dtype than `.metadata` says",
        diag::quote::terminal(name),
        span.file
    );
    damaged("checkpoint/payload", name, message).hint("restore the file from a copy")
}

fn record<'r>(records: &'r [Record], name: &str) -> Option<&'r Record> {
    records.iter().find(|record| record.name == name)
}

fn read_pickle(files: &mut Files, span: &Span, records: &[Record]) -> Result<Vec<u8>, Finding> {
    let pickle = record(records, "data.pkl").filter(|r| r.bytes <= MOST_PICKLE).ok_or_else(|| neither(span))?;
    files.read(&span.file, pickle.start, pickle.bytes)
}

fn in_archive(files: &mut Files, name: &str, dtype: Dtype, chunk: &Chunk, span: &Span) -> Result<Chunk, Finding> {
    let records = zip::records(files, &span.file, span.start, span.bytes)?;
    let pickle = Pickle::read(&read_pickle(files, span, &records)?, &span.file, &allowed)?;
    if let Some(order) = record(&records, "byteorder").filter(|r| r.bytes < 16)
        && files.read(&span.file, order.start, order.bytes)? != b"little"
    {
        let message = format!("`{}` was written by a big-endian machine", span.file);
        return Err(damaged("checkpoint/payload", name, message).hint("load and save it again with torch"));
    }
    let found = storage(&pickle).ok_or_else(|| differs(name, span))?;
    let (shape, size) = (chunk.at.shape(), dtype.bytes());
    if !is_row_major(&shape, &found.stride) {
        let message = format!(
            "`{}` is stored in `{}` with strides {:?}, not row by row",
            diag::quote::terminal(name),
            span.file,
            found.stride
        );
        return Err(damaged("checkpoint/payload", name, message).hint("save it again with `.contiguous()`"));
    }
    let data = record(&records, &format!("data/{}", found.key)).ok_or_else(|| differs(name, span))?;
    let (first, bytes) =
        (found.offset.checked_mul(size), chunk.at.checked_elements().and_then(|n| n.checked_mul(size)));
    let end = first.zip(bytes).and_then(|(first, bytes)| first.checked_add(bytes));
    if found.dtype != dtype || found.shape != shape || end.is_none_or(|end| end > data.bytes) {
        return Err(differs(name, span));
    }
    let is_all = bytes == Some(data.bytes);
    let start = data.start + first.unwrap_or(0);
    Ok(Chunk { file: span.file.clone(), start, crc32: is_all.then_some(data.crc32), at: chunk.at.clone() })
}

/// Strides of dimensions with one element mean nothing, and without elements none do.
fn is_row_major(shape: &[u64], stride: &[u64]) -> bool {
    if shape.len() != stride.len() {
        return false;
    }
    let mut wanted = 1u64;
    shape.contains(&0)
        || shape.iter().zip(stride).rev().all(|(n, s)| {
            let holds = *n == 1 || *s == wanted;
            wanted = wanted.saturating_mul(*n);
            holds
        })
}

struct Storage {
    dtype: Dtype,
    key: String,
    offset: u64,
    shape: Vec<u64>,
    stride: Vec<u64>,
}

/// What `torch._utils._rebuild_tensor_v2` and `_v3` would be called with.
fn storage(pickle: &Pickle) -> Option<Storage> {
    let (of, args, _) = pickle.made(pickle.root())?;
    let Node::Persistent(id) = pickle.node(*args.first()?) else { return None };
    let [kind, class, key, _, _] = pickle.items(*id)? else { return None };
    let (class, typed) = (pickle.global(*class)?, of == "torch._utils._rebuild_tensor_v2");
    let dtype = match typed {
        true => Dtype::from_storage(class.strip_prefix("torch.")?)?,
        false => Dtype::from_torch(pickle.global(*args.get(6)?)?.strip_prefix("torch.")?)?,
    };
    let count = |id: &Id| u64::try_from(pickle.int(*id)?).ok();
    let counts = |id: &Id| pickle.items(*id)?.iter().map(count).collect::<Option<Vec<u64>>>();
    (pickle.text(*kind)? == "storage").then_some(())?;
    Some(Storage {
        dtype,
        key: pickle.text(*key)?.to_string(),
        offset: count(args.get(1)?)?,
        shape: counts(args.get(2)?)?,
        stride: counts(args.get(3)?)?,
    })
}

/// A value that is no tensor. One that names a class is kept, and not shown.
fn read_value(files: &mut Files, span: &Span) -> Result<Value, Finding> {
    let len = files.length(&span.file)?;
    let mut value = Value { file: span.file.clone(), start: span.start, bytes: span.bytes, shown: None, number: None };
    if span.start + span.bytes > len {
        let message =
            format!("`{}` has {len} bytes, and bytes up to {} are needed", span.file, span.start + span.bytes);
        return Err(damaged("checkpoint/truncated", &span.file, message).hint("restore the file from a copy"));
    }
    let records = zip::records(files, &span.file, span.start, span.bytes)?;
    if let Ok(pickle) = Pickle::read(&read_pickle(files, span, &records)?, &span.file, &|_, _| false) {
        let mut shown = String::new();
        value.shown = show(&pickle, pickle.root(), &mut shown).map(|()| shown);
        value.number = pickle.int(pickle.root()).and_then(|n| u64::try_from(n).ok());
    }
    Ok(value)
}

/// Plain values as Python prints them; `None` for longer ones, which also ends those that contain themselves.
fn show(pickle: &Pickle, id: Id, out: &mut String) -> Option<()> {
    let several = |items: &[Id], out: &mut String| -> Option<()> {
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            show(pickle, *item, out)?;
        }
        Some(())
    };
    if out.len() > SHOWN {
        return None;
    }
    match pickle.node(id) {
        Node::None => out.push_str("None"),
        Node::Bool(b) => out.push_str(if *b { "True" } else { "False" }),
        Node::Int(n) => *out += &n.to_string(),
        Node::Float(x) => *out += &format!("{x:?}"),
        Node::Text(text) => *out += &format!("'{}'", diag::quote::terminal(text)),
        Node::List(items) => {
            out.push('[');
            several(items, out)?;
            out.push(']');
        }
        Node::Tuple(items) => {
            out.push('(');
            several(items, out)?;
            out.push(')');
        }
        Node::Dict(pairs) => {
            out.push('{');
            for (i, (key, value)) in pairs.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                show(pickle, *key, out)?;
                out.push_str(": ");
                show(pickle, *value, out)?;
            }
            out.push('}');
        }
        _ => return None,
    }
    (out.len() <= SHOWN).then_some(())
}
