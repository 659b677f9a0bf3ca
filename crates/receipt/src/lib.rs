//! What a run was, what was promised of it, and what became of it: one record, named by its own hash.

mod canonical;
pub mod compare;
pub mod drift;
pub mod gate;
pub mod goodput;
pub mod localise;
mod record;
pub mod statistics;
pub mod symptoms;

pub use canonical::{canonical, sha256};
pub use record::{Argument, Identity, Kind, Prediction, RankPrediction, Receipt, SCHEMA, StepPrediction, Superseded};
