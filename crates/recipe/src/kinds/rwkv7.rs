//! RWKV-7's time mixing (arXiv 2503.14456; fla-org/flash-linear-attention, `fla/layers/rwkv7.py`): a delta rule whose decays, rates and
//! gates come through latents. Each input is mixed with that of the token before, by shares of its own; values of every
//! layer but the first are drawn towards the first layer's, which so are read at every depth.

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Place, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of the mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv7 {
    /// Heads; every one has its own receptance, key and value.
    pub heads: u64,
    /// Width of a head's receptance and key.
    pub head_dim: u64,
    /// Width of a head's value.
    pub v_dim: u64,
    /// Width of the latent that decays come through.
    pub decay_rank: u64,
    /// Of the one of in-context learning rates.
    pub rate_rank: u64,
    /// Of the one that says how far a value goes to the first layer's.
    pub value_rank: u64,
    /// Of the one of output gates.
    pub gate_rank: u64,
}

/// What tokens are mixed with the one before for.
const SHARES: [&str; 6] = ["r", "w", "k", "v", "a", "g"];

impl Rwkv7 {
    /// Width of receptance and keys.
    pub fn keys(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Width of values.
    pub fn values(&self) -> u64 {
        self.heads * self.v_dim
    }

    /// Reads the keys of `[linear]` for this kind.
    pub(crate) fn read(mut section: Section) -> Option<Rwkv7> {
        let (heads, head_dim) = (section.count("heads", limits::HEADS), section.count("head_dim", limits::WIDTH));
        let v_dim = section.optional_count("v_dim", limits::WIDTH).or(head_dim);
        let mut rank = |key| section.count(key, limits::WIDTH);
        let (decay_rank, rate_rank) = (rank("decay_rank"), rank("rate_rank"));
        let (value_rank, gate_rank) = (rank("value_rank"), rank("gate_rank"));
        if let (Some(heads), Some(head_dim), Some(v_dim)) = (heads, head_dim, v_dim)
            && heads.checked_mul(head_dim.max(v_dim)).is_none_or(|inner| inner > limits::WIDTH)
        {
            let message = format!("{heads} heads of {} are wider than {}", head_dim.max(v_dim), limits::WIDTH);
            section.report("heads", Finding::error("recipe/limit", Blame::Recipe, "linear.heads", message));
        }
        section.finish();
        let (heads, head_dim, v_dim) = (heads?, head_dim?, v_dim?);
        let (decay_rank, rate_rank, value_rank, gate_rank) = (decay_rank?, rate_rank?, value_rank?, gate_rank?);
        Some(Rwkv7 { heads, head_dim, v_dim, decay_rank, rate_rank, value_rank, gate_rank })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("heads", self.heads);
        toml.int("head_dim", self.head_dim);
        toml.int_unless("v_dim", self.v_dim, self.head_dim);
        toml.int("decay_rank", self.decay_rank);
        toml.int("rate_rank", self.rate_rank);
        toml.int("value_rank", self.value_rank);
        toml.int("gate_rank", self.gate_rank);
    }

    /// Its tensors. Shares and latents are every head's; the first layer's values are what others are drawn to.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let key = || Dim::of(Unit::LinearHead, self.heads, self.head_dim);
        let value = || Dim::of(Unit::LinearHead, self.heads, self.v_dim);
        for name in SHARES {
            out.add(&format!("x_{name}"), Surface::MixerHelper, Role::Scalar, vec![Dim::whole(hidden)]);
        }
        for name in ["k_k", "k_a", "r_k"] {
            out.add(name, Surface::MixerScalar, Role::Scalar, vec![key()]);
        }
        let (role, width) = (Role::Matrix, || Dim::whole(hidden));
        out.linear("r", Surface::MixerIn, role, key(), width(), Bias::No);
        out.linear("k", Surface::MixerIn, role, key(), width(), Bias::No);
        out.linear("v", Surface::MixerIn, role, value(), width(), Bias::No);
        let mut latents = vec![
            ("decay", self.decay_rank, key(), Bias::Yes),
            ("rate", self.rate_rank, key(), Bias::Yes),
            ("gate", self.gate_rank, value(), Bias::No),
        ];
        if out.place != Place::Layer(0) {
            latents.push(("first", self.value_rank, value(), Bias::Yes));
        }
        for (name, rank, into, bias) in latents {
            out.linear(&format!("{name}_latent"), Surface::MixerHelper, role, Dim::whole(rank), width(), Bias::No);
            out.linear(name, Surface::MixerIn, role, into, Dim::whole(rank), bias);
        }
        for part in ["weight", "bias"] {
            out.add(&format!("out_norm.{part}"), Surface::MixerNorm, Role::Norm, vec![value()]);
        }
        out.linear("out", Surface::MixerOut, role, width(), value(), Bias::No);
    }
}

#[cfg(test)]
mod tests {
    use crate::Recipe;

    const RWKV: &str = "name = \"r\"\npattern = \"(LF)\"\ndepth = 3\nhidden = 8\nvocab = 16\nsequence = 8\npositions = \"none\"\n\
        [linear]\nkind = \"rwkv7\"\nheads = 2\nhead_dim = 4\ndecay_rank = 2\nrate_rank = 2\nvalue_rank = 3\ngate_rank = 2\n\
        [mlp]\nffn = 32\nactivation = \"relu2\"\nshift = true\n";

    #[test]
    fn the_first_layer_is_drawn_to_nothing() {
        let recipe = Recipe::parse(RWKV).unwrap();
        let tensors = recipe.tensors();
        let drawn: Vec<_> =
            tensors.iter().filter(|t| t.path.contains("first_latent")).map(|t| t.path.as_str()).collect();
        assert_eq!(drawn, ["layers.1.linear.first_latent.weight", "layers.2.linear.first_latent.weight"]);
        assert_eq!(Recipe::parse(&recipe.to_toml()).unwrap(), recipe);
        // What any layer may have is in what one block is bounded by.
        assert!(recipe.block_tensors(crate::Mixer::Linear).iter().any(|t| t.path.contains("first_latent")));
    }

    #[test]
    fn values_come_from_layer_zero() {
        let attention = "[attention]\nheads = 2\n";
        let text = RWKV.replace("\"(LF)\"", "\"(AF)(LF)\"") + attention;
        assert!(Recipe::parse(&text).unwrap_err()[0].message.contains("layer 0, which has no `L` block"));
        let text = RWKV.replace(
            "kind = \"rwkv7\"\nheads = 2\nhead_dim = 4\ndecay_rank = 2\nrate_rank = 2\nvalue_rank = 3\ngate_rank = 2",
            "kind = \"short_conv\"",
        );
        assert!(Recipe::parse(&text).unwrap_err()[0].message.contains("are RWKV's"));
    }
}
