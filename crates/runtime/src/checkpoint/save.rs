//! Saving: every rank writes what it answers for into a directory that the first one claims, the first
//! writes the index when all files are durable, and one rename makes a checkpoint of it.

use super::slots::{Duty, Slot, slots};
use super::{PREFIX, Position, Saved, Store, agree, steps};
use crate::real::Real;
use crate::train::Trainer;
use ::checkpoint::files::{self, Item};
use ::checkpoint::folder::unwritten;
use ::checkpoint::index::{self, Entry, Format, Index, Piece, Written};
use ::checkpoint::region::{self, Region};
use comm::{Call, Comm, Dtype, Group, Result};
use diag::{Blame, Finding};
use recipe::Recipe;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use store::{Directory, Kind};

/// Logical shapes by path, without the padding a layout adds.
pub(super) type Shapes = HashMap<String, Vec<u64>>;

pub(super) fn shapes(recipe: &Recipe) -> Shapes {
    recipe.tensors().into_iter().map(|t| (t.path.clone(), t.shape())).collect()
}

pub(super) fn format<R: Real>() -> Format {
    if R::DTYPE == Dtype::F32 { Format::F32 } else { Format::F64 }
}

pub(super) fn save<R: Real>(store: &Store, trainer: &Trainer<R>, recipe: &Recipe, position: Position) -> Result<Saved> {
    let (comm, target) = (trainer.rank.comm, store.at(trainer.steps));
    let claimed = if comm.rank() == 0 { claim(store, &target, comm.world()).map(Some) } else { Ok(None) };
    let folder = agree(comm, "preparing the checkpoint", claimed)?;
    let partial = store.folder.join(told(comm, folder.as_ref())?);
    let written = write_file(trainer, &shapes(recipe), store, &partial);
    let (mine, bytes) = agree(comm, "writing the checkpoint", written)?;
    let tensors = gather(comm, &mine)?;
    let finished = if let Some(folder) = folder {
        let layout = trainer.rank.layout;
        let index = Index {
            step: trainer.steps,
            seed: position.seed,
            sequences: position.sequences,
            dtype: format::<R>().name().to_string(),
            mode: layout.mode.map(|m| m.name().to_string()),
            recipe: index::identity(recipe),
            expert_bias: biases(trainer),
            layout: Written { world: layout.world, flags: layout.all_flags() },
            tensors,
        };
        finish(store, &index, folder)
    } else {
        Ok(())
    };
    agree(comm, "completing the checkpoint", finished)?;
    Ok(Saved { folder: target, bytes })
}

/// The bias of every expert layer, the same on every rank; empty without `expert_bias`.
pub(super) fn biases<R: Real>(trainer: &Trainer<R>) -> Vec<Vec<f64>> {
    trainer.balances.iter().map(|balance| balance.bias.clone()).filter(|bias| !bias.is_empty()).collect()
}

/// The directory to write into; what killed saves left is cleared, whatever step they were at.
fn claim(store: &Store, target: &Path, world: usize) -> Result<Directory> {
    store::make_folders(&store.folder).map_err(unwritten)?;
    store::clean(&store.folder, |label| label.starts_with(PREFIX));
    let mut folder = Directory::new(target).map_err(unwritten)?;
    folder.expect((0..world).map(file_of));
    Ok(folder)
}

/// The name of the directory that the first rank claimed, on every rank.
fn told(comm: &Comm, folder: Option<&Directory>) -> Result<String> {
    let name = folder.and_then(|f| f.path().file_name()).map_or(Vec::new(), |name| name.as_encoded_bytes().to_vec());
    let letters = name.into_iter().map(u64::from).collect();
    let world = Group::new(0..comm.world());
    let (all, _) = comm.all_gather_uneven(&world, Call::new("world", "folder of the checkpoint"), letters)?;
    Ok(all.into_iter().map(|letter| letter as u8 as char).collect())
}

/// The file of a rank.
fn file_of(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// One region of a slot, to be stored as a piece.
struct Job<'s> {
    slot: &'s Slot,
    path: &'s str,
    region: Region,
}

/// Writes this rank's file; gives its pieces by tensor, and their bytes. Tensors of this rank stand
/// in the answer even where others write all of them.
fn write_file<R: Real>(
    trainer: &Trainer<R>,
    shapes: &Shapes,
    store: &Store,
    partial: &Path,
) -> Result<(BTreeMap<String, Entry>, u64)> {
    let (slots, format) = (slots(trainer), format::<R>());
    let (mut entries, mut jobs) = (BTreeMap::new(), Vec::new());
    for (i, param) in trainer.shelf.params.iter().enumerate() {
        let path = param.row.tensor.path.as_str();
        let shape = shapes.get(path).ok_or_else(|| other_recipe(path))?;
        entries.insert(path.to_string(), Entry { shape: shape.clone(), ..Entry::default() });
        let duty = Duty::new(trainer, crate::params::Id(i), store.piece.clone());
        for slot in slots.iter().filter(|s| s.id.0 == i) {
            let regions = duty.regions(trainer, slot, shape);
            jobs.extend(regions.into_iter().map(|region| Job { slot, path, region }));
        }
    }
    let items: Vec<Item> = jobs.iter().map(|job| item(job, format)).collect();
    let header = files::header(&items, serde_json::Map::new());
    let (mut start, mut sums) = (header.len() as u64, Vec::new());
    let bodies = jobs.iter().map(|job| {
        let body = encode(trainer, job);
        sums.push(files::crc32(&body));
        body
    });
    let file = file_of(trainer.rank.comm.rank());
    files::write(&partial.join(&file), std::iter::once(header).chain(bodies))?;
    let mut total = 0;
    for ((job, item), crc32) in jobs.into_iter().zip(items).zip(sums) {
        let piece = Piece { file: file.clone(), at: job.region, start, bytes: item.bytes, crc32 };
        (start, total) = (start + item.bytes, total + item.bytes);
        entries.entry(job.path.to_string()).or_default().pieces_mut(job.slot.kind).push(piece);
    }
    Ok((entries, total))
}

fn other_recipe(path: &str) -> Finding {
    let message = format!("the trainer holds `{path}`, which the recipe given to the checkpoint does not have");
    Finding::error("checkpoint/recipe", Blame::Usage, path, message).hint("give the recipe the trainer was made from")
}

fn item(job: &Job, format: Format) -> Item {
    let Job { slot, path, region } = job;
    let name = format!("{}/{path}{region}", slot.kind);
    Item { name, dtype: format.name(), shape: region.shape(), bytes: region.elements() * format.bytes() }
}

/// The bytes of a piece, little-endian and row by row.
fn encode<R: Real>(trainer: &Trainer<R>, job: &Job) -> Vec<u8> {
    let part = &trainer.shelf.params[job.slot.id.0].part;
    let local = region::local(part, &job.region);
    let (values, len) = (job.slot.values(trainer), local.row_len() as usize);
    let mut out = Vec::with_capacity(job.region.elements() as usize * R::BYTES as usize);
    for start in Region::whole(&part.shape()).rows(&local) {
        let first = start as usize - job.slot.local.start;
        for value in &values[first..first + len] {
            match R::DTYPE {
                Dtype::F32 => out.extend_from_slice(&(value.f64() as f32).to_le_bytes()),
                _ => out.extend_from_slice(&value.f64().to_le_bytes()),
            }
        }
    }
    out
}

/// Everyone's pieces by tensor. They travel as JSON, eight bytes to a number, behind their length.
fn gather(comm: &Comm, mine: &BTreeMap<String, Entry>) -> Result<BTreeMap<String, Entry>> {
    let text = serde_json::to_vec(mine).unwrap_or_default();
    let mut numbers = vec![text.len() as u64];
    numbers.extend(text.chunks(8).map(|c| {
        let mut eight = [0; 8];
        eight[..c.len()].copy_from_slice(c);
        u64::from_le_bytes(eight)
    }));
    let world = Group::new(0..comm.world());
    let (all, counts) = comm.all_gather_uneven(&world, Call::new("world", "pieces of the checkpoint"), numbers)?;
    let (mut rest, mut merged) = (all.as_slice(), BTreeMap::<String, Entry>::new());
    for (rank, count) in counts.into_iter().enumerate() {
        let (theirs, others) = rest.split_at(count);
        rest = others;
        let mut bytes: Vec<u8> = theirs[1..].iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.truncate(theirs[0] as usize);
        let entries: BTreeMap<String, Entry> = serde_json::from_slice(&bytes).map_err(|e| {
            Finding::error("checkpoint/peer", Blame::Bug, "pieces", format!("rank {rank} sent an unreadable list: {e}"))
        })?;
        for (path, entry) in entries {
            let into = merged.entry(path).or_default();
            into.shape = entry.shape;
            into.weight.extend(entry.weight);
            into.first_moment.extend(entry.first_moment);
            into.second_moment.extend(entry.second_moment);
        }
    }
    Ok(merged)
}

/// Writes the index, gives the checkpoint its name, and removes old ones that are ours.
fn finish(store: &Store, index: &Index, mut folder: Directory) -> Result<()> {
    folder.write(index::NAME, &index.to_json(), Kind::Plain).map_err(unwritten)?;
    folder.publish().map_err(unwritten)?;
    let is_ours = |step: &u64| Index::read(&store.at(*step)).is_ok();
    let older: Vec<u64> =
        steps(&store.folder)?.into_iter().filter(|step| *step <= index.step).filter(is_ours).collect();
    for step in older.iter().rev().skip(store.keep.get()) {
        store::discard(&store.at(*step)).map_err(unwritten)?;
    }
    Ok(())
}
