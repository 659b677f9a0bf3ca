//! What one training step takes: compute from real operations on a roofline of calibrated curves,
//! traffic from the layout's own collectives, the pipeline from each stage's own times.
//!
//! This crate counts no parameter and decides no split: shapes and volumes are the layout's. What a
//! device reaches is its profile's curves; factors held here name their source, or say that there is
//! none. It does not know what fits in memory.

mod alone;
mod comm;
mod data;
mod drives;
mod flops;
mod held;
pub mod interval;
mod layer;
mod nanotron;
pub mod ops;

mod overlap;
mod part;
mod pools;
mod prices;
mod report;
mod roofline;
pub mod simulate;
mod slowest;
mod step;
pub mod trace;
pub mod traffic;
mod widths;

pub use alone::{Alone, alone};
pub use data::Placed;
pub use flops::{Convention, products_per_token};
pub use interval::{Apart, Class, Interval};
pub use part::{Part, Times};
pub use pools::{PooledPrices, pooled_step};
pub use prices::{Counts, Load, Prices, Setting, Split};
pub use report::{Line, Spent, StageTime, Step, Traffic};
pub use roofline::Numbers;
pub use simulate::ChunkTimes;
pub use step::Scratch;
pub use widths::{Slower, slower};

use case::Case;
use std::fmt;

/// The step of a job, with how far to trust it.
pub fn step(case: &Case) -> Result<Step, Unpriced> {
    let step = prices(case)?.step(&case.layout, &case.stages)?;
    let interval = interval::interval(&Class::of(case), step.seconds);
    Ok(Step { interval: Some(interval), ..step })
}

/// The step of a job laid out in time, in at most so many slices.
pub fn trace(case: &Case, most: usize) -> Result<trace::Trace, Unpriced> {
    prices(case)?.trace(&case.layout, &case.stages, most)
}

fn prices(case: &Case) -> Result<Prices, Unpriced> {
    let setting = Setting::new(&case.recipe, &case.kinds, case.on(), &case.options)?;
    Ok(setting.split(&case.layout)?.prices(&case.layout.recompute, case.options.offload))
}

/// What cannot be priced, and why. Nothing is ever priced at zero instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpriced {
    /// What was asked for.
    pub what: String,
    /// Why there is no time for it.
    pub why: String,
}

impl Unpriced {
    /// Names what is not priced, and why.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Unpriced {
        Unpriced { what: what.into(), why: why.into() }
    }
}

impl fmt::Display for Unpriced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no price: {}", self.what, self.why)
    }
}

impl std::error::Error for Unpriced {}

impl From<diag::Finding> for Unpriced {
    fn from(finding: diag::Finding) -> Unpriced {
        Unpriced::new(finding.object, finding.message)
    }
}
