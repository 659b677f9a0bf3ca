//! Orders, ownership and legality over random layouts, and ranks that Megatron-Core built.

mod orders;
mod properties;
