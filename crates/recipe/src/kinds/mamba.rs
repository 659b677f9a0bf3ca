//! `M`: which Mamba, and what they have in common.

use super::Emitter;
use super::mamba1::Mamba1;
use super::mamba2::Mamba2;
use super::mamba3::Mamba3;
use crate::write::Toml;
use reading::Section;
use units::named;

named! {
    /// The published Mamba mixers.
    pub enum MambaKind {
        /// Selective scan with one state a channel.
        Mamba1 = "mamba1",
        /// Heads and groups, chunked scan.
        Mamba2 = "mamba2",
        /// Rotated states, trapezoidal step, no convolution.
        Mamba3 = "mamba3",
    }
}

/// The Mamba mixer of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Mamba {
    /// Mamba-1.
    One(Mamba1),
    /// Mamba-2.
    Two(Mamba2),
    /// Mamba-3.
    Three(Mamba3),
}

impl Mamba {
    /// Reads `[mamba]`.
    pub(crate) fn read(mut section: Section) -> Option<Mamba> {
        match section.choice("kind", MambaKind::ALL, MambaKind::Mamba2) {
            MambaKind::Mamba1 => Mamba1::read(section).map(Mamba::One),
            MambaKind::Mamba2 => Mamba2::read(section).map(Mamba::Two),
            MambaKind::Mamba3 => Mamba3::read(section).map(Mamba::Three),
        }
    }

    /// Writes `[mamba]`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.table("mamba");
        toml.word_unless("kind", self.kind().name(), MambaKind::Mamba2.name());
        match self {
            Mamba::One(mamba) => mamba.write(toml),
            Mamba::Two(mamba) => mamba.write(toml),
            Mamba::Three(mamba) => mamba.write(toml),
        }
    }

    /// Which one it is.
    pub fn kind(&self) -> MambaKind {
        match self {
            Mamba::One(_) => MambaKind::Mamba1,
            Mamba::Two(_) => MambaKind::Mamba2,
            Mamba::Three(_) => MambaKind::Mamba3,
        }
    }

    /// Its tensors, behind the block's norm.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        match self {
            Mamba::One(mamba) => mamba.tensors(hidden, out),
            Mamba::Two(mamba) => mamba.tensors(hidden, out),
            Mamba::Three(mamba) => mamba.tensors(hidden, out),
        }
    }

    /// State elements one sequence carries from token to token through one block: the recurrent
    /// state and the convolution's tail.
    pub fn state_elements(&self) -> (u64, u64) {
        match self {
            Mamba::One(m) => (m.inner.saturating_mul(m.state), m.inner * (m.conv - 1)),
            Mamba::Two(m) => (m.inner().saturating_mul(m.state), m.conv_channels() * m.conv.saturating_sub(1)),
            Mamba::Three(m) => (m.inner().saturating_mul(m.state), 0),
        }
    }
}
