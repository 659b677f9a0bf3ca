//! Who owns what: axes and degrees, the mesh, split rules, the ownership table, pipeline stages and
//! the order they run in, and whether all of it is legal, with reasons.
//!
//! This crate counts elements and names collectives. It does not know how many bytes a device
//! has, how long anything takes, or what an engine's flags are called.

pub mod activations;
pub mod axes;
pub mod axis;
pub mod diagnose;
pub mod engines;
#[allow(clippy::module_inception)]
pub mod layout;
pub mod legality;
pub mod mesh;
pub mod order;
pub mod ownership;
pub mod request;
pub mod rules;
pub mod shards;
pub mod size;
pub mod stages;
pub mod widths;

pub use axis::Axis;
pub use layout::{Derived, Layout, Needs, settle};
pub use legality::{Checked, check, joint_fixes, seams_of};
pub use mesh::{Mesh, Order};
pub use ownership::OwnershipTable;
pub use request::{Balance, Engine, LayoutRequest, Recompute, Schedule, ZeroStage};
pub use stages::StagePlan;
