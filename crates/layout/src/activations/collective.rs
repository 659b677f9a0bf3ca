//! The words collectives are made of: what runs, over whom, and where in the model. Prices and
//! volumes are decided by these types; prose is for readers only.

use crate::axis::Axis;
use crate::layout::Layout;
use recipe::Mixer;
use serde::{Serialize, Serializer};
use units::named;

named! {
    /// The ranks a collective runs over.
    pub enum Over {
        /// Tensor-parallel ranks.
        Tp = "tp",
        /// Tensor-parallel ranks, where sequence parallelism gathers and scatters tokens.
        Sp = "sp",
        /// Context-parallel ranks.
        Cp = "cp",
        /// Expert-parallel ranks.
        Ep = "ep",
        /// Ranks that share an expert.
        Etp = "etp",
        /// Stages.
        Pp = "pp",
        /// Ranks that share out the state of dense tensors.
        Dp = "dp",
        /// Ranks that share out the state of experts.
        Edp = "edp",
        /// All of them.
        World = "world",
    }
}

impl Over {
    /// The mesh axis its groups lie on; none for everybody.
    pub fn axis(self) -> Option<Axis> {
        match self {
            Over::Tp | Over::Sp => Some(Axis::Tp),
            Over::Cp => Some(Axis::Cp),
            Over::Ep => Some(Axis::Ep),
            Over::Etp => Some(Axis::Etp),
            Over::Pp => Some(Axis::Pp),
            Over::Dp => Some(Axis::Dp),
            Over::Edp => Some(Axis::Edp),
            Over::World => None,
        }
    }

    /// The tensor axis as sequence parallelism names it, where it is on.
    pub(super) fn tensor(layout: &Layout) -> Over {
        if layout.sp { Over::Sp } else { Over::Tp }
    }
}

impl From<Axis> for Over {
    fn from(axis: Axis) -> Over {
        match axis {
            Axis::Tp => Over::Tp,
            Axis::Cp => Over::Cp,
            Axis::Dp => Over::Dp,
            Axis::Pp => Over::Pp,
            Axis::Ep => Over::Ep,
            Axis::Etp => Over::Etp,
            Axis::Edp => Over::Edp,
        }
    }
}

named! {
    /// What runs in one direction of an exchange.
    pub enum Collective {
        /// Nothing, and the direction has no gradient or value to move.
        None = "none",
        /// Nothing: every rank has what it needs.
        Identity = "identity",
        /// Nothing: every rank has the whole and takes its part.
        Slice = "slice",
        /// Every rank ends with all parts.
        AllGather = "all-gather",
        /// The same of token counts.
        AllGatherCounts = "all-gather of counts",
        /// The same of the positions an indexer chose.
        AllGatherPositions = "all-gather of positions",
        /// Every rank ends with the sum of its part.
        ReduceScatter = "reduce-scatter",
        /// Every rank ends with the whole sum.
        AllReduce = "all-reduce",
        /// Every rank sends a part to every other.
        AllToAll = "all-to-all",
        /// Parts go once around the context-parallel ranks.
        Ring = "send/receive × (cp-1)",
        /// To the next stage.
        Send = "send",
        /// To the stage before.
        SendGradient = "send of its gradient",
        /// Each part of the timeline hands something to the next. Elements are one message's: context
        /// ranks at the ends send one, those between two, since causal balance gives each rank an
        /// early part and the late one that mirrors it.
        HandOn = "send to the next part",
        /// Its gradient to the part before.
        HandBack = "send of its gradient to the part before",
    }
}

impl Collective {
    /// Whether nothing moves.
    pub fn is_free(self) -> bool {
        matches!(self, Collective::None | Collective::Identity | Collective::Slice)
    }
}

impl Serialize for Over {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Serialize for Collective {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Matrices on the tensor axis, between a column-parallel projection and a row-parallel one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// A mixer's.
    Mixer(Mixer),
    /// The shared expert's.
    SharedExpert,
    /// The projection that joins a prediction head's inputs.
    PredictionJoin,
    /// The output head.
    Head,
}

impl Region {
    /// As places are worded.
    pub(super) fn name(self) -> &'static str {
        match self {
            Region::Mixer(mixer) => mixer.table(),
            Region::SharedExpert => "moe.shared",
            Region::PredictionJoin => "prediction join",
            Region::Head => "the output head",
        }
    }
}

/// Where an exchange stands, as far as recompute asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// In front of a column-parallel projection.
    Into(Region),
    /// Behind a row-parallel projection.
    OutOf(Region),
    /// Under attention, keys and values around the ring.
    KeysAndValues,
    /// Behind a mixer that runs some heads over all of time: heads traded back for time.
    HeadsForTime(Mixer),
    /// Anywhere else: no module that is computed again by itself holds it.
    Elsewhere,
}
