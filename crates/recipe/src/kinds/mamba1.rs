//! Mamba-1: a selective scan with one small state a channel. Channels are independent, so the
//! inner width is cut anywhere; `x_proj` mixes all of them and its output is shared.

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of a Mamba-1 mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba1 {
    /// Inner width.
    pub inner: u64,
    /// Heads, each with a step size, B and C of its own: Zamba. One where all channels share them.
    pub heads: u64,
    /// State of one channel.
    pub state: u64,
    /// Rank of the step-size projection.
    pub dt_rank: u64,
    /// Convolution taps.
    pub conv: u64,
    /// Bias of the convolution.
    pub conv_bias: bool,
    /// Biases of the projections in and out.
    pub proj_bias: bool,
    /// Norms of step size, B and C before use.
    pub inner_norms: bool,
}

impl Mamba1 {
    /// Reads the keys of `[mamba]` for this kind.
    pub(crate) fn read(mut section: Section) -> Option<Mamba1> {
        let inner = section.count("inner", limits::WIDTH);
        let heads = section.count_or("heads", limits::HEADS, 1);
        let state = section.count("state", limits::WIDTH);
        let dt_rank = section.count("dt_rank", limits::WIDTH);
        let conv = section.count_or("conv", 64, 4);
        let conv_bias = section.flag_or("conv_bias", true);
        let proj_bias = section.flag_or("proj_bias", false);
        let inner_norms = section.flag_or("inner_norms", false);
        if let (Some(inner), Some(heads)) = (inner, heads)
            && !inner.is_multiple_of(heads)
        {
            let message = format!("inner width {inner} does not divide into {heads} heads");
            let finding = Finding::error("mamba/heads", Blame::Recipe, "mamba.heads", message);
            section.report("heads", finding.hint("give a number of heads that divides `inner`"));
        }
        section.finish();
        let (inner, heads, state, dt_rank, conv) = (inner?, heads?, state?, dt_rank?, conv?);
        Some(Mamba1 { inner, heads, state, dt_rank, conv, conv_bias, proj_bias, inner_norms })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("inner", self.inner);
        toml.int_unless("heads", self.heads, 1);
        toml.int("state", self.state);
        toml.int("dt_rank", self.dt_rank);
        toml.int_unless("conv", self.conv, 4);
        toml.flag_unless("conv_bias", self.conv_bias, true);
        toml.flag_unless("proj_bias", self.proj_bias, false);
        toml.flag_unless("inner_norms", self.inner_norms, false);
    }

    /// Step sizes, B and C of a token, over all heads.
    pub fn selected(&self) -> u64 {
        self.heads * (self.dt_rank + 2 * self.state)
    }

    /// Its tensors; `x_proj` of several heads is theirs one under the other.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let inner = || Dim::of(Unit::Channel, self.inner, 1);
        let into = Dim::packed(&[("x", Unit::Channel, self.inner, 1), ("z", Unit::Channel, self.inner, 1)]);
        let bias = Bias::from(self.proj_bias);
        out.linear("in_proj", Surface::MixerIn, Role::Matrix, into, Dim::whole(hidden), bias);
        out.add("conv.weight", Surface::MixerConv, Role::Conv, vec![inner(), Dim::whole(self.conv)]);
        if self.conv_bias {
            out.add("conv.bias", Surface::MixerConv, Role::Bias, vec![inner()]);
        }
        if self.heads == 1 {
            out.linear("x_proj", Surface::MixerOut, Role::Matrix, Dim::whole(self.selected()), inner(), Bias::No);
        } else {
            let selected = Dim::of(Unit::MambaHead, self.heads, self.selected() / self.heads);
            let each = Dim::whole(self.inner / self.heads);
            out.linear("x_proj", Surface::MixerIn, Role::Matrix, selected, each, Bias::No);
        }
        out.linear("dt_proj", Surface::MixerIn, Role::Matrix, inner(), Dim::whole(self.dt_rank), Bias::Yes);
        out.add("A_log", Surface::MixerScalar, Role::Scalar, vec![inner(), Dim::whole(self.state)]);
        out.add("D", Surface::MixerScalar, Role::Scalar, vec![inner()]);
        if self.inner_norms {
            out.head_norm("dt_norm", self.dt_rank);
            out.head_norm("b_norm", self.state);
            out.head_norm("c_norm", self.state);
        }
        out.linear("out_proj", Surface::MixerOut, Role::Matrix, Dim::whole(hidden), inner(), bias);
    }
}
