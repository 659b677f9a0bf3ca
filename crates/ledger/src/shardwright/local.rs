//! Sizes of the parts one rank holds of a block's tensors, by the ownership table.

use layout::ownership::Row;
use layout::{Layout, OwnershipTable};
use recipe::Role;

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

    /// Rows and columns of the linear layers of a mixer, summed: what a token brings to their
    /// weight products. Routers and expert banks take theirs at once.
    pub fn linear_widths(&self) -> usize {
        let is_linear = |row: &&Row| {
            let name = row.tensor.path.strip_prefix(self.path).and_then(|rest| rest.strip_prefix('.'));
            let is_ours = name.is_some_and(|name| name.ends_with(".weight") && !name.starts_with("router"));
            is_ours && row.tensor.role == Role::Matrix && row.tensor.dims.len() == 2 && row.tensor.acting.is_none()
        };
        let rows = self.table.rows.iter().filter(is_linear);
        rows.map(|row| row.part_shape(self.layout).iter().sum::<u64>() as usize).sum()
    }
}
