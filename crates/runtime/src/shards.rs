//! Training state shared out over replicas. Parameters of one place of the model and one mesh lie
//! end to end in a flat buffer; each rank of the sharing group holds an equal run of it.

use crate::mat::Mat;
use crate::params::{Id, Shelf};
use crate::rank::Rank;
use crate::real::Real;
use comm::{Call, Group, Op, Result};
use layout::ZeroStage;
use recipe::Place;
use std::ops::Range;

/// Parameters whose state is shared out together.
#[derive(Clone, Debug)]
pub(crate) struct Flat {
    pub place: Place,
    pub ids: Vec<Id>,
    /// Where each parameter lies.
    pub spans: Vec<Range<usize>>,
    pub len: usize,
    /// Ranks that hold the same parameters.
    pub group: Group,
    pub axis: &'static str,
    /// The run this rank keeps and steps.
    pub held: Range<usize>,
    /// Ranks of other stages that hold a copy, this one among them.
    pub copies: Group,
}

impl Flat {
    /// The buffers of a rank: by place, dense and expert parameters apart.
    pub fn all(shelf: &Shelf, rank: &Rank) -> Vec<Flat> {
        let mut flats: Vec<Flat> = Vec::new();
        for (i, param) in shelf.params.iter().enumerate() {
            let (group, axis) = if param.is_expert() { (&rank.edp, "edp") } else { (&rank.shards, "dp") };
            let place = param.row.tensor.place;
            let copies = Group::new(param.holders.iter().map(|stage| rank.pp.ranks()[*stage]));
            let is_like = |f: &Flat| f.place == place && f.axis == axis && f.copies == copies;
            let at = flats.iter().position(is_like).unwrap_or_else(|| {
                let (ids, spans, group) = (Vec::new(), Vec::new(), group.clone());
                flats.push(Flat { place, ids, spans, len: 0, group, axis, held: 0..0, copies: copies.clone() });
                flats.len() - 1
            });
            let elements = param.part.elements() as usize;
            let flat = &mut flats[at];
            flat.ids.push(Id(i));
            flat.spans.push(flat.len..flat.len + elements);
            flat.len += elements;
        }
        for flat in &mut flats {
            let shares = rank.layout.zero != ZeroStage::Zero;
            flat.held = if shares { flat.share(flat.group.place(rank.comm.rank()).unwrap_or(0)) } else { 0..flat.len };
        }
        flats
    }

    /// The run of one member; the larger runs first, as a reduce-scatter deals them.
    fn share(&self, place: usize) -> Range<usize> {
        let (each, more) = (self.len / self.group.len(), self.len % self.group.len());
        let start = place * each + place.min(more);
        start..start + each + usize::from(place < more)
    }

    /// The parameters end to end.
    pub fn pack<R: Real>(&self, from: &[Mat<R>]) -> Vec<R> {
        let mut whole = Vec::with_capacity(self.len);
        self.ids.iter().for_each(|id| whole.extend_from_slice(&from[id.0].data));
        whole
    }

    /// The run of a whole buffer that this rank holds.
    pub fn cut<R: Real>(&self, from: &[Mat<R>]) -> Vec<R> {
        self.pack(from)[self.held.clone()].to_vec()
    }

    /// Gradients summed over the group: the run this rank holds.
    pub fn reduce<R: Real>(&self, rank: &Rank, grads: &[Mat<R>]) -> Result<Vec<R>> {
        let (whole, call) = (self.pack(grads), Call::new(self.axis, "gradients"));
        match rank.layout.zero {
            ZeroStage::Zero => rank.comm.all_reduce(&self.group, call, Op::Sum, whole),
            _ => rank.comm.reduce_scatter(&self.group, call, whole),
        }
    }

    /// Everyone's runs end to end.
    pub fn gather<R: Real>(&self, rank: &Rank, name: &'static str, held: Vec<R>) -> Result<Vec<R>> {
        match rank.layout.zero {
            ZeroStage::Zero => Ok(held),
            _ => Ok(rank.comm.all_gather_uneven(&self.group, Call::new(self.axis, name), held)?.0),
        }
    }
}

/// Weights that are whole only while they are used.
pub struct Vault<R> {
    pub(crate) flats: Vec<Flat>,
    pub(crate) held: Vec<Vec<R>>,
}

impl<R: Real> Vault<R> {
    fn at(&self, place: Place) -> impl Iterator<Item = (&Flat, &Vec<R>)> {
        self.flats.iter().zip(&self.held).filter(move |(flat, _)| flat.place == place)
    }

    /// Gathers the weights of a place.
    pub(crate) fn open(&self, rank: &Rank, place: Place, weights: &mut [Mat<R>]) -> Result<()> {
        for (flat, held) in self.at(place) {
            let whole = flat.gather(rank, "weights before use", held.clone())?;
            for (id, span) in flat.ids.iter().zip(&flat.spans) {
                weights[id.0].data = whole[span.clone()].to_vec();
            }
        }
        Ok(())
    }

    /// Drops them.
    pub(crate) fn close(&self, place: Place, weights: &mut [Mat<R>]) {
        for id in self.at(place).flat_map(|(flat, _)| &flat.ids) {
            weights[id.0].data = Vec::new();
        }
    }
}
