//! Sizes of the parts one rank holds of a block's tensors, by the ownership table.

use layout::ownership::Row;
use layout::{Layout, OwnershipTable};

/// The tensors of the block at a path.
#[derive(Clone, Copy)]
pub(super) struct Local<'a> {
    pub layout: &'a Layout,
    pub table: &'a OwnershipTable,
    pub path: &'a str,
}

impl Local<'_> {
    fn row(&self, name: &str) -> Option<&Row> {
        let is_it =
            |row: &&Row| row.tensor.path.strip_prefix(self.path).is_some_and(|r| r.strip_prefix('.') == Some(name));
        self.table.rows.iter().find(is_it)
    }

    pub fn has(&self, name: &str) -> bool {
        self.row(name).is_some()
    }

    /// Size of one dimension of the part; zero where the block has no such tensor.
    pub fn dim(&self, name: &str, dim: usize) -> usize {
        self.row(name).map_or(0, |row| row.part_shape(self.layout)[dim] as usize)
    }

    pub fn rows(&self, name: &str) -> usize {
        self.dim(name, 0)
    }

    pub fn cols(&self, name: &str) -> usize {
        self.row(name).map_or(0, |row| row.part_shape(self.layout).last().copied().unwrap_or(0) as usize)
    }
}
