//! What blocks are replayed with: sizes, and the buffers of exchanges around them.

use super::heap::{Buf, Heap};
use crate::shardwright::chunk::ByPath;
use crate::shardwright::local::Local;
use crate::shardwright::saves::{Holds, Save, Sizes, of_routed};
use layout::{Layout, OwnershipTable};
use recipe::{Mixer, Recipe};
use replay::line::Line;

/// What one pass over a mixer kept.
pub(super) type Kept = Vec<Buf>;

/// One rank's blocks.
#[derive(Clone)]
pub(super) struct Cx<'a> {
    pub recipe: &'a Recipe,
    pub layout: &'a Layout,
    pub table: &'a OwnershipTable,
    pub heap: Heap,
    pub sizes: Sizes,
    pub rows: ByPath,
}

impl<'a> Cx<'a> {
    pub fn local(&self, path: &'a str) -> Local<'a> {
        Local { layout: self.layout, table: self.table, path }
    }

    pub fn hidden(&self) -> usize {
        self.recipe.hidden as usize
    }

    pub fn tp(&self) -> usize {
        self.layout.tp.get() as usize
    }

    /// A temporary of a pass.
    pub fn temp(&self, len: usize) -> Buf {
        self.heap.reals(Line::ActivationGradients, len)
    }

    /// Residual stream of the rank's own tokens.
    pub fn stream(&self) -> Buf {
        self.temp(self.sizes.shard * self.hidden())
    }

    fn moved(&self, len: usize) -> Buf {
        self.heap.reals(Line::Communication, len)
    }

    /// Into a tensor-parallel region: the whole is there before the part is freed.
    pub fn enter(&self, x: Buf) -> Buf {
        if self.layout.sp { self.moved(x.len * self.tp()).onto(Line::ActivationGradients) } else { x }
    }

    /// Out of it: the sum of one share is there before the partial sums are freed.
    pub fn leave(&self, y: Buf) -> Buf {
        match (self.layout.sp, self.layout.tp.splits()) {
            (true, _) => self.moved(y.len / self.tp()).onto(Line::ActivationGradients),
            (false, true) => {
                let _share = self.moved(y.len / self.tp());
                y
            }
            (false, false) => y,
        }
    }

    /// An all-to-all of equal parts over the context axis: sent, received and put in order.
    pub fn trade(&self, x: Buf) -> Buf {
        if self.sizes.cp == 1 {
            return x;
        }
        let sent = self.moved(x.len);
        let came = self.moved(x.len);
        drop(sent);
        let out = self.temp(x.len);
        drop(came);
        out
    }

    /// What a mixer declares to keep.
    pub fn saves(&self, mixer: Mixer, path: &str) -> Vec<Save> {
        of_routed(self.recipe, self.layout, self.table, mixer, path, self.rows.of(path))
    }

    /// A declared thing, made where it stays.
    pub fn kept(&self, save: &Save) -> Buf {
        let len = save.elements() as usize;
        match save.holds {
            Holds::Reals => self.heap.reals(Line::Activations, len),
            Holds::Indices => self.heap.bytes(Line::RoutingScratch, len as u64 * 8),
        }
    }
}

/// The columns of a declared thing.
pub(super) fn cols(saves: &[Save], name: &str) -> usize {
    saves.iter().find(|s| s.name == name).map_or(0, |s| s.cols)
}

/// The elements of a declared thing.
pub(super) fn len(saves: &[Save], name: &str) -> usize {
    saves.iter().find(|s| s.name == name).map_or(0, |s| s.elements() as usize)
}
