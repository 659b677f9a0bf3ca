//! The axes of the two meshes. Sequence parallelism is not among them: it is a layout of
//! activations on the tensor axis and owns no ranks of its own.

use std::fmt;

/// A mesh dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Matrices and head groups.
    Tp,
    /// The token timeline.
    Cp,
    /// Replicas of the dense model, each with its part of the batch.
    Dp,
    /// Depth.
    Pp,
    /// Expert banks.
    Ep,
    /// Matrices inside an expert.
    Etp,
    /// Replicas of an expert bank.
    Edp,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 7] = [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp, Axis::Ep, Axis::Etp, Axis::Edp];
    /// Axes of the mesh that expert tensors live on.
    pub const EXPERT: [Axis; 4] = [Axis::Etp, Axis::Ep, Axis::Edp, Axis::Pp];

    /// As typed on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tp => "tp",
            Axis::Cp => "cp",
            Axis::Dp => "dp",
            Axis::Pp => "pp",
            Axis::Ep => "ep",
            Axis::Etp => "etp",
            Axis::Edp => "edp",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
