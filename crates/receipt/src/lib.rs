//! What a run was, what was promised of it, and what became of it: one record, named by its own hash.

pub mod calibrate;
mod canonical;
pub mod compare;
pub mod drift;
pub mod gate;
mod gather;
pub mod goodput;
mod identity;
mod launched;
pub mod localise;
mod outcome;
mod prediction;
pub mod probe;
mod record;
pub mod snapshot_diff;
pub mod statistics;
pub mod store;
pub mod symptoms;

pub use crate::store::Store;
pub use canonical::{canonical, sha256};
pub use gather::{Gathered, Progress, of_launch, of_logs};
pub use launched::{About, Launched};
pub use outcome::{Beside, Outcome, promised};
pub use record::{
    Argument, Identity, Kind, Prediction, RankPrediction, Receipt, SCHEMA, StepPrediction, Superseded, Unread,
};
