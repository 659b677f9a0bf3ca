//! `G`: a gated delta net, linear attention whose state is corrected by a delta rule.

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of a gated delta net.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// Query and key heads.
    pub key_heads: u64,
    /// Value heads, a multiple of the key heads.
    pub value_heads: u64,
    /// Width of a query or key.
    pub key_dim: u64,
    /// Width of a value.
    pub value_dim: u64,
    /// Convolution taps over queries, keys and values.
    pub conv: u64,
}

impl GatedDelta {
    /// Reads `[gated_delta]`.
    pub(crate) fn read(mut section: Section) -> Option<GatedDelta> {
        let key_heads = section.count("key_heads", limits::HEADS);
        let value_heads = section.count("value_heads", limits::HEADS);
        let key_dim = section.count("key_dim", limits::WIDTH);
        let value_dim = section.count("value_dim", limits::WIDTH);
        let conv = section.count_or("conv", 64, 4);
        if let (Some(keys), Some(values)) = (key_heads, value_heads)
            && !values.is_multiple_of(keys)
        {
            let message = format!("{values} value heads do not share {keys} key heads evenly");
            let finding = Finding::error("gated-delta/heads", Blame::Recipe, "gated_delta.key_heads", message)
                .hint(format!("key_heads may be {}", diag::list(&units::divisors(values))));
            section.report("key_heads", finding);
        }
        section.finish();
        let (key_heads, value_heads, key_dim, value_dim) = (key_heads?, value_heads?, key_dim?, value_dim?);
        Some(GatedDelta { key_heads, value_heads, key_dim, value_dim, conv: conv? })
    }

    /// Writes `[gated_delta]`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.table("gated_delta");
        toml.int("key_heads", self.key_heads);
        toml.int("value_heads", self.value_heads);
        toml.int("key_dim", self.key_dim);
        toml.int("value_dim", self.value_dim);
        toml.int_unless("conv", self.conv, 4);
    }

    /// State elements one sequence carries through one block, and the convolution's tail.
    pub fn state_elements(&self) -> (u64, u64) {
        let channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim;
        ((self.value_heads * self.value_dim).saturating_mul(self.key_dim), channels * (self.conv - 1))
    }

    /// Its tensors, behind the block's norm; `in_proj` packs q k v z beta alpha.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let qkv = [
            ("q", Unit::KeyHead, self.key_heads, self.key_dim),
            ("k", Unit::KeyHead, self.key_heads, self.key_dim),
            ("v", Unit::ValueHead, self.value_heads, self.value_dim),
        ];
        let mut into = qkv.to_vec();
        into.push(("z", Unit::ValueHead, self.value_heads, self.value_dim));
        into.push(("beta", Unit::ValueHead, self.value_heads, 1));
        into.push(("alpha", Unit::ValueHead, self.value_heads, 1));
        let heads = || vec![Dim::of(Unit::ValueHead, self.value_heads, 1)];
        out.linear("in_proj", Surface::MixerIn, Role::Matrix, Dim::packed(&into), Dim::whole(hidden), Bias::No);
        let taps = vec![Dim::packed(&qkv), Dim::whole(1), Dim::whole(self.conv)];
        out.add("conv.weight", Surface::MixerConv, Role::Conv, taps);
        out.add("dt_bias", Surface::MixerScalar, Role::Scalar, heads());
        out.add("A_log", Surface::MixerScalar, Role::Scalar, heads());
        out.head_norm("out_norm", self.value_dim);
        let inner = Dim::of(Unit::ValueHead, self.value_heads, self.value_dim);
        out.linear("out_proj", Surface::MixerOut, Role::Matrix, Dim::whole(hidden), inner, Bias::No);
    }
}
