//! Loading: a rank works out from its own layout which elements it needs, and reads the pieces that
//! hold any of them. Nothing is written to the trainer before everything was read and checked.

use super::save::{Shapes, biases, format, shapes};
use super::slots::{Slot, slots};
use super::{Loaded, PREFIX, Position, agree, step_of, steps};
use crate::real::Real;
use crate::train::Trainer;
use ::checkpoint::files;
use ::checkpoint::index::{Entry, Format, Index, Piece};
use ::checkpoint::region::{self, Region};
use comm::Result;
use diag::{Blame, Finding};
use recipe::Recipe;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

pub(super) fn load<R: Real>(folder: &Path, trainer: &mut Trainer<R>, recipe: &Recipe) -> Result<Loaded> {
    let comm = trainer.rank.comm;
    let (index, all, bytes) = agree(comm, "loading the checkpoint", read(folder, trainer, recipe))?;
    for (slot, values) in all {
        slot.values_mut(trainer).copy_from_slice(&values);
    }
    trainer.balances.iter_mut().zip(&index.expert_bias).for_each(|(balance, bias)| balance.bias.clone_from(bias));
    trainer.steps = index.step;
    let position = Position { seed: index.seed, sequences: index.sequences };
    Ok(Loaded { step: index.step, position, bytes })
}

type Read<R> = (Index, Vec<(Slot, Vec<R>)>, u64);

/// Reads every slot of this rank; counts the bytes read.
fn read<R: Real>(folder: &Path, trainer: &Trainer<R>, recipe: &Recipe) -> Result<Read<R>> {
    let index = Index::read(folder)?;
    index.check_recipe(recipe, trainer.rank.layout.mode)?;
    let format = format::<R>();
    if index.format()? != format {
        let message = format!("the checkpoint holds {} and the run computes in {format}", index.dtype);
        let finding = Finding::error("checkpoint/dtype", Blame::Usage, "dtype", message);
        return Err(finding.hint(format!("run with `--dtype {}`", index.dtype.to_lowercase())));
    }
    let shapes = shapes(recipe);
    check_tensors(&index, &shapes)?;
    let sizes = |all: &[Vec<f64>]| all.iter().map(Vec::len).collect::<Vec<_>>();
    if sizes(&index.expert_bias) != sizes(&biases(trainer)) {
        let message = "the checkpoint does not hold the bias of every expert layer".to_string();
        let finding = Finding::error("checkpoint/index", Blame::Environment, "expert_bias", message);
        return Err(finding.hint("it is damaged, or of a version that did not keep it: save it again"));
    }
    let mut reader = Reader { folder, format, files: HashMap::new(), bytes: 0 };
    let mut all = Vec::new();
    for slot in slots(trainer) {
        let path = &trainer.shelf.params[slot.id.0].row.tensor.path;
        let (entry, shape) = (&index.tensors[path], &shapes[path]);
        let values = reader.slot(trainer, &slot, path, entry, shape)?;
        all.push((slot, values));
    }
    Ok((index, all, reader.bytes))
}

/// Refuses an index that lacks a tensor of the recipe, has one too many, or has it in another shape.
fn check_tensors(index: &Index, shapes: &Shapes) -> Result<()> {
    let refuse = |path: &str, message: String| {
        let finding = Finding::error("checkpoint/index", Blame::Environment, path, message);
        Err(finding.hint("the index is damaged: load another checkpoint"))
    };
    for (path, shape) in shapes {
        match index.tensors.get(path) {
            None => return refuse(path, format!("the checkpoint lacks `{path}`")),
            Some(entry) if entry.shape != *shape => {
                let message = format!("`{path}` is {:?} in the checkpoint and {shape:?} in the recipe", entry.shape);
                return refuse(path, message);
            }
            Some(_) => {}
        }
    }
    match index.tensors.keys().find(|path| !shapes.contains_key(*path)) {
        Some(path) => refuse(path, format!("the checkpoint has `{}`, the recipe has not", diag::quote::terminal(path))),
        None => Ok(()),
    }
}

struct Reader<'f> {
    folder: &'f Path,
    format: Format,
    files: HashMap<String, (File, u64)>,
    bytes: u64,
}

impl Reader<'_> {
    /// The values of one slot. Padding, which no checkpoint holds, is zero: no loss ever reads it.
    fn slot<R: Real>(
        &mut self,
        trainer: &Trainer<R>,
        slot: &Slot,
        path: &str,
        entry: &Entry,
        shape: &[u64],
    ) -> Result<Vec<R>> {
        let part = &trainer.shelf.params[slot.id.0].part;
        let whole = Region::whole(&part.shape());
        let wanted = slot.regions(trainer, shape);
        let mut values = vec![R::ZERO; slot.local.len()];
        let mut is_read = vec![false; slot.local.len()];
        for piece in entry.pieces(slot.kind) {
            let shared: Vec<Region> = wanted.iter().filter_map(|w| w.meet(&piece.at)).collect();
            if shared.is_empty() {
                continue;
            }
            let stored: Vec<R> = self.piece(path, piece)?;
            for region in shared {
                let local = region::local(part, &region);
                let len = region.row_len() as usize;
                for (to, from) in whole.rows(&local).into_iter().zip(piece.at.rows(&region)) {
                    let (to, from) = (to as usize - slot.local.start, from as usize);
                    if is_read[to..to + len].contains(&true) {
                        return Err(twice(path, piece));
                    }
                    is_read[to..to + len].fill(true);
                    values[to..to + len].copy_from_slice(&stored[from..from + len]);
                }
            }
        }
        let count = is_read.iter().filter(|r| **r).count() as u64;
        let needed = wanted.iter().map(Region::elements).sum::<u64>();
        if count != needed {
            let message = format!("no piece of `{path}` ({}) holds {} of its elements", slot.kind, needed - count);
            return Err(self.refuse("checkpoint/index", path, message));
        }
        Ok(values)
    }

    /// Reads a piece whole, since the checksum is that of the whole piece.
    fn piece<R: Real>(&mut self, path: &str, piece: &Piece) -> Result<Vec<R>> {
        let name = &piece.file;
        let needs = format!("`{path}` {} needs it", piece.at);
        if !self.files.contains_key(name) {
            let opened = files::open(self.folder, name).map_err(|unopened| match unopened {
                files::Unopened::Missing(f) => self.refuse(f.rule, name, format!("{}, and {needs}", f.message)),
                files::Unopened::Failed(finding) => finding,
            })?;
            self.files.insert(name.clone(), opened);
        }
        let (file, len) = self.files.get_mut(name).unwrap_or_else(|| unreachable!("opened above"));
        let len = *len;
        if piece.start + piece.bytes > len {
            let end = piece.start + piece.bytes;
            let message = format!("`{name}` has {len} bytes, and `{path}` {} ends at byte {end}", piece.at);
            return Err(self.refuse("checkpoint/truncated", name, message));
        }
        let bytes = files::read_at(file, piece.start, piece.bytes)
            .map_err(|e| files::failed("read", &self.folder.join(name), &e))?;
        self.bytes += piece.bytes;
        let found = files::crc32(&bytes);
        if found != piece.crc32 {
            let message = format!(
                "`{name}` is damaged: bytes {}..{}, which hold `{path}` {}, have checksum {found:08x} and not {:08x}",
                piece.start,
                piece.start + piece.bytes,
                piece.at,
                piece.crc32
            );
            return Err(self.refuse("checkpoint/damaged", name, message));
        }
        Ok(decode(&bytes, self.format))
    }

    /// A refusal that says which checkpoint would do instead.
    fn refuse(&self, rule: &'static str, object: &str, message: String) -> Finding {
        let here = self.folder.file_name().and_then(|n| step_of(&n.to_string_lossy()));
        let all = self.folder.parent().map(steps).and_then(std::result::Result::ok).unwrap_or_default();
        let older = all.iter().rev().find(|step| Some(**step) < here);
        let hint = match older {
            Some(step) => format!("restore the file from a copy, or load `{PREFIX}{step}`, the last one before"),
            None => "restore the file from a copy: there is no earlier checkpoint beside it".to_string(),
        };
        Finding::error(rule, Blame::Environment, object, message).hint(hint)
    }
}

fn twice(path: &str, piece: &Piece) -> Finding {
    let message = format!("pieces of `{path}` overlap at {}", piece.at);
    let finding = Finding::error("checkpoint/index", Blame::Environment, path, message);
    finding.hint("the index is damaged: load another checkpoint")
}

fn decode<R: Real>(bytes: &[u8], format: Format) -> Vec<R> {
    let number = |b: &[u8]| match format {
        Format::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Format::F64 => f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
    };
    bytes.chunks_exact(format.bytes() as usize).map(|b| R::of(number(b))).collect()
}
