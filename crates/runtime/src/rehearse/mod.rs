//! A rehearsal: a recipe at rehearsal size trained on all ranks of a layout and on one, and
//! everything that must be equal compared: losses, gradients, weights, bytes moved, bytes held.
//!
//! It shows that the split computes the same model. It says nothing of speed, of formats other
//! than f32 and f64, or of kernels other than this runtime's.

mod compare;
mod data;
mod inject;
mod outcome;
mod predict;
mod prepare;
mod resume;
mod run;

pub use data::Source;
pub use inject::Inject;
pub use outcome::{Ending, Load, Outcome, Parity, Rehearsal, Worst, endings};
pub use prepare::{MOST_RANKS, Prepared, prepare};
pub use run::{rehearse, rehearse_between};

use crate::optimizer::Settings;
use crate::shrink::Dims;
use layout::LayoutRequest;
use recipe::Recipe;
use std::path::Path;
use std::time::Duration;
use units::named;
use work::Limit;

named! {
    /// The numbers a rehearsal computes with.
    pub enum Number {
        /// 32 bits: differences up to one in ten thousand are rounding.
        F32 = "f32",
        /// 64 bits: differences above one in a thousand million are mistakes.
        F64 = "f64",
    }
}

impl Number {
    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Number::F32 => 4,
            Number::F64 => 8,
        }
    }

    /// The largest relative difference that passes.
    pub fn tolerance(self) -> f64 {
        match self {
            Number::F32 => 1e-4,
            Number::F64 => 1e-9,
        }
    }
}

named! {
    /// What ranks are.
    pub enum Ranks {
        /// Threads of this process.
        Threads = "threads",
        /// Processes that `mpirun` started.
        Mpi = "mpi",
    }
}

/// Steps whose losses and weights must be within the tolerance. Training amplifies rounding step by
/// step, and experts are chosen by comparison; of a longer run the later steps are shown and not judged.
pub const JUDGED_STEPS: u64 = 5;

/// Everything a user asks of a rehearsal.
pub struct Ask<'a> {
    /// The recipe at full size.
    pub recipe: &'a Recipe,
    /// The layout.
    pub request: &'a LayoutRequest,
    /// Sizes the user insists on; the others are chosen.
    pub dims: Dims,
    /// Training steps.
    pub steps: u64,
    /// Number format to compute in.
    pub number: Number,
    /// Seed of initial weights and data.
    pub seed: u64,
    /// Training data.
    pub source: Source,
    /// A fault to make.
    pub inject: Option<Inject>,
    /// How long a rank waits for another before the run ends.
    pub deadline: Duration,
    /// What ranks are.
    pub ranks: Ranks,
    /// Go on from this checkpoint: its recipe's sizes, its seed, its step and its position in the data.
    pub load: Option<&'a Path>,
    /// Save a checkpoint into this folder of checkpoints after the last step.
    pub save: Option<&'a Path>,
    /// Norms of activations and gradients of every step, of both runs.
    pub stats: bool,
    /// How much of this machine may be taken.
    pub limit: Limit,
}

/// Usual values but for two: a higher learning rate, since small models learn faster; and a larger
/// epsilon of AdamW, which divides by it where a gradient is nothing but rounding, and would turn that
/// rounding into whole steps in f32.
fn settings(number: Number) -> Settings {
    let epsilon = match number {
        Number::F32 => 1e-4,
        Number::F64 => 1e-5,
    };
    Settings { rate: 3e-3, epsilon, ..Settings::default() }
}
