//! Which pictures there are, of which answers, and why one is not drawn.

use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;

units::named! {
    /// A picture, by the word it is asked for.
    pub enum Picture {
        /// Blocks in depth, and parameters by family and surface.
        Pattern = "pattern",
        /// Memory of every stage against the device.
        Memory = "memory",
        /// The phases of a run as a timeline through the peak.
        Phases = "phases",
        /// What every stage does when.
        Schedule = "schedule",
        /// Layouts by time and headroom.
        Frontier = "frontier",
        /// Throughput over several clusters and sequences.
        Sweep = "sweep",
        /// Ranks by node, stage and group.
        Mesh = "mesh",
    }
}

impl Picture {
    /// The question whose answer it is drawn from.
    pub fn question(self) -> &'static str {
        match self {
            Picture::Pattern => "params",
            Picture::Memory | Picture::Phases => "fit",
            Picture::Schedule => "schedule",
            Picture::Frontier | Picture::Sweep => "plan",
            Picture::Mesh => "mesh",
        }
    }
}

/// Why there is no picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undrawn(pub String);

impl fmt::Display for Undrawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Undrawn {}

/// The part of an answer that a picture needs.
pub fn read<T: DeserializeOwned>(kind: Picture, answer: &Value) -> Result<T, Undrawn> {
    T::deserialize(answer).map_err(|error| {
        Undrawn(format!("an answer of `{}` that can be drawn as `{kind}` is needed: {error}", kind.question()))
    })
}
