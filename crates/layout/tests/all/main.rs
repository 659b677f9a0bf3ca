//! Orders, ownership and legality over random layouts, and ranks that Megatron-Core built.

mod megatron_rows;
mod orders;
mod properties;
