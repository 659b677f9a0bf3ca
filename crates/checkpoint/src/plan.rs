//! Who writes what under a layout: the boxes of every tensor and the rank each belongs to. Parts are the
//! ownership table's; what several ranks hold is dealt out among them along the first dimension, as
//! FSDP2 shards it.

use crate::files;
use crate::own;
use crate::region::{self, Region};
use diag::{Blame, Finding};
use layout::mesh::{Mesh, Order};
use layout::ownership::Row;
use layout::{Axis, Layout, OwnershipTable};
use recipe::{Mixer, Recipe};
use std::collections::{BTreeMap, HashMap};

/// Fewest elements worth dealing out.
const LEAST: u64 = 1 << 12;

/// What a checkpoint is written for.
pub enum Target<'a> {
    /// This many ranks, whatever the tensors are: each a share of the first dimension.
    Even(u64),
    /// The parts of a layout.
    Layout {
        /// The recipe as its mode runs it.
        recipe: &'a Recipe,
        /// Its layout.
        layout: &'a Layout,
        /// Rows by path.
        rows: HashMap<String, Row>,
        /// Stages that hold each row.
        stages: HashMap<String, Vec<u64>>,
        /// Ranks and where they stand.
        mesh: Box<Mesh>,
    },
}

impl<'a> Target<'a> {
    /// The parts of a legal layout.
    pub fn new(recipe: &'a Recipe, layout: &'a Layout) -> Result<Target<'a>, Vec<Finding>> {
        let table = OwnershipTable::new(recipe, layout)?;
        let on = |row: &Row| -> Vec<u64> {
            let all = 0..table.stages.by_stage.len();
            all.filter(|stage| table.copies_on_stage(row, *stage) > 0).map(|stage| stage as u64).collect()
        };
        let stages = table.rows.iter().map(|row| (row.tensor.path.clone(), on(row))).collect();
        let mesh = Mesh::new(layout, Order::Megatron, recipe.uses(Mixer::Moe)).map_err(|f| vec![f])?;
        let rows = table.rows.iter().map(|row| (row.tensor.path.clone(), row.clone())).collect();
        Ok(Target::Layout { recipe, layout, rows, stages, mesh: Box::new(mesh) })
    }

    /// Ranks in all.
    pub fn world(&self) -> u64 {
        match self {
            Target::Even(world) => *world,
            Target::Layout { layout, .. } => layout.world,
        }
    }

    /// Boxes of a tensor and the rank that writes each. A tensor that is not the recipe's is refused.
    pub fn boxes(&self, key: &str, shape: &[u64]) -> Result<Vec<(u64, Region)>, Finding> {
        let whole = Region::whole(shape);
        let (path, kind) = own::parse(key).unwrap_or((key, None));
        match self {
            Target::Even(world) => Ok(dealt(&whole, &(0..*world).collect::<Vec<_>>(), key, 1)),
            // A count that an optimizer keeps of a tensor belongs to whoever holds the tensor.
            Target::Layout { rows, .. } if kind.is_none() && shape.is_empty() && rows.contains_key(path) => {
                Ok(vec![(self.holder(path), whole)])
            }
            Target::Layout { layout, rows, recipe, .. } => {
                let row = rows.get(path).filter(|_| kind.is_some()).ok_or_else(|| stranger(key, recipe))?;
                let mut held: BTreeMap<Vec<[u64; 2]>, Vec<u64>> = BTreeMap::new();
                for rank in self.holders(path) {
                    let part = row.part(layout, &self.at(rank));
                    let boxes = region::of_part(&part, 0..part.elements());
                    for region in boxes.iter().filter_map(|b| b.meet(&whole)) {
                        held.entry(region.into()).or_default().push(rank);
                    }
                }
                let boxes = held.into_iter().flat_map(|(b, ranks)| dealt(&b.into(), &ranks, path, LEAST));
                Ok(boxes.collect())
            }
        }
    }

    fn at(&self, rank: u64) -> layout::mesh::Coordinates {
        match self {
            Target::Layout { mesh, .. } => mesh.coordinates(rank),
            Target::Even(_) => unreachable!("only a layout has coordinates"),
        }
    }

    fn holders(&self, path: &str) -> impl Iterator<Item = u64> + '_ {
        let stages = match self {
            Target::Layout { stages, .. } => stages.get(path).cloned().unwrap_or_default(),
            Target::Even(_) => Vec::new(),
        };
        (0..self.world()).filter(move |rank| stages.contains(&self.at(*rank).on(Axis::Pp)))
    }

    fn holder(&self, path: &str) -> u64 {
        let ranks: Vec<u64> = self.holders(path).collect();
        let turn = files::crc32(path.as_bytes()) as usize;
        ranks.get(turn % ranks.len().max(1)).copied().unwrap_or(0)
    }
}

fn stranger(key: &str, recipe: &Recipe) -> Finding {
    let message = format!("`{}` is no tensor of `{}`", key.escape_debug(), recipe.name.terminal());
    Finding::error("checkpoint/tensors", Blame::Recipe, key, message)
        .hint("leave the recipe's degrees out and give --world alone: tensors are then cut along their first dimension")
}

/// A box dealt out among ranks along its first dimension, as `torch.chunk` does; a small one goes to one
/// of them, whose turn follows from its name.
fn dealt(whole: &Region, ranks: &[u64], name: &str, least: u64) -> Vec<(u64, Region)> {
    let elements = whole.elements();
    let most = (elements / least).clamp(1, ranks.len() as u64);
    let Some(first) = whole.0.first().filter(|r| most > 1 && r.end > r.start) else {
        let turn = if least == 1 { 0 } else { files::crc32(format!("{name}{whole}").as_bytes()) as usize };
        return ranks.get(turn % ranks.len().max(1)).map(|rank| (*rank, whole.clone())).into_iter().collect();
    };
    let each = (first.end - first.start).div_ceil(most);
    let cut = |(i, rank): (usize, &u64)| {
        let start = first.start + each * i as u64;
        let mut part = whole.clone();
        part.0[0] = start..first.end.min(start + each);
        (start < first.end).then_some((*rank, part))
    };
    ranks.iter().enumerate().filter_map(cut).collect()
}
