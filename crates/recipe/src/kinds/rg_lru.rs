//! RecurrentGemma's block: a short convolution and a real-gated linear recurrent unit (De et al., arXiv 2402.19427)
//! on one branch, a GELU gate on the other. Gates are block diagonal, a block a head, so that heads go to tensor ranks
//! with all that belongs to them.

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of the block.
#[derive(Clone, Debug, PartialEq)]
pub struct RgLru {
    /// Channels of the recurrence.
    pub width: u64,
    /// Blocks that the gates' matrices stand in.
    pub heads: u64,
    /// Taps of the convolution.
    pub conv: u64,
}

impl RgLru {
    /// Reads the keys of `[linear]` for this kind.
    pub(crate) fn read(mut section: Section) -> Option<RgLru> {
        let (width, heads) = (section.count("width", limits::WIDTH), section.count("heads", limits::HEADS));
        let conv = section.count_or("conv", limits::HEADS, 4);
        if let (Some(width), Some(heads)) = (width, heads)
            && !width.is_multiple_of(heads)
        {
            let message = format!("{width} channels do not divide into {heads} heads");
            let finding = Finding::error("linear/heads", Blame::Recipe, "linear.heads", message);
            section.report("heads", finding.hint(format!("heads may be {}", diag::list(&units::divisors(width)))));
        }
        section.finish();
        Some(RgLru { width: width?, heads: heads?, conv: conv? })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("width", self.width);
        toml.int("heads", self.heads);
        toml.int_unless("conv", self.conv, 4);
    }

    /// Its tensors.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let each = self.width / self.heads;
        let channels = || Dim::of(Unit::LinearHead, self.heads, each);
        for name in ["gate", "in_proj"] {
            out.linear(name, Surface::MixerIn, Role::Matrix, channels(), Dim::whole(hidden), Bias::Yes);
        }
        out.add("conv.weight", Surface::MixerConv, Role::Conv, vec![channels(), Dim::whole(1), Dim::whole(self.conv)]);
        out.add("conv.bias", Surface::MixerConv, Role::Bias, vec![channels()]);
        out.add("decay", Surface::MixerScalar, Role::Scalar, vec![channels()]);
        for name in ["input_gate", "recurrent_gate"] {
            let blocks = vec![Dim::of(Unit::LinearHead, self.heads, 1), Dim::whole(each), Dim::whole(each)];
            out.add(&format!("{name}.weight"), Surface::MixerScalar, Role::Matrix, blocks);
            out.add(&format!("{name}.bias"), Surface::MixerScalar, Role::Bias, vec![channels()]);
        }
        out.linear("out_proj", Surface::MixerOut, Role::Matrix, Dim::whole(hidden), channels(), Bias::Yes);
    }
}
