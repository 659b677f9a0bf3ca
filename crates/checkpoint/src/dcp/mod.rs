//! `torch.distributed.checkpoint` (torch 2.15, torch/distributed/checkpoint/{metadata,filesystem}.py):
//! `.metadata` is a pickle that says of every tensor its boxes and of every box a span of a file; a span
//! is an archive of `torch.save`, or the file is safetensors as a whole.

mod payload;
mod write;

pub use write::{Metadata, Placed, archive, metadata, number};

use crate::about::About;
use crate::damaged;
use crate::dtype::Dtype;
use crate::files;
use crate::open::{Checkpoint, Chunk, Layout, Tensor, Value};
use crate::pickle::{Id, Node, Pickle, refuse};
use crate::reader::Files;
use crate::region::Region;
use diag::Finding;
use std::collections::BTreeMap;
use std::path::Path;

/// The metadata's file name.
pub const NAME: &str = ".metadata";

const MODULE: &str = "torch.distributed.checkpoint.metadata";
const CLASSES: [&str; 8] = [
    "Metadata",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "TensorProperties",
    "MetadataIndex",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
];

/// Everything metadata may name.
fn allowed(module: &str, name: &str) -> bool {
    match module {
        MODULE => CLASSES.contains(&name),
        "torch.distributed.checkpoint.filesystem" => name == "_StorageInfo",
        "torch" => name == "Size" || Dtype::from_torch(name).is_some(),
        "torch.serialization" => name == "_get_layout",
        "pathlib" | "pathlib._local" => matches!(name, "PosixPath" | "WindowsPath"),
        "collections" => name == "OrderedDict",
        _ => false,
    }
}

/// Where an item of the state dict lies.
struct Span {
    file: String,
    start: u64,
    bytes: u64,
}

/// Reads `.metadata`, and of every box where its bytes begin.
pub fn open(folder: &Path) -> Result<Checkpoint, Finding> {
    let bytes = files::read_small(folder, NAME)?;
    let pickle = Pickle::read(&bytes, NAME, &allowed)?;
    let mut checkpoint = Checkpoint::new(folder, Layout::Dcp);
    let mut spans = describe(&pickle, &mut checkpoint)?;
    let mut files = Files::new(folder);
    payload::locate(&mut checkpoint, &mut spans, &mut files)?;
    checkpoint.about = About::read(folder)?;
    complete(&mut checkpoint);
    Ok(checkpoint)
}

/// `run.step` and `run.data_position` say what the small file beside them may have left out; where both
/// speak they must agree.
fn complete(checkpoint: &mut Checkpoint) {
    let Checkpoint { values, about, findings, .. } = checkpoint;
    for (key, field) in [("run.step", &mut about.step), ("run.data_position", &mut about.data_position)] {
        let stored = values.get(key).and_then(|value| value.number);
        match (*field, stored) {
            (None, stored) => *field = stored,
            (Some(said), Some(stored)) if said != stored => {
                let message = format!("`{}` says {said} and `{key}` is {stored}", crate::about::NAME);
                findings.push(damaged("checkpoint/about", key, message).hint("one of the two is of another step"));
            }
            _ => {}
        }
    }
}

type Key = (String, Option<Vec<u64>>);

/// Tensors without their bytes' places, and the spans of items by key and offset.
fn describe(pickle: &Pickle, checkpoint: &mut Checkpoint) -> Result<BTreeMap<Key, Span>, Finding> {
    let of = Of { pickle };
    let state = of.object(pickle.root(), "Metadata", NAME)?;
    let field = |name: &str| of.field(state, name, NAME);
    for (key, value) in of.pairs(field("state_dict_metadata")?, NAME)? {
        let name = of.text(*key, NAME)?.to_string();
        match pickle.made(*value).map(|made| made.0) {
            Some(class) if class == format!("{MODULE}.TensorStorageMetadata") => {
                let tensor = of.tensor(*value, &name)?;
                checkpoint.tensors.insert(name, tensor);
            }
            Some(class) if class == format!("{MODULE}.BytesStorageMetadata") => {
                let value = Value { file: String::new(), start: 0, bytes: 0, shown: None, number: None };
                checkpoint.values.insert(name, value);
            }
            _ => return Err(of.not(&name, "neither a tensor nor bytes")),
        }
    }
    if let Ok(nested) = field("planner_data") {
        checkpoint.nested = of.nested(nested);
    }
    let mut spans = BTreeMap::new();
    for (index, info) in of.pairs(field("storage_data")?, NAME)? {
        let state = of.object(*index, "MetadataIndex", NAME)?;
        let name = of.text(of.field(state, "fqn", NAME)?, NAME)?.to_string();
        // What is no tensor has no offset: the attribute is left to its class.
        let offset = pickle.get(state, "offset").filter(|id| *pickle.node(*id) != Node::None);
        let offset = offset.map(|id| of.size(id, &name)).transpose()?;
        let span = of.span(*info, &name)?;
        let known = match &offset {
            Some(_) => checkpoint.tensors.contains_key(&name),
            None => checkpoint.values.contains_key(&name),
        };
        if !known || spans.insert((name.clone(), offset), span).is_some() {
            return Err(of.not(&name, "stored twice, or of no item of the state dict"));
        }
    }
    Ok(spans)
}

/// Reads typed things out of a pickle.
struct Of<'p> {
    pickle: &'p Pickle,
}

impl<'p> Of<'p> {
    fn not(&self, object: &str, what: &str) -> Finding {
        refuse(object, format!("`{NAME}` says of `{}` what is {what}", diag::quote::terminal(object)))
    }

    /// The state of an instance of one of the metadata's classes.
    fn object(&self, id: Id, class: &str, object: &str) -> Result<Id, Finding> {
        match self.pickle.made(id) {
            Some((of, _, Some(state))) if of == format!("{MODULE}.{class}") => Ok(state),
            _ => Err(self.not(object, &format!("no {class}"))),
        }
    }

    fn field(&self, state: Id, name: &str, object: &str) -> Result<Id, Finding> {
        self.pickle.get(state, name).ok_or_else(|| self.not(object, &format!("without `{name}`")))
    }

    fn pairs(&self, id: Id, object: &str) -> Result<&'p [(Id, Id)], Finding> {
        self.pickle.pairs(id).ok_or_else(|| self.not(object, "no dict"))
    }

    fn text(&self, id: Id, object: &str) -> Result<&'p str, Finding> {
        self.pickle.text(id).ok_or_else(|| self.not(object, "no text"))
    }

    fn count(&self, id: Id, object: &str) -> Result<u64, Finding> {
        let count = self.pickle.int(id).and_then(|n| u64::try_from(n).ok());
        count.ok_or_else(|| self.not(object, "no size"))
    }

    /// A `torch.Size`.
    fn size(&self, id: Id, object: &str) -> Result<Vec<u64>, Finding> {
        let args = match self.pickle.made(id) {
            Some((of, [args], _)) if of == "torch.Size" => self.pickle.items(*args),
            _ => None,
        };
        let args = args.ok_or_else(|| self.not(object, "no torch.Size"))?;
        args.iter().map(|n| self.count(*n, object)).collect()
    }

    fn tensor(&self, id: Id, name: &str) -> Result<Tensor, Finding> {
        let state = self.object(id, "TensorStorageMetadata", name)?;
        let properties = self.object(self.field(state, "properties", name)?, "TensorProperties", name)?;
        let dtype = self.pickle.items(properties).and_then(|items| items.first());
        let dtype = dtype.and_then(|id| self.pickle.global(*id));
        let dtype = dtype.as_deref().and_then(|d| d.strip_prefix("torch.")).and_then(Dtype::from_torch);
        let dtype = dtype.ok_or_else(|| self.not(name, "of a dtype we do not know"))?;
        let shape = self.size(self.field(state, "size", name)?, name)?;
        let chunks = self.pickle.items(self.field(state, "chunks", name)?);
        let chunks = chunks.ok_or_else(|| self.not(name, "no list of chunks"))?;
        let chunk = |id: &Id| -> Result<Chunk, Finding> {
            let state = self.object(*id, "ChunkStorageMetadata", name)?;
            let offsets = self.size(self.field(state, "offsets", name)?, name)?;
            let sizes = self.size(self.field(state, "sizes", name)?, name)?;
            let fits = offsets.len() == shape.len() && sizes.len() == shape.len();
            let ranges = offsets.iter().zip(&sizes).map(|(o, n)| Some(*o..o.checked_add(*n)?));
            match ranges.collect::<Option<Vec<_>>>().filter(|_| fits) {
                Some(ranges) => Ok(Chunk { at: Region(ranges), file: String::new(), start: 0, crc32: None }),
                None => Err(self.not(name, "a chunk of another rank")),
            }
        };
        let chunks = chunks.iter().map(chunk).collect::<Result<_, _>>()?;
        Ok(Tensor { dtype, shape, chunks })
    }

    fn span(&self, id: Id, name: &str) -> Result<Span, Finding> {
        let state = match self.pickle.made(id) {
            Some((of, _, Some(state))) if of == "torch.distributed.checkpoint.filesystem._StorageInfo" => state,
            _ => return Err(self.not(name, "no _StorageInfo")),
        };
        let transformed = self.pickle.get(state, "transform_descriptors").and_then(|id| self.pickle.items(id));
        if transformed.is_some_and(|descriptors| !descriptors.is_empty()) {
            return Err(self.not(name, "compressed or encrypted by an extension of torch's writer"));
        }
        let file = self.text(self.field(state, "relative_path", name)?, name)?.to_string();
        let start = self.count(self.field(state, "offset", name)?, name)?;
        let bytes = self.count(self.field(state, "length", name)?, name)?;
        if start.checked_add(bytes).is_none() {
            return Err(self.not(name, "no span of a file"));
        }
        Ok(Span { file, start, bytes })
    }

    /// How the nested state dict spells each key; a path with anything but names in it is left out.
    fn nested(&self, id: Id) -> BTreeMap<String, Vec<String>> {
        let pairs = self.pickle.pairs(id).unwrap_or_default();
        let path = |id: Id| -> Option<Vec<String>> {
            self.pickle.items(id)?.iter().map(|step| self.pickle.text(*step).map(str::to_string)).collect()
        };
        pairs.iter().filter_map(|(key, value)| Some((self.pickle.text(*key)?.to_string(), path(*value)?))).collect()
    }
}
