//! ZeRO: training state divided over replicas. Parameters of one place of the model and one mesh (dense
//! or expert) lie end to end in a flat buffer, of which each rank of a group holds an equal run.

use crate::mat::Mat;
use crate::params::{Id, Shelf};
use crate::rank::Rank;
use crate::real::Real;
use comm::{Call, Group, Op, Result};
use layout::ZeroStage;
use recipe::Place;
use std::ops::Range;

/// A flat buffer: parameters whose state is divided together.
#[derive(Clone, Debug)]
pub(crate) struct Flat {
    pub place: Place,
    pub ids: Vec<Id>,
    /// Where each parameter lies in the buffer.
    pub spans: Vec<Range<usize>>,
    pub len: usize,
    /// Ranks that divide the buffer: those that hold the same parameters.
    pub group: Group,
    pub axis: &'static str,
    /// The run of the buffer that this rank keeps and updates.
    pub held: Range<usize>,
    /// Ranks of other stages that hold a copy of it, and this one.
    pub copies: Group,
}

impl Flat {
    /// The flat buffers of a rank: one for the dense and one for the expert parameters of each place.
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

    /// The run of one member; the first members get the longer runs, as a reduce-scatter deals them.
    pub fn share(&self, place: usize) -> Range<usize> {
        let (each, more) = (self.len / self.group.len(), self.len % self.group.len());
        let start = place * each + place.min(more);
        start..start + each + usize::from(place < more)
    }

    /// The parameters end to end.
    pub fn pack<R: Real>(&self, from: &[Mat<R>]) -> Vec<R> {
        let mut flat = Vec::with_capacity(self.len);
        self.ids.iter().for_each(|id| flat.extend_from_slice(&from[id.0].data));
        flat
    }

    /// The run that this rank holds, cut out of whole parameters.
    pub fn cut<R: Real>(&self, from: &[Mat<R>]) -> Vec<R> {
        let mut run = Vec::with_capacity(self.held.len());
        for (id, span) in self.ids.iter().zip(&self.spans) {
            let (start, end) = (span.start.max(self.held.start), span.end.min(self.held.end));
            if start < end {
                run.extend_from_slice(&from[id.0].data[start - span.start..end - span.start]);
            }
        }
        run
    }

    /// Sums gradients over the group; gives the run that this rank holds.
    pub fn reduce<R: Real>(&self, rank: &Rank, grads: &[Mat<R>]) -> Result<Vec<R>> {
        let (whole, call) = (self.pack(grads), Call::new(self.axis, "gradients"));
        match rank.layout.zero {
            ZeroStage::Zero => rank.comm.all_reduce(&self.group, call, Op::Sum, whole),
            _ => rank.comm.reduce_scatter(&self.group, call, whole),
        }
    }

    /// The whole buffer, from everyone's runs.
    pub fn gather<R: Real>(&self, rank: &Rank, name: &'static str, held: Vec<R>) -> Result<Vec<R>> {
        match rank.layout.zero {
            ZeroStage::Zero => Ok(held),
            _ => Ok(rank.comm.all_gather_uneven(&self.group, Call::new(self.axis, name), held)?.0),
        }
    }
}

/// The flat buffers of a rank, and under ZeRO 3 its runs of their weights, which are gathered only
/// while a place uses them.
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

    /// Drops the gathered weights of a place.
    pub(crate) fn close(&self, place: Place, weights: &mut [Mat<R>]) {
        for id in self.at(place).flat_map(|(flat, _)| &flat.ids) {
            weights[id.0].data = Vec::new();
        }
    }
}
