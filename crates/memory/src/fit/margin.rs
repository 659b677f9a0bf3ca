//! What a job is asked to leave free, and under which routing.

use super::{overload, work};
use case::Case;
use replay::Unmodelled;
use std::borrow::Cow;
use units::Bytes;
use work::Work;

/// What must be left free on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// Bytes for what is not replayed: compile peaks, fragmentation.
    pub headroom: Bytes,
    /// Copies of tokens that the fullest rank's experts receive, over their even share; at least one. More than a rank
    /// can receive is the most it can.
    pub overload: f64,
}

impl From<Bytes> for Margin {
    /// With balanced experts.
    fn from(headroom: Bytes) -> Margin {
        Margin { headroom, overload: 1.0 }
    }
}

impl Margin {
    /// The job at this overload; none where routing changes no memory.
    pub fn overloaded(self, case: &Case) -> Option<Case> {
        let factor = self.overload.min(overload::most(case)?);
        (factor > 1.0).then(|| case.with_options(|options| options.overload = factor))
    }

    /// The job under the routing that needs most.
    pub fn hardest(self, case: &Case) -> Cow<'_, Case> {
        self.overloaded(case).map_or(Cow::Borrowed(case), Cow::Owned)
    }

    /// What pricing a job with this margin takes of this machine: the job as it is, and overloaded.
    pub fn work(self, case: &Case) -> Result<Work, Unmodelled> {
        let times = if self.overloaded(case).is_some() { 2 } else { 1 };
        Ok(work(case)?.repeated(times))
    }
}
