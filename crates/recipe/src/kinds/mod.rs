//! One kind of mixer or feature a file: what a recipe may say of it, how it is written back, and
//! the tensors it consists of. A new kind is a new file here; a new model is data.

pub mod attention;
pub mod depths;
pub mod dsa;
pub(crate) mod edges;
pub mod engram;
pub mod gated_delta;
pub mod kda;
pub mod lightning;
pub mod linear;
pub mod m2rnn;
pub mod mamba;
pub mod mamba1;
pub mod mamba2;
pub mod mamba3;
pub mod mhc;
pub mod mla;
pub mod mlp;
pub mod mlstm;
pub mod moe;
pub mod mtp;
pub mod rg_lru;
pub mod rwkv7;
pub mod shared;
pub mod short_conv;
pub mod side;

use crate::adapters::Adapters;
use crate::pattern::{Family, Layer, Mixer};
use crate::precision::{OptimizerPolicy, Precision};
use crate::tensor::{Dim, Place, Role, Surface, Tensor, Unit};
use units::named;

named! {
    /// The function between the two projections of a feed-forward block.
    pub enum Activation {
        /// SiLU gate times a second projection.
        SwiGlu = "swiglu",
        /// GELU gate times a second projection.
        GeGlu = "geglu",
        /// gpt-oss' unit: both projections clamped at 7, the gate times a sigmoid of 1.702 of it, one added to the
        /// other (openai/gpt-oss, `torch/model.py`; the name is vLLM's).
        SwiGluOai = "swigluoai",
        /// Squared ReLU, no gate.
        Relu2 = "relu2",
        /// GELU, no gate.
        Gelu = "gelu",
        /// SiLU, no gate.
        Silu = "silu",
        /// ReLU, no gate.
        Relu = "relu",
    }
}

impl Activation {
    /// Whether a second projection of the same width gates the first.
    pub fn is_gated(self) -> bool {
        matches!(self, Activation::SwiGlu | Activation::GeGlu | Activation::SwiGluOai)
    }

    /// The packed output dimension of the projection into a feed-forward block.
    pub fn in_dim(self, ffn: u64) -> Dim {
        if self.is_gated() {
            Dim::packed(&[("gate", Unit::Channel, ffn, 1), ("up", Unit::Channel, ffn, 1)])
        } else {
            Dim::of(Unit::Channel, ffn, 1)
        }
    }
}

named! {
    /// How the residual stream is normalised before a block.
    pub enum Norm {
        /// Scale only.
        RmsNorm = "rmsnorm",
        /// Scale and shift.
        LayerNorm = "layernorm",
        /// Centred, with a scale and no shift: Cohere, MPT, DBRX.
        LayerNormScale = "layernorm-scale",
        /// Centred, with neither: OLMo.
        LayerNormBare = "layernorm-bare",
        /// Not centred, and without a scale: nanochat.
        RmsNormBare = "rmsnorm-bare",
    }
}

impl Norm {
    /// Whether it multiplies with a learned scale.
    pub fn has_scale(self) -> bool {
        !matches!(self, Norm::LayerNormBare | Norm::RmsNormBare)
    }

    /// Whether it adds a learned shift.
    pub fn has_shift(self) -> bool {
        self == Norm::LayerNorm
    }

    /// Whether it is one of the two that every engine knows.
    pub fn is_usual(self) -> bool {
        matches!(self, Norm::RmsNorm | Norm::LayerNorm)
    }
}

named! {
    /// Where a block's norm stands.
    pub enum NormPlace {
        /// Before the block.
        Before = "before",
        /// Behind the block, on what it adds to the residual stream: OLMo 2, EXAONE 4.
        After = "after",
        /// Before and behind it, a norm each: Gemma 2 and 3, GLM-4.
        Both = "both",
        /// Behind the blocks of layers that attend, before those of others: OLMo Hybrid.
        AfterAttention = "after-attention",
    }
}

impl NormPlace {
    /// Where norms of a layer stand: before its blocks, behind them, or both.
    pub fn of(self, layer: &Layer) -> NormPlace {
        match self {
            NormPlace::AfterAttention if layer.has(Mixer::Attention) => NormPlace::After,
            NormPlace::AfterAttention => NormPlace::Before,
            other => other,
        }
    }
}

/// Collects tensors of one place under one path prefix.
pub(crate) struct Emitter<'a> {
    /// What has been emitted so far, over all places.
    pub tensors: Vec<Tensor>,
    precision: &'a Precision,
    optimizer: &'a OptimizerPolicy,
    adapters: Option<&'a Adapters>,
    prefix: String,
    place: Place,
    family: Family,
}

impl<'a> Emitter<'a> {
    /// An emitter that has nothing yet.
    pub fn new(
        precision: &'a Precision,
        optimizer: &'a OptimizerPolicy,
        adapters: Option<&'a Adapters>,
    ) -> Emitter<'a> {
        Emitter {
            tensors: Vec::new(),
            precision,
            optimizer,
            adapters,
            prefix: String::new(),
            place: Place::Embedding,
            family: Family::Edge,
        }
    }

    /// What follows stands at `place`, is counted under `family`, and has paths under `prefix`.
    pub fn stand(&mut self, place: Place, family: Family, prefix: impl Into<String>) {
        self.place = place;
        self.family = family;
        self.prefix = prefix.into();
    }

    /// Adds a tensor.
    pub fn add(&mut self, name: &str, surface: Surface, role: Role, dims: Vec<Dim>) {
        self.push(name, surface, role, dims, None);
    }

    /// Adds a bank of experts, `top_k` of which act on a token.
    pub fn add_experts(&mut self, name: &str, surface: Surface, role: Role, dims: Vec<Dim>, top_k: u64) {
        let experts = dims[0].len();
        self.push(name, surface, role, dims, Some((top_k, experts)));
    }

    fn push(&mut self, name: &str, surface: Surface, role: Role, dims: Vec<Dim>, acting: Option<(u64, u64)>) {
        // Muon orthogonalises matrices; a bank of experts is a matrix each.
        let is_matrix = dims.len() - usize::from(acting.is_some()) == 2;
        let tensor = Tensor {
            path: format!("{}.{name}", self.prefix),
            dims,
            dtype: self.precision.of(role),
            role,
            surface,
            family: self.family,
            place: self.place,
            optimizer: self.optimizer.of(role, is_matrix),
            acting,
            serves_heads: matches!(surface, Surface::AttentionNorm | Surface::MixerHelper),
            is_frozen: self.adapters.is_some(),
        };
        let adapters = self.adapters.filter(|adapters| adapters.cover(&tensor));
        let factors = adapters.map(|adapters| adapters.factors(&tensor, self.precision.main));
        self.tensors.push(tensor);
        self.tensors.extend(factors.into_iter().flatten());
    }

    /// Adds a norm inside a mixer that every head reads alike.
    pub fn head_norm(&mut self, name: &str, width: u64) {
        self.add(&format!("{name}.weight"), Surface::Norm, Role::Norm, vec![Dim::whole(width)]);
        if let Some(tensor) = self.tensors.last_mut() {
            tensor.serves_heads = true;
        }
    }

    /// Adds a norm over a width that nobody cuts.
    pub fn norm(&mut self, name: &str, surface: Surface, norm: Norm, width: u64) {
        if norm.has_scale() {
            self.add(&format!("{name}.weight"), surface, Role::Norm, vec![Dim::whole(width)]);
        }
        if norm.has_shift() {
            self.add(&format!("{name}.bias"), surface, Role::Norm, vec![Dim::whole(width)]);
        }
    }

    /// Adds a weight `[out, in]` and, if asked, a bias `[out]`.
    pub fn linear(&mut self, name: &str, surface: Surface, role: Role, out: Dim, input: Dim, bias: Bias) {
        if bias == Bias::Yes {
            self.add(&format!("{name}.weight"), surface, role, vec![out.clone(), input]);
            self.add(&format!("{name}.bias"), surface, Role::Bias, vec![out]);
        } else {
            self.add(&format!("{name}.weight"), surface, role, vec![out, input]);
        }
    }
}

/// Whether a projection adds a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    Yes,
    No,
}

impl From<bool> for Bias {
    fn from(flag: bool) -> Bias {
        if flag { Bias::Yes } else { Bias::No }
    }
}
