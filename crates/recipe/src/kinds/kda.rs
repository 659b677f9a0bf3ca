//! Kimi Delta Attention (arXiv 2510.26692): a gated delta net whose decay is a channel's own. Queries, keys and values are as
//! wide as one another and convolved; decays and output gates come through a latent as wide as a head, or, as in Ling 3, straight.

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of the mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct Kda {
    /// Heads; every one has its own queries, keys and values.
    pub heads: u64,
    /// Width of a head, and of the latents that decays and gates come through.
    pub head_dim: u64,
    /// Taps of the convolution.
    pub conv: u64,
    /// Whether decays and output gates come through latents.
    pub latents: bool,
}

impl Kda {
    /// Width between the projections.
    pub fn inner(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Reads the keys of `[linear]` for this kind.
    pub(crate) fn read(mut section: Section) -> Option<Kda> {
        let (heads, head_dim) = (section.count("heads", limits::HEADS), section.count("head_dim", limits::WIDTH));
        let conv = section.count_or("conv", limits::HEADS, 4);
        let latents = section.flag_or("latents", true);
        if let (Some(heads), Some(head_dim)) = (heads, head_dim)
            && heads.checked_mul(head_dim).is_none_or(|inner| inner > limits::WIDTH)
        {
            let message = format!("{heads} heads of {head_dim} are wider than {}", limits::WIDTH);
            section.report("heads", Finding::error("recipe/limit", Blame::Recipe, "linear.heads", message));
        }
        section.finish();
        Some(Kda { heads: heads?, head_dim: head_dim?, conv: conv?, latents })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("heads", self.heads);
        toml.int("head_dim", self.head_dim);
        toml.int_unless("conv", self.conv, 4);
        toml.flag_unless("latents", self.latents, true);
    }

    /// Its tensors. Latents are every head's, and so is the scale of the norm, which runs over one head at a time.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let by_head = || Dim::of(Unit::LinearHead, self.heads, self.head_dim);
        let scalar = || Dim::of(Unit::LinearHead, self.heads, 1);
        let packed = || Dim::packed(&["q", "k", "v"].map(|name| (name, Unit::LinearHead, self.heads, self.head_dim)));
        let (role, width, latent) = (Role::Matrix, || Dim::whole(hidden), || Dim::whole(self.head_dim));
        out.linear("qkv", Surface::MixerIn, role, packed(), width(), Bias::No);
        out.add("conv.weight", Surface::MixerConv, Role::Conv, vec![packed(), Dim::whole(1), Dim::whole(self.conv)]);
        let made_of = |name: &str, out: &mut Emitter| {
            if self.latents {
                out.linear(&format!("{name}_latent"), Surface::MixerHelper, role, latent(), width(), Bias::No);
            }
            let from = if self.latents { latent() } else { width() };
            out.linear(name, Surface::MixerIn, role, by_head(), from, Bias::No);
        };
        made_of("decay", out);
        out.add("dt_bias", Surface::MixerScalar, Role::Scalar, vec![by_head()]);
        out.add("A_log", Surface::MixerScalar, Role::Scalar, vec![scalar()]);
        out.linear("beta", Surface::MixerIn, role, scalar(), width(), Bias::No);
        made_of("gate", out);
        out.add("out_norm.weight", Surface::MixerNorm, Role::Norm, vec![latent()]);
        out.linear("out", Surface::MixerOut, role, width(), by_head(), Bias::No);
    }
}
