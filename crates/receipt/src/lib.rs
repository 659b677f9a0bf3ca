//! What a run was, what was promised of it, and what became of it: one record, named by its own hash.

pub mod calibrate;
mod canonical;
mod record;

pub use canonical::{canonical, sha256};
pub use record::{Argument, Identity, Kind, Prediction, RankPrediction, Receipt, SCHEMA, StepPrediction, Superseded};
