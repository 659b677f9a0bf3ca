//! From a plan to exactly what to run: lanes, the engine's own arguments, job files for a
//! scheduler, and the record of a launch.
//!
//! This crate composes text and names what it cannot express. It starts nothing, reads no file
//! and no environment variable, and never approximates: what an engine has no word for is a seam,
//! refused unless it was allowed by name.

pub mod emission;
pub mod engines;
pub mod fields;
pub mod header;
pub mod identity;
pub mod job;
pub mod lanes;
pub mod nccl;
pub mod packages;
pub mod policy;
pub mod preflight;
pub mod probe;
pub mod record;
pub mod schedulers;
pub mod tpu;
pub mod tree;
pub mod tuned;
pub mod tuning;

pub use emission::{Argument, Emission, EnvVar, File, Kind};
pub use job::{Frontend, Job};
pub use policy::Policy;
