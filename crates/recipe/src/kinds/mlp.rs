//! `F`: a dense feed-forward block.

use super::{Activation, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface};
use crate::write::Toml;
use reading::Section;

/// The dense feed-forward block of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    /// Inner width; of each of gate and up when gated.
    pub ffn: u64,
    /// Function between the projections.
    pub activation: Activation,
    /// Whether the projections add biases.
    pub bias: bool,
    /// Whether each input is mixed with that of the token before, by a learned share a column: RWKV.
    pub shift: bool,
}

impl Mlp {
    /// Reads `[mlp]`.
    pub(crate) fn read(mut section: Section) -> Option<Mlp> {
        let ffn = section.count("ffn", limits::WIDTH);
        let activation = section.choice("activation", Activation::ALL, Activation::SwiGlu);
        let bias = section.flag_or("bias", false);
        let shift = section.flag_or("shift", false);
        section.finish();
        Some(Mlp { ffn: ffn?, activation, bias, shift })
    }

    /// Writes `[mlp]`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.table("mlp");
        toml.int("ffn", self.ffn);
        toml.word_unless("activation", self.activation.name(), Activation::SwiGlu.name());
        toml.flag_unless("bias", self.bias, false);
        toml.flag_unless("shift", self.shift, false);
    }

    /// Its tensors, behind the block's norm.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let into = self.activation.in_dim(self.ffn);
        let columns = Dim::of(crate::tensor::Unit::Channel, self.ffn, 1);
        if self.shift {
            out.add("x_k", Surface::MixerHelper, Role::Scalar, vec![Dim::whole(hidden)]);
        }
        out.linear("fc1", Surface::MlpIn, Role::Matrix, into, Dim::whole(hidden), self.bias.into());
        out.linear("fc2", Surface::MlpOut, Role::Matrix, Dim::whole(hidden), columns, self.bias.into());
    }
}
