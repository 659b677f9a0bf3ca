//! Our own format as a [`Checkpoint`], and the names of its state in others.

use crate::about::{self, About, Of};
use crate::dtype::Dtype;
use crate::index::{Entry, Format, Index, Kind};
use crate::open::{Checkpoint, Chunk, Layout, Tensor};
use diag::Finding;
use std::path::Path;

/// Keys of a parameter's values and of its optimizer state, after torch's own names of the state
/// (torch/optim/adamw.py, torch/optim/_muon.py).
pub fn key(path: &str, kind: Kind, is_muon: bool) -> String {
    match (kind, is_muon) {
        (Kind::Weight, _) => format!("model.{path}"),
        (Kind::First, true) => format!("optimizer.{path}.momentum_buffer"),
        (Kind::First, false) => format!("optimizer.{path}.exp_avg"),
        (Kind::Second, _) => format!("optimizer.{path}.exp_avg_sq"),
    }
}

/// A key's parameter, and what it is of it: `None` for a state that our own format has no place for.
pub fn parse(key: &str) -> Option<(&str, Option<Kind>)> {
    if let Some(path) = key.strip_prefix("model.") {
        return Some((path, Some(Kind::Weight)));
    }
    let (path, state) = key.strip_prefix("optimizer.")?.rsplit_once('.')?;
    let kind = match state {
        "momentum_buffer" | "exp_avg" => Some(Kind::First),
        "exp_avg_sq" => Some(Kind::Second),
        _ => None,
    };
    Some((path, kind))
}

pub fn open(folder: &Path) -> Result<Checkpoint, Finding> {
    let index = Index::read(folder)?;
    let dtype = match index.format()? {
        Format::F32 => Dtype::F32,
        Format::F64 => Dtype::F64,
    };
    let mut checkpoint = Checkpoint::new(folder, Layout::Shardwright);
    let of = Of::of_lines(&index.recipe);
    let features = of.recipe(1).ok().map(|recipe| about::features(&recipe));
    checkpoint.about = About {
        schema: about::SCHEMA.to_string(),
        recipe: Some(of),
        mode: index.mode.clone(),
        features,
        layout: Some(index.layout.flags.clone()),
        world: Some(index.layout.world),
        step: Some(index.step),
        data_position: Some(index.sequences),
        seed: Some(index.seed),
        expert_bias: index.expert_bias.clone(),
    };
    for (path, entry) in &index.tensors {
        let is_muon = entry.second_moment.is_empty();
        for (_, kind) in Kind::ALL.iter().filter(|(_, kind)| !entry.pieces(*kind).is_empty()) {
            checkpoint.tensors.insert(key(path, *kind, is_muon), tensor(entry, *kind, dtype));
        }
    }
    Ok(checkpoint)
}

fn tensor(entry: &Entry, kind: Kind, dtype: Dtype) -> Tensor {
    let chunk = |piece: &crate::index::Piece| Chunk {
        at: piece.at.clone(),
        file: piece.file.clone(),
        start: piece.start,
        crc32: Some(piece.crc32),
    };
    Tensor { dtype, shape: entry.shape.clone(), chunks: entry.pieces(kind).iter().map(chunk).collect() }
}
