//! `R`: M2RNN, a recurrence with a matrix-valued state and a non-linear step, so time cannot be
//! scanned in parallel: whoever cuts the sequence must hand the state on.
//!
//! Parameter list: open-lm-engine/lm-engine, `sequence_mixer_blocks/m2rnn`; head counts of
//! NAM56R's R blocks: DatasunriseOU/cppmega, `cppmega/megatron/m2rnn_spec.py`.

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of an M2RNN mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct M2rnn {
    /// Value, forget-gate, output-gate and state heads.
    pub heads: u64,
    /// Query and key heads, which the others read.
    pub qk_heads: u64,
    /// Width of a query or key.
    pub key_dim: u64,
    /// Width of a value.
    pub value_dim: u64,
    /// Convolution taps over queries, keys and values.
    pub conv: u64,
    /// Bias of the convolution.
    pub conv_bias: bool,
    /// What every element of the state's gradient is clipped to at every step, 1 as published
    /// (open-lm-engine/lm-engine, `configs/research/m2rnn`); 0 clips nothing.
    pub gradient_clip: f64,
    /// Whether the implementation hands its state across a cut in time.
    pub state_carry: bool,
    /// Tokens between the borders at which the state of one R block enters the next one up the
    /// depth; `None` where no state runs up the depth.
    ///
    /// At a border, before token 0, N, 2N … of a sequence, a block's state becomes the mean of its
    /// own and of the one the R block below had there, and that mean is what the block above gets.
    /// The lowest R block has only its own; prediction suffixes take none. A state at a border knows
    /// the tokens before it and no others, so the model stays causal, which handing a final state to
    /// the next block's beginning would not; and a mean of states within ±1 stays within ±1.
    pub depth_carry: Option<u64>,
}

impl M2rnn {
    /// Reads `[recurrent]`.
    pub(crate) fn read(mut section: Section) -> Option<M2rnn> {
        section.choice("kind", &[("m2rnn", ())], ());
        let heads = section.count("heads", limits::HEADS);
        let qk_heads = section.count_or("qk_heads", limits::HEADS, 1);
        let key_dim = section.count("key_dim", limits::WIDTH);
        let value_dim = section.count("value_dim", limits::WIDTH);
        let conv = section.count_or("conv", 64, 4);
        let conv_bias = section.flag_or("conv_bias", true);
        let gradient_clip = section.not_negative("gradient_clip").unwrap_or(1.0);
        let state_carry = section.flag_or("state_carry", false);
        let depth_carry = section.optional_count("depth_carry", limits::SEQUENCE);
        if let (Some(heads), Some(qk_heads)) = (heads, qk_heads)
            && !heads.is_multiple_of(qk_heads)
        {
            let message = format!("{heads} recurrent heads do not share {qk_heads} query/key heads evenly");
            let finding = Finding::error("recurrent/qk-heads", Blame::Recipe, "recurrent.qk_heads", message)
                .hint(format!("qk_heads may be {}", diag::list(&units::divisors(heads))));
            section.report("qk_heads", finding);
        }
        section.finish();
        let (heads, qk_heads, key_dim, value_dim, conv) = (heads?, qk_heads?, key_dim?, value_dim?, conv?);
        Some(M2rnn { heads, qk_heads, key_dim, value_dim, conv, conv_bias, gradient_clip, state_carry, depth_carry })
    }

    /// Writes `[recurrent]`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.table("recurrent");
        toml.text("kind", "m2rnn");
        toml.int("heads", self.heads);
        toml.int_unless("qk_heads", self.qk_heads, 1);
        toml.int("key_dim", self.key_dim);
        toml.int("value_dim", self.value_dim);
        toml.int_unless("conv", self.conv, 4);
        toml.flag_unless("conv_bias", self.conv_bias, true);
        toml.float_unless("gradient_clip", self.gradient_clip, 1.0);
        toml.flag_unless("state_carry", self.state_carry, false);
        toml.some_int("depth_carry", self.depth_carry);
    }

    /// State elements one sequence carries through one block: the matrix state of every head, and
    /// the convolution's tail.
    pub fn state_elements(&self) -> (u64, u64) {
        let channels = 2 * self.qk_heads * self.key_dim + self.heads * self.value_dim;
        ((self.heads * self.value_dim).saturating_mul(self.key_dim), channels * (self.conv - 1))
    }

    /// State elements of one sequence of `tokens` that run up the depth from one block to the next:
    /// the matrix state of every head at every border.
    pub fn carried_elements(&self, tokens: u64) -> u64 {
        self.depth_carry.map_or(0, |every| tokens.div_ceil(every).saturating_mul(self.state_elements().0))
    }

    /// Its tensors, behind the block's norm.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let qkv = [
            ("q", Unit::SharedHead, self.qk_heads, self.key_dim),
            ("k", Unit::SharedHead, self.qk_heads, self.key_dim),
            ("v", Unit::RecurrentHead, self.heads, self.value_dim),
        ];
        let mut into = qkv.to_vec();
        into.push(("f", Unit::RecurrentHead, self.heads, 1));
        into.push(("g", Unit::RecurrentHead, self.heads, self.value_dim));
        let heads = || Dim::of(Unit::RecurrentHead, self.heads, 1);
        let inner = || Dim::of(Unit::RecurrentHead, self.heads, self.value_dim);
        out.linear("in_proj", Surface::MixerIn, Role::Matrix, Dim::packed(&into), Dim::whole(hidden), Bias::No);
        let taps = vec![Dim::packed(&qkv), Dim::whole(1), Dim::whole(self.conv)];
        out.add("conv.weight", Surface::MixerConv, Role::Conv, taps);
        if self.conv_bias {
            out.add("conv.bias", Surface::MixerConv, Role::Bias, vec![Dim::packed(&qkv)]);
        }
        out.add("A_log", Surface::MixerScalar, Role::Scalar, vec![heads()]);
        out.add("dt_bias", Surface::MixerScalar, Role::Scalar, vec![heads()]);
        let square = vec![heads(), Dim::whole(self.value_dim), Dim::whole(self.value_dim)];
        out.add("state_weight", Surface::MixerScalar, Role::Scalar, square);
        out.add("D", Surface::MixerScalar, Role::Scalar, vec![heads(), Dim::whole(self.value_dim)]);
        out.add("gate_norm.weight", Surface::MixerNorm, Role::Norm, vec![inner()]);
        out.linear("out_proj", Surface::MixerOut, Role::Matrix, Dim::whole(hidden), inner(), Bias::No);
    }
}
