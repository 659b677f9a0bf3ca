//! xLSTM's matrix memory (Beck et al., arXiv 2405.04517, 2503.13427): linear attention whose input and forget gates
//! are scalars a head, with a norm by head and an output gate.

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of the memory, over all heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlstm {
    /// Heads.
    pub heads: u64,
    /// Width of queries, and of keys.
    pub qk_dim: u64,
    /// Width of values.
    pub v_dim: u64,
    /// Tokens a chunk of the scan covers.
    pub chunk: u64,
}

impl Mlstm {
    /// Reads the keys of `[linear]` for this kind.
    pub(crate) fn read(mut section: Section) -> Option<Mlstm> {
        let heads = section.count("heads", limits::HEADS);
        let (qk_dim, v_dim) = (section.count("qk_dim", limits::WIDTH), section.count("v_dim", limits::WIDTH));
        let chunk = section.count_or("chunk", 1 << 16, 64);
        if let (Some(heads), Some(qk), Some(v)) = (heads, qk_dim, v_dim)
            && !(qk.is_multiple_of(heads) && v.is_multiple_of(heads))
        {
            let message = format!("widths {qk} and {v} do not divide into {heads} heads");
            section.report("heads", Finding::error("linear/heads", Blame::Recipe, "linear.heads", message));
        }
        section.finish();
        Some(Mlstm { heads: heads?, qk_dim: qk_dim?, v_dim: v_dim?, chunk: chunk? })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("heads", self.heads);
        toml.int("qk_dim", self.qk_dim);
        toml.int("v_dim", self.v_dim);
        toml.int_unless("chunk", self.chunk, 64);
    }

    /// Its tensors; `in_proj` packs queries, keys, values and the output gate.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let by_head = |name, width: u64| (name, Unit::LinearHead, self.heads, width / self.heads);
        let (qk, v) = (self.qk_dim, self.v_dim);
        let packed = Dim::packed(&[by_head("q", qk), by_head("k", qk), by_head("v", v), by_head("o", v)]);
        out.linear("in_proj", Surface::MixerIn, Role::Matrix, packed, Dim::whole(hidden), Bias::No);
        let gates = Dim::packed(&[by_head("i", self.heads), by_head("f", self.heads)]);
        out.linear("gates", Surface::MixerIn, Role::Matrix, gates, Dim::whole(hidden), Bias::Yes);
        let inner = || Dim::of(Unit::LinearHead, self.heads, v / self.heads);
        out.add("out_norm.weight", Surface::MixerNorm, Role::Norm, vec![inner()]);
        out.linear("out_proj", Surface::MixerOut, Role::Matrix, Dim::whole(hidden), inner(), Bias::No);
    }
}
