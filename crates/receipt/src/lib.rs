//! What a run was, what was promised of it, and what became of it: one record, named by its own hash.

mod canonical;
pub mod probe;
mod record;

pub use canonical::{canonical, sha256};
pub use record::{Argument, Identity, Kind, Prediction, RankPrediction, Receipt, SCHEMA, StepPrediction, Superseded};
