//! LFM2's short convolution: `C · conv(B · x)`, where `B`, `C` and `x` are projections of the input.

use super::Emitter;
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use reading::Section;

/// The figures of a short convolution, which is as wide as the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// Taps.
    pub conv: u64,
    /// Biases of the projections and of the convolution.
    pub bias: bool,
}

impl ShortConv {
    /// Reads the keys of `[linear]` for this kind.
    pub(crate) fn read(mut section: Section) -> Option<ShortConv> {
        let conv = section.count_or("conv", limits::HEADS, 3);
        let bias = section.flag_or("bias", false);
        section.finish();
        Some(ShortConv { conv: conv?, bias })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int_unless("conv", self.conv, 3);
        toml.flag_unless("bias", self.bias, false);
    }

    /// Its tensors; `in_proj` packs B, C and x.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let (width, bias) = (|| Dim::whole(hidden), self.bias.into());
        let packed = Dim::packed(&["B", "C", "x"].map(|name| (name, Unit::Channel, hidden, 1)));
        let channels = || Dim::of(Unit::Channel, hidden, 1);
        out.linear("in_proj", Surface::MixerIn, Role::Matrix, packed, width(), bias);
        out.add("conv.weight", Surface::MixerConv, Role::Conv, vec![channels(), Dim::whole(1), Dim::whole(self.conv)]);
        if self.bias {
            out.add("conv.bias", Surface::MixerConv, Role::Bias, vec![channels()]);
        }
        out.linear("out_proj", Surface::MixerOut, Role::Matrix, width(), channels(), bias);
    }
}
