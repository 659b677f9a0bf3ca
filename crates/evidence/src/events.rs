//! What happens to a run beside steps.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

use crate::figures::is_zero;
use serde::{Deserialize, Serialize};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    pub kind: EventKind,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u64,
    /// Seconds since 1970 when it was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// In the source's words, one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    pub source: usize,
    pub line: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The processes were started.
    Start,
    /// The model, its data and its process groups were set up.
    Setup,
    Compile,
    CheckpointSaved,
    CheckpointLoaded,
    Evaluation,
    /// A step that took longer than its neighbours, or a rank that others waited for.
    Straggler,
    /// torch's allocator gave its cache back and asked again.
    AllocationRetry,
    OutOfMemory,
    /// A kernel, a collective or a process failed.
    Failure,
    /// The job ended, for whatever reason.
    End,
}
