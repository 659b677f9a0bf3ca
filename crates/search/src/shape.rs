//! A pipeline as the sums see it: what distinct stages and chunks consist of, whatever runs
//! through them.

use crate::cuts::Cut;
use crate::point::Order;
use cost::Counts;
use layout::Layout;
use layout::stages::deal;
use memory::quick::StageShape;
use recipe::{Layer, Recipe};

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
    layers: Vec<u64>,
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
}

impl Shape {
    /// The shape of a cut. `kinds` are those of the layers and how many there are.
    pub fn new(layout: &Layout, kinds: &(Vec<usize>, usize), order: Order, cut: Cut) -> Shape {
        let (kind_of_layer, num_kinds) = kinds;
        let depth = kind_of_layer.len();
        let last = cut.starts.len() - 1;
        let range = |chunk: usize| cut.starts[chunk]..cut.starts.get(chunk + 1).copied().unwrap_or(depth);
        let (mut chunks, mut chunk_of): (Vec<Chunk>, Vec<usize>) = (Vec::new(), Vec::new());
        for index in 0..=last {
            let mut layers = vec![0; *num_kinds];
            range(index).for_each(|layer| layers[kind_of_layer[layer]] += 1);
            let chunk = Chunk { layers, is_first: index == 0, is_last: index == last };
            chunk_of.push(chunks.iter().position(|c| *c == chunk).unwrap_or_else(|| {
                chunks.push(chunk);
                chunks.len() - 1
            }));
        }
        let (mut stages, mut passed): (Vec<Stage>, Vec<u64>) = (Vec::new(), Vec::new());
        for (index, held) in deal(layout).iter().enumerate() {
            let layers = held.iter().flat_map(|chunk| range(*chunk)).map(|layer| kind_of_layer[layer]);
            let shape = StageShape::new(*num_kinds, layers, held.contains(&0), held.contains(&last));
            let kind = stages.iter().position(|stage| stage.shape == shape).unwrap_or_else(|| {
                let first = held.iter().copied().min().unwrap_or(0);
                let mut chunks_before = vec![0; chunks.len()];
                chunk_of[..first].iter().for_each(|chunk| chunks_before[*chunk] += 1);
                stages.push(Stage { shape, index: index as u64, before: passed.clone(), chunks_before });
                passed.push(0);
                stages.len() - 1
            });
            passed[kind] += 1;
        }
        Shape { order, cut, stages, chunks, chunk_of }
    }
}

/// The kind of every layer, in the order kinds first stand, and how many kinds there are.
pub fn kinds_of_layers(recipe: &Recipe) -> (Vec<usize>, usize) {
    let mut kinds: Vec<&Layer> = Vec::new();
    let mut of_layer = Vec::new();
    for layer in &recipe.layers {
        of_layer.push(kinds.iter().position(|kind| *kind == layer).unwrap_or_else(|| {
            kinds.push(layer);
            kinds.len() - 1
        }));
    }
    (of_layer, kinds.len())
}
