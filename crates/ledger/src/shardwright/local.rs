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
    /// The block's rows, each with its name inside the block.
    fn inside(&self) -> impl Iterator<Item = (&str, &Row)> {
        self.table.inside(self.path).map(move |row| (&row.tensor.path[self.path.len() + 1..], row))
    }

    fn row(&self, name: &str) -> Option<&Row> {
        self.inside().find(|(of, _)| *of == name).map(|(_, row)| row)
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
        let is_linear = |(name, row): &(&str, &Row)| {
            let is_ours = name.ends_with(".weight") && !name.starts_with("router");
            is_ours && row.tensor.role == Role::Matrix && row.tensor.dims.len() == 2 && row.tensor.acting.is_none()
        };
        let rows = self.inside().filter(is_linear);
        rows.map(|(_, row)| row.part_shape(self.layout).iter().sum::<u64>() as usize).sum()
    }
}
