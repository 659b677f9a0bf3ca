//! Mamba-2: heads that share B and C by group, a short convolution over x, B and C, a chunked
//! scan and a gated norm. Without a convolution (`conv = 0`), x goes through SiLU alone and B and C as they are
//! projected: Mamba-3's choice with Mamba-2's scan (DatasunriseOU/cppmega, `noconv_mamba_mixer.py`).

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of a Mamba-2 mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// Heads.
    pub heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// State of one element of a head.
    pub state: u64,
    /// Groups of heads that share B and C.
    pub groups: u64,
    /// Convolution taps; none where there is no convolution.
    pub conv: u64,
    /// Bias of the convolution, where there is one.
    pub conv_bias: bool,
    /// Bias of the projection in.
    pub in_bias: bool,
    /// Bias of the projection out.
    pub out_bias: bool,
    /// Whether the output is normalised behind its gate.
    pub gated_norm: bool,
    /// Tokens a chunk of the scan covers.
    pub chunk: u64,
}

impl Mamba2 {
    /// A mixer with the usual extras: convolution of four taps with bias, gated norm, chunks of
    /// 128 tokens.
    pub fn new(heads: u64, head_dim: u64, state: u64, groups: u64) -> Mamba2 {
        Mamba2 {
            heads,
            head_dim,
            state,
            groups,
            conv: 4,
            conv_bias: true,
            in_bias: false,
            out_bias: false,
            gated_norm: true,
            chunk: 128,
        }
    }

    /// Width between the projections.
    pub fn inner(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Channels the convolution runs over: x, B and C.
    pub fn conv_channels(&self) -> u64 {
        self.inner() + 2 * self.groups * self.state
    }

    /// Reads the keys of `[mamba]` for this kind.
    pub(crate) fn read(mut section: Section) -> Option<Mamba2> {
        let base = read_heads(&mut section);
        let conv = section.natural_or("conv", 64, 4);
        let conv_bias = section.flag_or("conv_bias", conv != Some(0));
        if conv == Some(0) && conv_bias {
            let message = "`conv_bias` is a convolution's, and `conv = 0` leaves it out";
            let finding = Finding::error("recipe/unused-key", Blame::Recipe, "mamba.conv_bias", message);
            section.report("conv_bias", finding.hint("take it out"));
        }
        let in_bias = section.flag_or("in_bias", false);
        let out_bias = section.flag_or("out_bias", false);
        let gated_norm = section.flag_or("gated_norm", true);
        let chunk = section.count_or("chunk", 1 << 16, 128);
        section.finish();
        let (heads, head_dim, state, groups) = base?;
        let (conv, chunk) = (conv?, chunk?);
        Some(Mamba2 { heads, head_dim, state, groups, conv, conv_bias, in_bias, out_bias, gated_norm, chunk })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("heads", self.heads);
        toml.int("head_dim", self.head_dim);
        toml.int("state", self.state);
        toml.int("groups", self.groups);
        toml.int_unless("conv", self.conv, 4);
        toml.flag_unless("conv_bias", self.conv_bias, self.conv > 0);
        toml.flag_unless("in_bias", self.in_bias, false);
        toml.flag_unless("out_bias", self.out_bias, false);
        toml.flag_unless("gated_norm", self.gated_norm, true);
        toml.int_unless("chunk", self.chunk, 128);
    }

    /// Its tensors. `in_proj` packs z x B C dt, in Megatron's and the reference's order.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let into = Dim::packed(&[
            ("z", Unit::MambaHead, self.heads, self.head_dim),
            ("x", Unit::MambaHead, self.heads, self.head_dim),
            ("B", Unit::MambaGroup, self.groups, self.state),
            ("C", Unit::MambaGroup, self.groups, self.state),
            ("dt", Unit::MambaHead, self.heads, 1),
        ]);
        let channels = Dim::packed(&[
            ("x", Unit::MambaHead, self.heads, self.head_dim),
            ("B", Unit::MambaGroup, self.groups, self.state),
            ("C", Unit::MambaGroup, self.groups, self.state),
        ]);
        let heads = || vec![Dim::of(Unit::MambaHead, self.heads, 1)];
        let inner = || Dim::of(Unit::MambaHead, self.heads, self.head_dim);
        let bias = Bias::from(self.in_bias);
        out.linear("in_proj", Surface::MixerIn, Role::Matrix, into, Dim::whole(hidden), bias);
        if self.conv > 0 {
            let taps = vec![channels.clone(), Dim::whole(1), Dim::whole(self.conv)];
            out.add("conv.weight", Surface::MixerConv, Role::Conv, taps);
        }
        if self.conv_bias {
            out.add("conv.bias", Surface::MixerConv, Role::Bias, vec![channels]);
        }
        out.add("dt_bias", Surface::MixerScalar, Role::Scalar, heads());
        out.add("A_log", Surface::MixerScalar, Role::Scalar, heads());
        out.add("D", Surface::MixerScalar, Role::Scalar, heads());
        if self.gated_norm {
            out.add("gate_norm.weight", Surface::MixerNorm, Role::Norm, vec![inner()]);
        }
        let bias = Bias::from(self.out_bias);
        out.linear("out_proj", Surface::MixerOut, Role::Matrix, Dim::whole(hidden), inner(), bias);
    }
}

/// Reads heads, head width, state and groups, which Mamba-2 and Mamba-3 share.
pub(super) fn read_heads(section: &mut Section) -> Option<(u64, u64, u64, u64)> {
    let heads = section.count("heads", limits::HEADS);
    let head_dim = section.count("head_dim", limits::WIDTH);
    let state = section.count("state", limits::WIDTH);
    let groups = section.count_or("groups", limits::HEADS, 1);
    let (heads, head_dim, state, groups) = (heads?, head_dim?, state?, groups?);
    if !heads.is_multiple_of(groups) {
        let message = format!("{heads} Mamba heads do not share {groups} groups evenly");
        let finding = Finding::error("mamba/groups", Blame::Recipe, "mamba.groups", message)
            .hint(format!("groups may be {}", diag::list(&units::divisors(heads))));
        section.report("groups", finding);
        return None;
    }
    if head_dim.checked_mul(heads).is_none_or(|inner| inner > limits::WIDTH) {
        let message = format!("{heads} heads of {head_dim} are wider than {}", limits::WIDTH);
        section.report("heads", Finding::error("recipe/limit", Blame::Recipe, "mamba.heads", message));
        return None;
    }
    Some((heads, head_dim, state, groups))
}
