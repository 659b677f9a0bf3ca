//! The plan executed for real: every rank holds exactly the parts the ownership table gives it, and
//! runs explicit forward and backward operations, each collective beside its transpose.
//!
//! No framework and no tape of operations: a block says what it keeps, and keeps nothing else. What
//! cannot be run is refused by name. Nothing here decides who owns what; `layout` does.

mod blocks;
pub mod checkpoint;
pub mod live;
pub mod mat;
mod model;
pub mod optimizer;
pub mod params;
mod pipeline;
mod product;
mod rank;
pub mod real;
pub mod rehearse;
pub mod report;
mod saved;
mod shards;
pub mod shrink;
mod split;
mod stack;
pub mod stats;
mod suffix;
mod supported;
pub mod team;
pub mod train;
mod wide;
