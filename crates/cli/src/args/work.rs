//! How much of this machine a command may take.

use crate::machine;
use clap::Args;
use work::{Asked, Limit};

/// The limit on a command's own work.
#[derive(Args, Clone, Copy, Default)]
pub struct WorkArgs {
    /// Begin work up to this much of this machine, as 16GiB, 10min (of one core) or 16GiB,10min; or none
    /// (default: three quarters of the memory that is free, and about two minutes of two cores)
    #[arg(long, value_name = "LIMIT", value_parser = Asked::parse)]
    pub work_limit: Option<Asked>,
}

impl WorkArgs {
    /// The limit on this machine.
    pub fn limit(&self) -> Limit {
        Limit::new(self.work_limit.unwrap_or_default(), machine::free_memory())
    }
}
