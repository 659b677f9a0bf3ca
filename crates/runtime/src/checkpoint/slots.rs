//! Where a rank keeps the state of its parameters, and which of it the rank writes into a checkpoint.
//! Parts come from the ownership table and runs from the flat buffers; nothing is decided anew here.

use crate::optimizer::{pieces, steps_by_muon};
use crate::params::Id;
use crate::real::Real;
use crate::train::{Trainer, clip, shift};
use ::checkpoint::files;
use ::checkpoint::index::Kind;
use ::checkpoint::region::{self, Region};
use layout::ownership::Part;
use layout::{Axis, ZeroStage};
use recipe::{Segment, Tensor};
use std::ops::{Range, RangeInclusive};

/// A run of one parameter's state on this rank.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub kind: Kind,
    pub id: Id,
    flat: usize,
    /// Which elements of the rank's part they are, in the order of the part.
    pub local: Range<usize>,
    /// Where they lie in the matrix or buffer that stores them.
    at: Range<usize>,
}

/// Every slot of a rank.
pub(super) fn slots<R: Real>(trainer: &Trainer<R>) -> Vec<Slot> {
    let is_sharded = trainer.rank.layout.zero == ZeroStage::Three;
    let mut all = Vec::new();
    for (flat, f) in trainer.vault.flats.iter().enumerate() {
        for (&id, span) in f.ids.iter().zip(&f.spans).filter(|_| !is_sharded) {
            let kind = Kind::Weight;
            all.push(Slot { kind, id, flat, local: 0..span.len(), at: 0..span.len() });
        }
        let mut second = 0;
        for piece in pieces(f) {
            let (id, at) = (piece.id, piece.at);
            let span = f.ids.iter().position(|i| *i == id).map_or(0, |i| f.spans[i].start);
            let local = at.start + f.held.start - span..at.end + f.held.start - span;
            let slot = |kind, at| Slot { kind, id, flat, local: local.clone(), at };
            if is_sharded {
                all.push(slot(Kind::Weight, at.clone()));
            }
            all.push(slot(Kind::First, at.clone()));
            if !steps_by_muon(&trainer.shelf, id) {
                all.push(slot(Kind::Second, second..second + at.len()));
                second += at.len();
            }
        }
    }
    all
}

impl Slot {
    /// The values.
    pub fn values<'t, R: Real>(&self, trainer: &'t Trainer<R>) -> &'t [R] {
        let state = &trainer.states[self.flat];
        let store = match self.kind {
            Kind::Weight if trainer.rank.layout.zero == ZeroStage::Three => &trainer.vault.held[self.flat],
            Kind::Weight => &trainer.weights[self.id.0].data,
            Kind::First => &state.first,
            Kind::Second => &state.second,
        };
        &store[self.at.clone()]
    }

    /// The values, to write.
    pub fn values_mut<'t, R: Real>(&self, trainer: &'t mut Trainer<R>) -> &'t mut [R] {
        let state = &mut trainer.states[self.flat];
        let store = match self.kind {
            Kind::Weight if trainer.rank.layout.zero == ZeroStage::Three => &mut trainer.vault.held[self.flat],
            Kind::Weight => &mut trainer.weights[self.id.0].data,
            Kind::First => &mut state.first,
            Kind::Second => &mut state.second,
        };
        &mut store[self.at.clone()]
    }

    /// Where its elements lie in the logical tensor; rows that only pad it lie nowhere.
    pub fn regions<R: Real>(&self, trainer: &Trainer<R>, shape: &[u64]) -> Vec<Region> {
        regions(trainer, self.id, &self.local, shape)
    }
}

fn regions<R: Real>(trainer: &Trainer<R>, id: Id, local: &Range<usize>, shape: &[u64]) -> Vec<Region> {
    let part = &trainer.shelf.params[id.0].part;
    let all = region::of_part(part, local.start as u64..local.end as u64);
    all.iter().filter_map(|r| r.meet(&Region::whole(shape))).collect()
}

/// Which rank writes what. Replicas divide a flat buffer as ZeRO would, under every stage; what several
/// ranks hold even so (tensors that tp does not cut, shared heads, copies on other stages) is dealt out
/// among those holders.
pub(super) struct Duty {
    /// Ranks at this rank's place among replicas that hold the current parameter, with their parts.
    holders: Vec<(usize, Part)>,
    me: usize,
    /// Fewest elements worth dealing out, and most elements of a piece.
    elements: RangeInclusive<u64>,
}

impl Duty {
    pub fn new<R: Real>(trainer: &Trainer<R>, id: Id, elements: RangeInclusive<u64>) -> Duty {
        let (rank, param) = (&trainer.rank, &trainer.shelf.params[id.0]);
        let replicas: &[Axis] = if param.is_expert() { &[Axis::Edp] } else { &[Axis::Dp, Axis::Cp] };
        let world = (0..rank.comm.world()).map(|r| (r, rank.coordinates(r)));
        let is_holder = |(_, at): &(usize, layout::mesh::Coordinates)| {
            param.holders.contains(&(at.on(Axis::Pp) as usize)) && replicas.iter().all(|a| at.on(*a) == rank.at.on(*a))
        };
        let holders = world.filter(is_holder).map(|(r, at)| (r, param.row.part(rank.layout, &at))).collect();
        Duty { holders, me: rank.comm.rank(), elements }
    }

    /// The regions of a slot that this rank writes, each no larger than a piece.
    pub fn regions<R: Real>(&self, trainer: &Trainer<R>, slot: &Slot, shape: &[u64]) -> Vec<Region> {
        let flat = &trainer.vault.flats[slot.flat];
        let place = flat.group.place(self.me).unwrap_or(0);
        let Some(at) = flat.ids.iter().position(|id| *id == slot.id) else { return Vec::new() };
        let share = clip(&flat.spans[at], &flat.share(place));
        if share.is_empty() {
            return Vec::new();
        }
        let local = shift(&share, flat.spans[at].start);
        let whole = regions(trainer, slot.id, &local, shape);
        let tensor = &trainer.shelf.params[slot.id.0].row.tensor;
        let by_segment = whole.iter().flat_map(|r| region::split(&segments(tensor), r));
        by_segment.flat_map(|r| self.mine(&r, &tensor.path)).collect()
    }

    /// The pieces of a region that this rank writes. Holders take pieces in turn; who starts follows
    /// from a hash of the region's name, so that small regions are spread evenly without talking.
    fn mine(&self, region: &Region, path: &str) -> Vec<Region> {
        let holders: Vec<usize> = self.holders.iter().filter(|(_, p)| region.is_in(p)).map(|(r, _)| *r).collect();
        let Some(place) = holders.iter().position(|r| *r == self.me) else { return Vec::new() };
        let (least, most) = (*self.elements.start(), *self.elements.end());
        let each = region.elements().div_ceil(holders.len() as u64);
        let pieces = region.halves(each.max(least).min(most));
        let turn = place + files::crc32(format!("{path}{region}").as_bytes()) as usize;
        pieces.into_iter().skip(turn % holders.len()).step_by(holders.len()).collect()
    }
}

/// A whole tensor, cut where its segments end, so that no piece spans two segments: other degrees cut
/// within segments.
fn segments(tensor: &Tensor) -> Part {
    let ranges = tensor.dims.iter().map(|dim| {
        let mut end = 0;
        let segment = |s: &Segment| {
            let start = end;
            end += s.len();
            start..end
        };
        dim.0.iter().map(segment).collect()
    });
    Part { dims: ranges.collect() }
}
