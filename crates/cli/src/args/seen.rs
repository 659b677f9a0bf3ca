//! Files in which a job can be looked at in a viewer.

use clap::Args;
use std::path::PathBuf;

/// What is simulated, as files for viewers.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "To look at in a viewer")]
pub struct SeenArgs {
    /// Write the simulated step as a trace that ui.perfetto.dev and chrome://tracing open
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write the worst rank's allocations as a snapshot that pytorch.org/memory_viz opens
    #[arg(long, value_name = "FILE")]
    pub memory_snapshot: Option<PathBuf>,
}

impl SeenArgs {
    /// The flag of a file that is wanted, if any is.
    pub fn first(&self) -> Option<&'static str> {
        self.trace.as_ref().map(|_| "--trace").or(self.memory_snapshot.as_ref().map(|_| "--memory-snapshot"))
    }
}
