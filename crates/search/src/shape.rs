//! A pipeline as the sums see it: what distinct stages and chunks consist of, whatever runs
//! through them.

use crate::cuts::Cut;
use crate::point::Order;
use case::{LayerKinds, PerKind};
use cost::Counts;
use layout::Layout;
use layout::stages::deal;
use memory::estimate::StageShape;

/// One stage, standing for every later one that consists of the same.
#[derive(Clone, Debug)]
pub struct Stage {
    /// What it consists of.
    pub shape: StageShape,
    /// The first such stage: no later one keeps more microbatches in flight.
    pub index: u64,
    /// How many stages of each distinct kind stand before it, in the order of the shape's.
    pub before: Vec<u64>,
    /// How many chunks of each distinct kind stand before its first one, likewise.
    pub chunks_before: Vec<u64>,
}

impl Stage {
    /// As prices count it.
    pub fn counts(&self) -> Counts<'_> {
        Counts { layers: &self.shape.layers, is_first: self.shape.is_first, is_last: self.shape.is_last }
    }
}

/// One chunk of depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    layers: PerKind<u64>,
    is_first: bool,
    is_last: bool,
}

impl Chunk {
    /// As prices count it.
    pub fn counts(&self) -> Counts<'_> {
        Counts { layers: &self.layers, is_first: self.is_first, is_last: self.is_last }
    }
}

/// An order over a cut of the depth.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Schedule and chunks a stage.
    pub order: Order,
    /// Where the depth is cut.
    pub cut: Cut,
    /// Distinct stages.
    pub stages: Vec<Stage>,
    /// Distinct chunks.
    pub chunks: Vec<Chunk>,
    /// Which of them each chunk along the depth is.
    pub chunk_of: Vec<usize>,
    /// Which of the distinct stages each stage is.
    pub stage_of: Vec<usize>,
}

impl Shape {
    /// The shape of a cut of layers of these kinds, which save so much each.
    pub fn new(layout: &Layout, kinds: &LayerKinds, saved: &PerKind<u64>, order: Order, cut: Cut) -> Shape {
        let last = cut.starts.len() - 1;
        let range = |chunk: usize| cut.starts[chunk]..cut.starts.get(chunk + 1).copied().unwrap_or(kinds.depth());
        let (mut chunks, mut chunk_of): (Vec<Chunk>, Vec<usize>) = (Vec::new(), Vec::new());
        for index in 0..=last {
            let chunk = Chunk { layers: kinds.count(range(index)), is_first: index == 0, is_last: index == last };
            chunk_of.push(chunks.iter().position(|c| *c == chunk).unwrap_or_else(|| {
                chunks.push(chunk);
                chunks.len() - 1
            }));
        }
        let (mut stages, mut passed, mut stage_of): (Vec<Stage>, Vec<u64>, Vec<usize>) = Default::default();
        for (index, held) in deal(layout).iter().enumerate() {
            let layers = held.iter().flat_map(|chunk| range(*chunk));
            let within: Vec<PerKind<u64>> = held.iter().map(|chunk| chunks[chunk_of[*chunk]].layers.clone()).collect();
            let shape = StageShape::new(kinds, layers, held.contains(&0), held.contains(&last));
            let shape = shape.in_chunks(&within, saved, layout, index as u64);
            let kind = stages.iter().position(|stage| stage.shape == shape).unwrap_or_else(|| {
                let first = held.iter().copied().min().unwrap_or(0);
                let mut chunks_before = vec![0; chunks.len()];
                chunk_of[..first].iter().for_each(|chunk| chunks_before[*chunk] += 1);
                stages.push(Stage { shape, index: index as u64, before: passed.clone(), chunks_before });
                passed.push(0);
                stages.len() - 1
            });
            passed[kind] += 1;
            stage_of.push(kind);
        }
        Shape { order, cut, stages, chunks, chunk_of, stage_of }
    }
}
