//! What a block keeps between forward and backward. Names and shapes are declared once, in `memory`'s
//! ledger of this runtime; keeping anything else panics, so that what is priced is what is kept.

pub use ledger::shardwright::{Holds, Rows, Save, Sizes};

use crate::mat::Mat;
use crate::real::Real;
use std::any::Any;

/// What one pass through a block keeps.
pub struct Saved<R> {
    declared: Vec<Save>,
    kept: Vec<Option<Mat<R>>>,
    /// What was declared as indices (a choice of keys or experts), with its number of elements; at most
    /// one a block.
    indices: Option<(Box<dyn Any + Send>, usize)>,
}

impl<R: Real> Saved<R> {
    /// Empty, for what was declared.
    pub fn new(declared: Vec<Save>) -> Saved<R> {
        let kept = declared.iter().map(|_| None).collect();
        Saved { declared, kept, indices: None }
    }

    fn index(&self, name: &str) -> usize {
        let found = self.declared.iter().position(|s| s.name == name);
        found.unwrap_or_else(|| panic!("`{name}` is not declared as saved"))
    }

    /// Keeps a matrix; panics unless it has its declared shape.
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

    pub fn take(&mut self, name: &str) -> Mat<R> {
        let at = self.index(name);
        self.kept[at].take().unwrap_or_else(|| panic!("`{name}` was not kept"))
    }

    /// Drops a matrix that backward will compute again; does nothing for a name that was not declared.
    pub fn forget(&mut self, name: &str) {
        if let Some(at) = self.declared.iter().position(|s| s.name == name) {
            self.kept[at] = None;
        }
    }

    /// Whether a declared matrix is not there.
    pub fn lacks(&self, name: &str) -> bool {
        self.declared.iter().zip(&self.kept).any(|(save, kept)| save.name == name && kept.is_none())
    }

    pub fn get(&self, name: &str) -> &Mat<R> {
        self.kept[self.index(name)].as_ref().unwrap_or_else(|| panic!("`{name}` was not kept"))
    }

    /// Keeps the block's indices, `elements` of them.
    pub fn keep_indices<T: Any + Send>(&mut self, name: &str, value: T, elements: usize) {
        assert_eq!(self.declared[self.index(name)].holds, Holds::Indices, "`{name}` is declared as numbers");
        self.indices = Some((Box::new(value), elements));
    }

    pub fn indices<T: Any + Send>(&self) -> Option<&T> {
        self.indices.as_ref().and_then(|(value, _)| value.downcast_ref())
    }

    pub fn take_indices<T: Any + Send>(&mut self) -> T {
        let taken = self.indices.take().and_then(|(value, _)| value.downcast().ok());
        *taken.unwrap_or_else(|| panic!("no indices of this kind were kept"))
    }

    /// Bytes held now.
    pub fn bytes(&self) -> u64 {
        let reals: u64 = self.kept.iter().flatten().map(|m| m.data.capacity() as u64 * R::BYTES).sum();
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
