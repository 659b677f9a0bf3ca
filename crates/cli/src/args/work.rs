//! How much of this machine a command may take.

use crate::machine;
use clap::Args;
use work::{Asked, Limit};

/// The limit on a command's own work.
#[derive(Args, Clone, Copy, Default)]
pub struct WorkArgs {
    /// Begin work up to this much of this machine, as 16GiB, 10min (of one core) or 16GiB,10min; or none
    /// (default: 2 GiB and five seconds of two cores; for rehearsals and resharding three quarters of the memory
    /// that is free and two minutes)
    #[arg(long, value_name = "LIMIT", value_parser = Asked::parse)]
    pub work_limit: Option<Asked>,
}

impl WorkArgs {
    /// The limit on an answer that somebody waits for.
    pub fn of_an_answer(&self) -> Limit {
        Limit::of_an_answer(self.work_limit.unwrap_or_default(), machine::free_memory())
    }

    /// The limit on this machine.
    pub fn limit(&self) -> Limit {
        Limit::new(self.work_limit.unwrap_or_default(), machine::free_memory())
    }
}
