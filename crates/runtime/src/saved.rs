//! What a block keeps between forward and backward. A block declares it once, as names and shapes
//! that follow from a layout; a run that keeps anything else panics, so that the declaration is
//! what a memory model may price.

use crate::mat::Mat;
use crate::real::Real;
use layout::Layout;
use std::any::Any;

/// Sizes a declaration may depend on: all follow from the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences of a microbatch.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Tokens of a microbatch inside tensor-parallel regions.
    pub tokens: usize,
    /// Tokens of a microbatch between them.
    pub shard: usize,
    /// Context-parallel degree.
    pub cp: usize,
}

impl Sizes {
    /// The sizes of a layout.
    pub fn of(layout: &Layout) -> Sizes {
        let (sequences, sequence) = (layout.micro_batch as usize, layout.sequence as usize);
        let cp = layout.cp.get() as usize;
        let shard = layout.tokens_per_microbatch_per_rank() as usize;
        Sizes { sequences, sequence, tokens: sequences * sequence / cp, shard, cp }
    }

    /// Positions of each contiguous part of the timeline that a rank holds.
    pub fn spans(&self) -> Vec<usize> {
        if self.cp == 1 { vec![self.sequence] } else { vec![self.sequence / (2 * self.cp); 2] }
    }
}

/// How many rows something has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Exactly these.
    Fixed(usize),
    /// As many as routing sends here; these when it is balanced.
    Routed(usize),
}

/// One thing a block keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Save {
    /// What it is.
    pub name: &'static str,
    /// Its rows.
    pub rows: Rows,
    /// Its columns.
    pub cols: usize,
    /// What its elements are.
    pub holds: Holds,
}

/// What the elements of something kept are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Numbers of the run's format.
    Reals,
    /// Indices and counts of eight bytes.
    Indices,
}

impl Save {
    /// Something of a fixed shape.
    pub fn new(name: &'static str, rows: usize, cols: usize) -> Save {
        Save { name, rows: Rows::Fixed(rows), cols, holds: Holds::Reals }
    }

    /// Something with a row for each token routed here.
    pub fn routed(name: &'static str, balanced: usize, cols: usize) -> Save {
        Save { name, rows: Rows::Routed(balanced), cols, holds: Holds::Reals }
    }

    /// Indices that say where rows go.
    pub fn indices(name: &'static str, balanced: usize) -> Save {
        Save { name, rows: Rows::Routed(balanced), cols: 1, holds: Holds::Indices }
    }

    /// Elements, as balanced routing would have them.
    pub fn elements(&self) -> u64 {
        let (Rows::Fixed(rows) | Rows::Routed(rows)) = self.rows;
        (rows * self.cols) as u64
    }

    /// Bytes, when a number has `bytes_each`.
    pub fn bytes(&self, bytes_each: u64) -> u64 {
        match self.holds {
            Holds::Reals => self.elements() * bytes_each,
            Holds::Indices => self.elements() * 8,
        }
    }
}

/// What one pass through a block kept.
pub struct Saved<R> {
    declared: Vec<Save>,
    kept: Vec<Option<Mat<R>>>,
    /// What is kept as indices, with its number of elements; at most one a block.
    indices: Option<(Box<dyn Any + Send>, usize)>,
}

impl<R: Real> Saved<R> {
    /// Nothing yet, of what was declared.
    pub fn new(declared: Vec<Save>) -> Saved<R> {
        let kept = declared.iter().map(|_| None).collect();
        Saved { declared, kept, indices: None }
    }

    fn index(&self, name: &str) -> usize {
        let found = self.declared.iter().position(|s| s.name == name);
        found.unwrap_or_else(|| panic!("`{name}` is not declared as saved"))
    }

    /// Keeps one thing, which must be of its declared shape.
    pub fn keep(&mut self, name: &str, value: Mat<R>) {
        let at = self.index(name);
        let save = &self.declared[at];
        let rows_fit = matches!(save.rows, Rows::Routed(_)) || save.rows == Rows::Fixed(value.rows);
        assert!(
            rows_fit && save.cols == value.cols,
            "`{name}` is declared {save:?} and kept as {} × {}",
            value.rows,
            value.cols
        );
        self.kept[at] = Some(value);
    }

    /// Takes one thing out.
    pub fn take(&mut self, name: &str) -> Mat<R> {
        let at = self.index(name);
        self.kept[at].take().unwrap_or_else(|| panic!("`{name}` was not kept"))
    }

    /// Looks at one thing.
    pub fn get(&self, name: &str) -> &Mat<R> {
        self.kept[self.index(name)].as_ref().unwrap_or_else(|| panic!("`{name}` was not kept"))
    }

    /// Keeps what a block declared as indices, `elements` of them.
    pub fn keep_indices<T: Any + Send>(&mut self, name: &str, value: T, elements: usize) {
        assert_eq!(self.declared[self.index(name)].holds, Holds::Indices, "`{name}` is declared as numbers");
        self.indices = Some((Box::new(value), elements));
    }

    /// Takes them out.
    pub fn take_indices<T: Any + Send>(&mut self) -> T {
        let taken = self.indices.take().and_then(|(value, _)| value.downcast().ok());
        *taken.unwrap_or_else(|| panic!("no indices of this kind were kept"))
    }

    /// Bytes held now.
    pub fn bytes(&self) -> u64 {
        let reals: u64 = self.kept.iter().flatten().map(|m| m.data.len() as u64 * R::BYTES).sum();
        reals + self.indices.as_ref().map_or(0, |(_, elements)| *elements as u64 * 8)
    }

    /// Whether everything declared is there.
    pub fn is_complete(&self) -> bool {
        let is_there = |(save, kept): (&Save, &Option<Mat<R>>)| match save.holds {
            Holds::Reals => kept.is_some(),
            Holds::Indices => self.indices.is_some(),
        };
        self.declared.iter().zip(&self.kept).all(is_there)
    }
}

/// Bytes of a declaration.
pub fn bytes(saves: &[Save], bytes_each: u64) -> u64 {
    saves.iter().map(|s| s.bytes(bytes_each)).sum()
}
