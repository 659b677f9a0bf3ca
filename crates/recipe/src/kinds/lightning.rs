//! MiniMax's lightning attention: linear attention whose state decays by a fixed rate a head, a norm over all heads
//! and a gate behind it.

use super::{Bias, Emitter, Norm};
use crate::limits;
use crate::tensor::{Dim, Role, Surface};
use crate::write::Toml;
use reading::Section;

/// The widths of lightning attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Lightning {
    /// Heads; every one has its own queries, keys and values.
    pub heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Tokens a block of the scan covers.
    pub chunk: u64,
}

impl Lightning {
    /// Reads the keys of `[linear]` for this kind.
    pub(crate) fn read(mut section: Section) -> Option<Lightning> {
        let (heads, head_dim) = (section.count("heads", limits::HEADS), section.count("head_dim", limits::WIDTH));
        let chunk = section.count_or("chunk", 1 << 16, 256);
        section.finish();
        Some(Lightning { heads: heads?, head_dim: head_dim?, chunk: chunk? })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("heads", self.heads);
        toml.int("head_dim", self.head_dim);
        toml.int_unless("chunk", self.chunk, 256);
    }

    /// Its tensors.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let inner = self.heads * self.head_dim;
        let (role, width) = (Role::Matrix, || Dim::whole(hidden));
        out.linear("qkv", Surface::MixerIn, role, Dim::whole(3 * inner), width(), Bias::No);
        out.linear("gate", Surface::MixerIn, role, Dim::whole(inner), width(), Bias::No);
        out.norm("out_norm", Surface::MixerNorm, Norm::RmsNorm, inner);
        out.linear("out", Surface::MixerOut, role, width(), Dim::whole(inner), Bias::No);
    }
}
