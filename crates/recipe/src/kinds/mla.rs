//! Multi-latent attention: keys and values go through a low-rank latent, with a small slice that
//! carries rotary position.

use super::{Bias, Emitter, Norm};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use reading::Section;

/// The widths of multi-latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    /// Rank of the query latent; queries are projected directly when there is none.
    pub q_rank: Option<u64>,
    /// Rank of the key/value latent.
    pub kv_rank: u64,
    /// Width of a head's query and key without position.
    pub qk_dim: u64,
    /// Width of the rotary slice.
    pub rope_dim: u64,
    /// Width of a head's value.
    pub v_dim: u64,
    /// Whether the down-projections and the output projection add biases.
    pub bias: bool,
    /// Whether one number a head, made from the block's input, multiplies its output: Ling 3.
    pub head_gate: bool,
    /// Whether the latents are normalised; published models do, Megatron only with `qk_layernorm`.
    pub latent_norm: bool,
}

impl Mla {
    /// Reads the keys of multi-latent attention out of `section`, which the caller finishes.
    pub(crate) fn read(section: &mut Section) -> Option<Mla> {
        let q_rank = section.optional_count("q_rank", limits::WIDTH);
        let kv_rank = section.count("kv_rank", limits::WIDTH);
        let qk_dim = section.count("qk_dim", limits::WIDTH);
        let rope_dim = section.count("rope_dim", limits::WIDTH);
        let v_dim = section.count("v_dim", limits::WIDTH);
        let bias = section.flag_or("latent_bias", false);
        let head_gate = section.flag_or("head_gate", false);
        let latent_norm = section.flag_or("latent_norm", true);
        let (kv_rank, qk_dim, rope_dim, v_dim) = (kv_rank?, qk_dim?, rope_dim?, v_dim?);
        Some(Mla { q_rank, kv_rank, qk_dim, rope_dim, v_dim, bias, head_gate, latent_norm })
    }

    /// Writes the same keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.some_int("q_rank", self.q_rank);
        toml.int("kv_rank", self.kv_rank);
        toml.int("qk_dim", self.qk_dim);
        toml.int("rope_dim", self.rope_dim);
        toml.int("v_dim", self.v_dim);
        toml.flag_unless("latent_bias", self.bias, false);
        toml.flag_unless("head_gate", self.head_gate, false);
        toml.flag_unless("latent_norm", self.latent_norm, true);
    }

    /// Its tensors. The down-projections and their norms serve every head, so they have no head
    /// units; the up-projections are made of heads.
    pub(crate) fn tensors(&self, heads: u64, hidden: u64, out: &mut Emitter) {
        let query = Dim::of(Unit::Head, heads, self.qk_dim + self.rope_dim);
        let bias = Bias::from(self.bias);
        match self.q_rank {
            None => {
                out.linear("q_proj", Surface::AttentionIn, Role::Matrix, query, Dim::whole(hidden), Bias::No);
            }
            Some(rank) => {
                let latent = Dim::whole(rank);
                out.linear("q_down", Surface::AttentionLatent, Role::Matrix, latent, Dim::whole(hidden), bias);
                if self.latent_norm {
                    out.norm("q_norm", Surface::Norm, Norm::RmsNorm, rank);
                }
                out.linear("q_up", Surface::AttentionIn, Role::Matrix, query, Dim::whole(rank), Bias::No);
            }
        }
        let latent = Dim::whole(self.kv_rank + self.rope_dim);
        out.linear("kv_down", Surface::AttentionLatent, Role::Matrix, latent, Dim::whole(hidden), bias);
        if self.latent_norm {
            out.norm("kv_norm", Surface::Norm, Norm::RmsNorm, self.kv_rank);
        }
        let key_value = Dim::of(Unit::Head, heads, self.qk_dim + self.v_dim);
        out.linear("kv_up", Surface::AttentionIn, Role::Matrix, key_value, Dim::whole(self.kv_rank), Bias::No);
        if self.head_gate {
            let gate = Dim::of(Unit::Head, heads, 1);
            out.linear("gate", Surface::AttentionIn, Role::Matrix, gate, Dim::whole(hidden), Bias::No);
        }
        let value = Dim::of(Unit::Head, heads, self.v_dim);
        out.linear("out", Surface::AttentionOut, Role::Matrix, Dim::whole(hidden), value, bias);
    }
}
