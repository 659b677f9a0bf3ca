//! Checkpoints that load under any legal layout.
//!
//! Every element of every tensor is stored once, in logical coordinates: no rank, padding or packing
//! of a layout is in a file, only in who wrote which. A checkpoint is a folder `step-N` that appears
//! by one rename when all of it is durable. What a killed save leaves has a hidden name, and the next
//! save removes it (`store`).
//!
//! Not here: the data itself (a position in it is kept), and optimizer settings, which a run may
//! change between steps.

mod load;
mod save;
mod slots;

pub use ::checkpoint::{Entry, Format, Index, Kind, NAME, Piece, Region, SCHEMA, Written};

use crate::real::Real;
use crate::train::Trainer;
use ::checkpoint::files;
use comm::{Call, Comm, Group, Result};
use diag::{Blame, Finding};
use recipe::Recipe;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Least and most elements of a piece. What several ranks hold is dealt out among them in pieces of at
/// least the first; a reader must read whole pieces to check them, so none is larger than the second.
const PIECE: RangeInclusive<u64> = 1 << 12..=1 << 18;

const PREFIX: &str = "step-";

/// Where a run stands besides its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Seed of the run: initial values and data follow from it.
    pub seed: u64,
    /// Sequences of the data that were used up.
    pub sequences: u64,
}

/// What a save wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The checkpoint's folder.
    pub folder: PathBuf,
    /// Bytes of tensors this rank wrote.
    pub bytes: u64,
}

/// What a load read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Steps taken before the checkpoint; the trainer goes on from there.
    pub step: u64,
    /// Where the run stood.
    pub position: Position,
    /// Bytes of tensors this rank read.
    pub bytes: u64,
}

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    keep: NonZeroUsize,
    piece: RangeInclusive<u64>,
}

impl Store {
    /// Checkpoints in `folder`, of which the last `keep` up to the newest saved are kept.
    pub fn new(folder: impl Into<PathBuf>, keep: NonZeroUsize) -> Store {
        Store { folder: folder.into(), keep, piece: PIECE }
    }

    /// The same with other sizes of pieces, in elements.
    pub fn pieces(self, piece: RangeInclusive<u64>) -> Store {
        Store { piece: (*piece.start()).max(1)..=(*piece.end()).max(1), ..self }
    }

    /// Saves a trainer after its last step. Every rank calls it; it returns when the checkpoint is
    /// durable, or with a finding on every rank.
    pub fn save<R: Real>(&self, trainer: &Trainer<R>, recipe: &Recipe, position: Position) -> Result<Saved> {
        save::save(self, trainer, recipe, position)
    }

    /// Complete checkpoints by step, oldest first.
    pub fn steps(&self) -> Result<Vec<u64>> {
        steps(&self.folder)
    }

    /// The folder of the newest complete checkpoint.
    pub fn latest(&self) -> Result<Option<PathBuf>> {
        Ok(self.steps()?.last().map(|step| self.at(*step)))
    }

    /// The folder of a step.
    pub fn at(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{PREFIX}{step}"))
    }
}

/// Loads a checkpoint's folder into a trainer of the same recipe under any layout. Every rank calls
/// it. The trainer is changed only when every rank could read all it needs.
pub fn load<R: Real>(folder: &Path, trainer: &mut Trainer<R>, recipe: &Recipe) -> Result<Loaded> {
    load::load(folder, trainer, recipe)
}

fn steps(folder: &Path) -> Result<Vec<u64>> {
    let mut steps: Vec<u64> = names(folder)?.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Names in a folder; none where there is no folder yet.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| files::failed("list", folder, &e))?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<io::Result<_>>().map_err(|e| files::failed("list", folder, &e))
}

/// The step a complete checkpoint's name states; written one way only.
fn step_of(name: &str) -> Option<u64> {
    let step: u64 = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name == format!("{PREFIX}{step}")).then_some(step)
}

/// A rank's own outcome where all succeeded or it failed itself; otherwise a finding that names the
/// ranks that failed, with the words of the first: whichever rank's finding is shown, they stand in it.
fn agree<T>(comm: &Comm, name: &'static str, outcome: Result<T>) -> Result<T> {
    let world = Group::new(0..comm.world());
    let flags = comm.all_gather(&world, Call::new("world", name), vec![u64::from(outcome.is_err())])?;
    let failed: Vec<u64> = (0..).zip(flags).filter(|(_, flag)| *flag != 0).map(|(rank, _)| rank).collect();
    let Some(first) = failed.first() else { return outcome };
    let mine = outcome.as_ref().err().map_or(Vec::new(), |finding| finding.message.bytes().map(u64::from).collect());
    let (letters, counts) = comm.all_gather_uneven(&world, Call::new("world", "why it failed"), mine)?;
    outcome?;
    let said: Vec<u8> = letters.into_iter().take(counts[*first as usize]).map(|letter| letter as u8).collect();
    let message = format!("{name} failed on rank {}: {}", diag::list(&failed), String::from_utf8_lossy(&said));
    let finding = Finding::error("checkpoint/peer", Blame::Environment, name, message);
    Err(finding.hint("what that rank says of its folder is what to mend"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_checkpoints_have_a_step() {
        for (name, step) in [("step-0", Some(0)), ("step-12", Some(12)), ("step-12.partial", None), ("step-+1", None)] {
            assert_eq!(step_of(name), step, "{name}");
        }
        for name in ["step-", "step-01", "step-99999999999999999999", "12", "../step-1"] {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
