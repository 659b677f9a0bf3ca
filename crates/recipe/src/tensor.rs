//! Logical tensors: what the model consists of before anyone splits it.
//!
//! Every dimension knows the units it is made of. A unit is what must never be cut (a head, a KV
//! head, a Mamba group, an expert); a packed dimension lists its segments in order. Nothing here
//! knows a mesh: which axis cuts which dimension is decided by the layout crate's rules.

use crate::kinds::side::OwnerStage;
use crate::pattern::Family;
use units::named;

named! {
    /// What a dimension is made of, and so where it may be cut.
    pub enum Unit {
        /// One piece: no axis may cut it.
        Whole = "whole",
        /// A query head.
        Head = "head",
        /// A key/value head, shared by the query heads of its group.
        KvHead = "kv-head",
        /// A Mamba head.
        MambaHead = "mamba-head",
        /// A Mamba group: the heads that share one B and C.
        MambaGroup = "mamba-group",
        /// A head of a recurrent mixer.
        RecurrentHead = "recurrent-head",
        /// A query or key head that several recurrent heads read.
        SharedHead = "shared-head",
        /// A key head of a gated delta net.
        KeyHead = "key-head",
        /// A value head of a gated delta net.
        ValueHead = "value-head",
        /// A head of a linear mixer of another kind.
        LinearHead = "linear-head",
        /// A column of a feed-forward bank: regular, and cut anywhere.
        Channel = "channel",
        /// One routed expert.
        Expert = "expert",
        /// One row of a vocabulary.
        Token = "token",
    }
}

impl Unit {
    /// Whether fewer units than ranks may be shared: each rank then holds one unit that
    /// neighbours hold too. True only of heads that others read: KV heads of grouped-query
    /// attention, and the shared query and key heads of a recurrent mixer.
    pub fn may_be_shared(self) -> bool {
        matches!(self, Unit::KvHead | Unit::SharedHead)
    }
}

/// A run of equal units inside one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What the run holds, such as `z` or `gate`.
    pub name: &'static str,
    /// What it is made of.
    pub unit: Unit,
    /// How many units.
    pub count: u64,
    /// Elements of one unit along this dimension.
    pub size: u64,
}

impl Segment {
    /// Elements of the whole run.
    pub fn len(&self) -> u64 {
        self.count * self.size
    }

    /// Whether the run holds nothing, as a shared expert of width zero does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One dimension of a logical tensor: one or more segments in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim(pub Vec<Segment>);

impl Dim {
    /// A dimension of `n` elements that nobody may cut.
    pub fn whole(n: u64) -> Dim {
        Dim(vec![Segment { name: "", unit: Unit::Whole, count: n, size: 1 }])
    }

    /// A dimension of `count` units of `size` elements.
    pub fn of(unit: Unit, count: u64, size: u64) -> Dim {
        Dim(vec![Segment { name: "", unit, count, size }])
    }

    /// A packed dimension.
    pub fn packed(segments: &[(&'static str, Unit, u64, u64)]) -> Dim {
        Dim(segments.iter().map(|&(name, unit, count, size)| Segment { name, unit, count, size }).collect())
    }

    /// Elements along the dimension.
    pub fn len(&self) -> u64 {
        self.0.iter().map(Segment::len).sum()
    }

    /// Whether the dimension has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every segment may be cut between units.
    pub fn is_cuttable(&self) -> bool {
        self.0.iter().all(|s| s.unit != Unit::Whole)
    }
}

named! {
    /// What a tensor is for; optimizer group and dtype follow it.
    pub enum Role {
        /// A weight matrix of a block.
        Matrix = "matrix",
        /// A weight matrix of a routed expert.
        Expert = "expert",
        /// An input table: tokens, positions, side channels.
        Embedding = "embedding",
        /// The output projection onto the vocabulary.
        Head = "head",
        /// A norm's scale or shift.
        Norm = "norm",
        /// The matrix that scores experts.
        Router = "router",
        /// A state-space or recurrent scalar per head: A, D, dt bias, decay.
        Scalar = "scalar",
        /// A short convolution.
        Conv = "conv",
        /// An additive bias.
        Bias = "bias",
    }
}

named! {
    /// A number format of stored tensors.
    pub enum Dtype {
        /// 32-bit float.
        Fp32 = "fp32",
        /// 16-bit brain float.
        Bf16 = "bf16",
        /// 16-bit float.
        Fp16 = "fp16",
        /// 8-bit float.
        Fp8 = "fp8",
        /// 4-bit float with block scales.
        Nvfp4 = "nvfp4",
    }
}

impl Dtype {
    /// Bits of one element, block scales not counted.
    pub fn bits(self) -> u64 {
        match self {
            Dtype::Fp32 => 32,
            Dtype::Bf16 | Dtype::Fp16 => 16,
            Dtype::Fp8 => 8,
            Dtype::Nvfp4 => 4,
        }
    }
}

named! {
    /// Which optimizer steps a tensor.
    pub enum Optimizer {
        /// Adam with decoupled weight decay: two moments.
        AdamW = "adamw",
        /// Orthogonalised momentum: one moment, matrices only.
        Muon = "muon",
        /// Momentum SGD: one moment.
        Sgd = "sgd",
    }
}

named! {
    /// A kind of tensor with one ownership rule.
    pub enum Surface {
        /// The token table.
        TokenEmbedding = "token-embedding",
        /// The learned absolute-position table.
        PositionEmbedding = "position-embedding",
        /// N-gram hash or structure tables and their projections.
        SideEmbedding = "side-embedding",
        /// The projection onto the vocabulary.
        OutputHead = "output-head",
        /// Any norm over the hidden width or a latent.
        Norm = "norm",
        /// Projections into attention heads: QKV, or MLA's up-projections.
        AttentionIn = "attention-in",
        /// MLA's down-projections into the latent.
        AttentionLatent = "attention-latent",
        /// The projection out of attention heads.
        AttentionOut = "attention-out",
        /// One learned scalar a head.
        AttentionSink = "attention-sink",
        /// Norms of queries and keys inside a head.
        AttentionNorm = "attention-norm",
        /// The sparse-attention indexer.
        SparseIndexer = "sparse-indexer",
        /// Projections into a dense feed-forward block.
        MlpIn = "mlp-in",
        /// Projection out of a dense feed-forward block.
        MlpOut = "mlp-out",
        /// The router.
        Router = "router",
        /// Projections into routed experts.
        ExpertIn = "expert-in",
        /// Projections out of routed experts.
        ExpertOut = "expert-out",
        /// Projections around a latent expert space.
        ExpertLatent = "expert-latent",
        /// Projections into the shared expert.
        SharedExpertIn = "shared-expert-in",
        /// Projection out of the shared expert.
        SharedExpertOut = "shared-expert-out",
        /// The scalar gate of the shared expert.
        SharedExpertGate = "shared-expert-gate",
        /// Projections into a state-carrying mixer.
        MixerIn = "mixer-in",
        /// Its short convolution.
        MixerConv = "mixer-conv",
        /// Its scalars, one or a few a head.
        MixerScalar = "mixer-scalar",
        /// Its gated or per-head norm.
        MixerNorm = "mixer-norm",
        /// Its helper projections that stay whole, such as Mamba-3's angles.
        MixerHelper = "mixer-helper",
        /// Projection out of it.
        MixerOut = "mixer-out",
        /// The projection that joins hidden state and next embedding in a prediction head.
        PredictionJoin = "prediction-join",
        /// Tables of n-grams inside the depth, and what adds their rows.
        Engram = "engram",
        /// The router of a layer that takes some tokens only.
        DepthRouter = "depth-router",
        /// The weights that collapse, expand and mix residual streams.
        HyperConnection = "hyper-connection",
        /// Weights of a block that several layers share, and what each of them adds to it.
        SharedBlock = "shared-block",
        /// The factor of an adapter that its weight's input meets.
        AdapterDown = "adapter-down",
        /// The factor that makes its weight's output.
        AdapterUp = "adapter-up",
    }
}

/// Where in the model a tensor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Before the first layer.
    Embedding,
    /// A side channel, owned by the stage the recipe names.
    Side(OwnerStage),
    /// A layer, by index.
    Layer(usize),
    /// After the last layer.
    FinalNorm,
    /// The output projection.
    Head,
    /// A prediction depth, from zero.
    Mtp(usize),
}

/// One logical tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Stable path, such as `layers.7.mamba.in_proj`.
    pub path: String,
    /// Dimensions, outermost first.
    pub dims: Vec<Dim>,
    /// Storage format of the weight.
    pub dtype: Dtype,
    /// Decides its number format and its optimizer.
    pub role: Role,
    /// Decides its ownership rule.
    pub surface: Surface,
    /// The block family it is counted under.
    pub family: Family,
    /// Decides which pipeline stage holds it.
    pub place: Place,
    /// By the recipe's policy for its role.
    pub optimizer: Optimizer,
    /// For a bank of experts, `(top_k, experts)`: how many act on a token, of how many.
    pub acting: Option<(u64, u64)>,
    /// Whether every head reads the whole of it, so that a rank that holds some heads uses its copy
    /// for those alone.
    pub serves_heads: bool,
    /// Whether it is never stepped: no gradient, no optimizer state.
    pub is_frozen: bool,
}

impl Tensor {
    /// Sizes of the dimensions.
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().map(Dim::len).collect()
    }

    /// Number of elements. The recipe's limits keep it in range.
    pub fn elements(&self) -> u64 {
        self.dims.iter().map(Dim::len).product()
    }

    /// Elements that act on one token.
    pub fn active_elements(&self) -> u64 {
        match self.acting {
            Some((acting, of)) => self.elements() / of * acting,
            None => self.elements(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_dimensions_know_their_length() {
        let dim = Dim::packed(&[("q", Unit::Head, 56, 64), ("k", Unit::KvHead, 8, 64), ("v", Unit::KvHead, 8, 64)]);
        assert_eq!(dim.len(), 72 * 64);
        assert!(dim.is_cuttable());
        assert!(!Dim::whole(4).is_cuttable());
    }

    #[test]
    fn words_are_unique_and_read_back() {
        for &(word, surface) in Surface::ALL {
            assert_eq!(Surface::from_name(word), Some(surface));
        }
    }
}
