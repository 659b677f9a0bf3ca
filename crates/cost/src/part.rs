//! The parts a time is made of.

use crate::report::Spent;
use std::ops::{AddAssign, Mul};
use units::named;

named! {
    /// What a device or a link spends time on inside a layer.
    pub enum Part {
        /// Matrix products outside experts.
        Gemm = "matrix products",
        /// The attention core.
        Attention = "attention",
        /// Chunked scans.
        Scan = "scan",
        /// Recurrences that step through time.
        Recurrence = "recurrence",
        /// Products of routed experts.
        Experts = "experts",
        /// Kernels that only read and write: norms, activations, casts, permutations.
        Bandwidth = "bandwidth",
        /// The device waiting for the host.
        Launch = "launch",
        /// Exposed tensor-parallel collectives.
        Tp = "tp exposed",
        /// Exposed context-parallel exchanges.
        Cp = "cp exposed",
        /// Exposed expert-parallel exchanges.
        Ep = "ep exposed",
    }
}

impl Part {
    /// Whether the device computes, rather than waits for links or the host.
    pub fn is_compute(self) -> bool {
        !matches!(self, Part::Launch | Part::Tp | Part::Cp | Part::Ep)
    }

    /// What a step spends it on.
    pub fn spent(self) -> Spent {
        match self {
            Part::Launch => Spent::Host,
            Part::Tp | Part::Cp | Part::Ep => Spent::Comm,
            _ => Spent::Compute,
        }
    }

    /// What it is, in words.
    pub fn what(self) -> &'static str {
        match self {
            Part::Gemm => "products of projections, feed-forward blocks and the head",
            Part::Attention => "scores and their use",
            Part::Scan => "chunked scans of state-space mixers",
            Part::Recurrence => "recurrences, token by token",
            Part::Experts => "products of routed experts",
            Part::Bandwidth => "norms, activations, casts, permutations, the loss: reading and writing",
            Part::Launch => "the device waiting for the host to start kernels or read counts",
            Part::Tp => "tensor-parallel collectives, beyond what products hide",
            Part::Cp => "context-parallel exchanges, beyond what attention hides",
            Part::Ep => "tokens to their experts and back, beyond what other compute hides",
        }
    }
}

/// How many parts there are.
pub(crate) const PARTS: usize = Part::ALL.len();

/// Seconds by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times([f64; PARTS]);

impl Times {
    /// Seconds of one part.
    pub fn of(&self, part: Part) -> f64 {
        self.0[part as usize]
    }

    /// Adds seconds to a part.
    pub fn add(&mut self, part: Part, seconds: f64) {
        self.0[part as usize] += seconds;
    }

    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.0.iter().sum()
    }

    /// What the device computes, without waiting for links or the host.
    pub fn compute(&self) -> f64 {
        Part::ALL.iter().filter(|(_, part)| part.is_compute()).map(|(_, part)| self.of(*part)).sum()
    }
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Times) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }
}

impl Mul<f64> for Times {
    type Output = Times;

    fn mul(self, by: f64) -> Times {
        Times(self.0.map(|seconds| seconds * by))
    }
}
