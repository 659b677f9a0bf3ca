//! The index of a checkpoint: which run and recipe it is of, and for every tensor where its pieces lie.
//! It is written last and carries a checksum of itself. When it is read nothing in it is trusted: every
//! name and number is checked before a file is opened or memory taken for it.

use crate::files;
use crate::region::Region;
use diag::{Blame, Finding};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use units::named;

/// The version this code writes and reads.
pub const SCHEMA: u64 = 1;

/// The index's file name.
pub const NAME: &str = "index.json";

named! {
    /// The number format of every stored tensor, as safetensors names it.
    pub enum Format {
        /// 32-bit float.
        F32 = "F32",
        /// 64-bit float.
        F64 = "F64",
    }
}

impl Format {
    /// Bytes of one number.
    pub fn bytes(self) -> u64 {
        match self {
            Format::F32 => 4,
            Format::F64 => 8,
        }
    }
}

named! {
    /// What is kept of a parameter.
    pub enum Kind {
        /// Its values.
        Weight = "weight",
        /// AdamW's first moment, or Muon's momentum.
        First = "first-moment",
        /// AdamW's second moment.
        Second = "second-moment",
    }
}

/// One stored piece of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// The file beside the index.
    pub file: String,
    /// Which elements, in logical coordinates; stored row by row.
    pub at: Region,
    /// First byte in the file.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// CRC-32 of the bytes, as zlib has it.
    pub crc32: u32,
}

/// One tensor: its logical shape, without padding, and what is stored of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Sizes of the dimensions.
    pub shape: Vec<u64>,
    /// Pieces of the values.
    pub weight: Vec<Piece>,
    /// Pieces of AdamW's first moment or Muon's momentum.
    pub first_moment: Vec<Piece>,
    /// Pieces of AdamW's second moment; none where Muon steps.
    pub second_moment: Vec<Piece>,
}

impl Entry {
    /// The pieces of one kind of state.
    pub fn pieces(&self, kind: Kind) -> &[Piece] {
        match kind {
            Kind::Weight => &self.weight,
            Kind::First => &self.first_moment,
            Kind::Second => &self.second_moment,
        }
    }

    /// The same, to add to.
    pub fn pieces_mut(&mut self, kind: Kind) -> &mut Vec<Piece> {
        match kind {
            Kind::Weight => &mut self.weight,
            Kind::First => &mut self.first_moment,
            Kind::Second => &mut self.second_moment,
        }
    }
}

/// The layout a checkpoint was written under: for people to read; loading does not look at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Ranks that wrote it.
    pub world: u64,
    /// The layout as flags.
    pub flags: String,
}

/// A whole checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Steps taken.
    pub step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Sequences of the data that were used up.
    pub sequences: u64,
    /// Number format: `F32` or `F64`.
    pub dtype: String,
    /// The runtime mode, where the run had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The recipe, less what may change between runs of one model.
    pub recipe: Vec<String>,
    /// Of every expert layer the bias by which its experts are chosen, where the recipe has `expert_bias`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expert_bias: Vec<Vec<f64>>,
    /// The layout it was written under.
    pub layout: Written,
    /// Every tensor, by path.
    pub tensors: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Version {
    schema: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    schema: u64,
    /// CRC-32 of `index` as compact JSON.
    crc32: u32,
    index: Index,
}

/// What may differ between runs of one model: where the recipe comes from, and how long sequences are.
const FREE: [&str; 2] = ["source = ", "sequence = "];

/// The lines of a recipe that must be equal for a checkpoint to load: all but source and sequence length.
pub fn identity(recipe: &recipe::Recipe) -> Vec<String> {
    let is_model =
        |line: &&str| !line.is_empty() && !line.starts_with('#') && !FREE.iter().any(|f| line.starts_with(f));
    recipe.to_toml().lines().filter(is_model).map(str::to_string).collect()
}

fn refuse(rule: &'static str, object: &str, message: String) -> Finding {
    Finding::error(rule, Blame::Environment, object, message)
}

fn damaged(object: &str, message: String) -> Finding {
    refuse("checkpoint/index", object, message).hint("the index is damaged: load another checkpoint")
}

impl Index {
    /// As written to disk, sealed with its checksum.
    pub fn to_json(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let sealed = Sealed { schema: SCHEMA, crc32: files::crc32(&body), index: self.clone() };
        serde_json::to_vec_pretty(&sealed).unwrap_or_default()
    }

    /// Reads the text of an index and checks everything that can be checked without the files.
    pub fn parse(text: &[u8]) -> Result<Index, Finding> {
        let unreadable = |e: serde_json::Error| damaged(NAME, format!("`{NAME}` cannot be read: {e}"));
        let Version { schema } = serde_json::from_slice(text).map_err(unreadable)?;
        if schema != SCHEMA {
            let message = format!("`{NAME}` has schema {schema}, and this version reads schema {SCHEMA}");
            let finding = refuse("checkpoint/schema", NAME, message);
            return Err(finding.hint("load it with the version that wrote it, or save it again from there"));
        }
        let sealed: Sealed = serde_json::from_slice(text).map_err(unreadable)?;
        let body = serde_json::to_vec(&sealed.index).map_err(unreadable)?;
        if files::crc32(&body) != sealed.crc32 {
            return Err(damaged(NAME, format!("`{NAME}` does not have the checksum it states")));
        }
        sealed.index.check()?;
        Ok(sealed.index)
    }

    /// Reads the index of a checkpoint's folder.
    pub fn read(folder: &Path) -> Result<Index, Finding> {
        Index::parse(&files::read_small(folder, NAME)?)
    }

    /// The number format, which [`Index::parse`] checked.
    pub fn format(&self) -> Result<Format, Finding> {
        Format::from_name(&self.dtype)
            .ok_or_else(|| damaged(NAME, format!("`{}` is no number format we know", self.dtype)))
    }

    fn check(&self) -> Result<(), Finding> {
        let size = self.format()?.bytes();
        for (path, entry) in &self.tensors {
            let whole = Region::whole(&entry.shape).checked_elements();
            let whole = whole.ok_or_else(|| damaged(path, format!("the shape of `{path}` overflows")))?;
            for (_, kind) in Kind::ALL {
                let pieces = entry.pieces(*kind);
                let mut sum = 0u64;
                for piece in pieces {
                    let elements = piece.check(path, &entry.shape, size)?;
                    sum = sum.saturating_add(elements);
                }
                let is_whole = sum == whole || (*kind == Kind::Second && pieces.is_empty());
                if !is_whole {
                    let message =
                        format!("pieces of `{path}` ({kind}) hold {sum} elements, and the tensor has {whole}");
                    return Err(damaged(path, message));
                }
            }
        }
        Ok(())
    }

    /// Refuses a checkpoint of another model or mode, naming what differs.
    pub fn check_recipe(&self, recipe: &recipe::Recipe, mode: Option<recipe::Mode>) -> Result<(), Finding> {
        check_mode(self.mode.as_deref(), mode)?;
        check_identity(&self.recipe, recipe)
    }
}

/// Refuses a checkpoint of another recipe, naming the first line that differs.
pub fn check_identity(saved: &[String], recipe: &recipe::Recipe) -> Result<(), Finding> {
    let here = identity(recipe);
    if here == saved {
        return Ok(());
    }
    let first = here.iter().zip(saved).find(|(a, b)| a != b);
    let ends = (here.get(saved.len()), saved.get(here.len()));
    let (here, there) = match (first, ends) {
        (Some((a, b)), _) => (a.as_str(), b.as_str()),
        (None, (a, b)) => (a.map_or("nothing", |s| s), b.map_or("nothing", |s| s)),
    };
    let message = format!("the checkpoint is of another recipe: it has `{there}` where this recipe has `{here}`");
    let finding = Finding::error("checkpoint/recipe", Blame::Recipe, recipe.name.terminal(), message);
    Err(finding.hint("`shardwright checkpoint inspect PATH --recipe` prints the recipe it was saved from"))
}

/// Refuses a checkpoint of another mode: a mode is part of a run's identity.
pub fn check_mode(saved: Option<&str>, mode: Option<recipe::Mode>) -> Result<(), Finding> {
    let here = mode.map(|m| m.name());
    if saved == here {
        return Ok(());
    }
    let said = |mode: Option<&str>| mode.map_or("no mode".to_string(), |m| format!("mode `{m}`"));
    let message = format!("the checkpoint was saved in {} and this is {}", said(saved), said(here));
    let hint = saved.map_or("leave --mode out".to_string(), |m| format!("--mode {m}"));
    Err(Finding::error("checkpoint/mode", Blame::Usage, "mode", message).hint(hint))
}

impl Piece {
    /// Refuses a piece that cannot belong to the tensor; gives its number of elements.
    fn check(&self, path: &str, shape: &[u64], size: u64) -> Result<u64, Finding> {
        let fits = self.at.0.len() == shape.len() && self.at.0.iter().zip(shape).all(|(r, n)| r.end <= *n);
        let elements = self.at.checked_elements().filter(|n| fits && *n > 0);
        let bytes = elements.and_then(|n| n.checked_mul(size)).filter(|b| *b == self.bytes);
        let end = bytes.and_then(|b| self.start.checked_add(b));
        match (elements, end) {
            (Some(elements), Some(_)) => files::check_name(&self.file).map(|()| elements),
            _ => Err(damaged(path, format!("`{path}` has no piece {} of {} bytes", self.at, self.bytes))),
        }
    }
}
