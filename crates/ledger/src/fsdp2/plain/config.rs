//! Recipe and layout as the sizes one rank works with, or by name what is not modelled.

use case::options::CrossEntropy;
use case::{Documents, Ways};
use layout::{Axis, Layout, Mesh, Order, Recompute, Schedule, StagePlan};
use recipe::kinds::attention::{Attention, AttentionKind, QkNorm};
use recipe::kinds::depths::Depths;
use recipe::kinds::engram::Engram;
use recipe::kinds::gated_delta::GatedDelta;
use recipe::kinds::linear::Linear;
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba1::Mamba1;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::mamba3::Mamba3;
use recipe::kinds::mhc::Mhc;
use recipe::kinds::mla::Mla;
use recipe::kinds::moe::{Moe, ScoreFunction};
use recipe::kinds::shared::Shared;
use recipe::kinds::{Activation, Norm, NormPlace};
use recipe::{Layer, Mixer, Multipliers, Optimizer, Positions, Recipe, Role};
use replay::Unmodelled;
use std::collections::BTreeMap;

/// Whose blocks are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Blocks as torchtitan and Hugging Face models have them.
    Common,
    /// Those of the program that `shardwright launch --engine fsdp2` writes.
    Emitted,
}

/// A scan's sizes over all ranks.
#[derive(Clone, Debug)]
pub(crate) enum Scan {
    One(Mamba1),
    Two(Mamba2),
    Three(Mamba3),
}

/// Which rank of what.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub blocks: Blocks,
    pub recipe: &'a Recipe,
    pub layout: &'a Layout,
    pub stages: &'a StagePlan,
    pub rank: u64,
}

/// What queries and keys are normalised over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormOver {
    Head,
    All,
}

/// Sizes of attention over all ranks. A window is the kernel's own: it saves the same with it.
#[derive(Clone, Debug)]
pub(crate) struct AttentionSizes {
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub qk_norm: Option<NormOver>,
    pub qkv_bias: bool,
    pub out_bias: bool,
    pub has_gate: bool,
    pub has_sinks: bool,
    pub mla: Option<Mla>,
}

/// A feed-forward block's inner width over all ranks and its function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feed {
    pub ffn: u64,
    pub function: Activation,
    pub bias: bool,
    /// Whether its input is mixed with the token before.
    pub shift: bool,
}

impl Feed {
    pub fn is_gated(self) -> bool {
        self.function.is_gated()
    }
}

/// Sizes of expert layers.
#[derive(Clone, Debug)]
pub(crate) struct MoeSizes {
    pub experts: u64,
    pub local_experts: u64,
    pub top_k: u64,
    pub feed: Feed,
    pub shared: Option<Feed>,
    pub gates_shared: bool,
    pub has_router_bias: bool,
    pub score: ScoreFunction,
    pub normalizes: bool,
    pub is_scaled: bool,
    pub has_groups: bool,
    pub has_z_loss: bool,
    pub has_expert_bias: bool,
    pub has_balance_loss: bool,
}

/// All sizes of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub hidden: u64,
    /// Rows of the vocabulary on this rank; DTensor does not pad.
    pub vocab: u64,
    pub is_tied: bool,
    pub rotates: bool,
    /// Columns of a head that turn.
    pub rotated: u64,
    pub multipliers: Multipliers,
    /// How many tokens layers take that take some only.
    pub depths: Option<Depths>,
    /// Whether tokens are those that such a layer took, at places of their own.
    pub takes_some: bool,
    /// Of each layer, whether it takes some tokens only.
    pub partial: Vec<bool>,
    /// Branches that look n-grams up, and of each layer, whether one stands before it.
    pub engram: Option<Engram>,
    pub branched: Vec<bool>,
    /// Residual streams, where there are several.
    pub mhc: Option<Mhc>,
    pub norm: Norm,
    pub has_embedding_norm: bool,
    pub has_head_bias: bool,
    /// Whether what a block adds is dropped in part. Attention's own dropout keeps a random state alone.
    pub drops: bool,
    /// Rows of a learned position table.
    pub learned: Option<u64>,
    pub tp: u64,
    pub sp: bool,
    pub pp: u64,
    pub stage: u64,
    pub ep: u64,
    pub etp: u64,
    /// Ranks that share out dense parameters, and those that share out experts.
    pub dense_shards: u64,
    pub expert_shards: u64,
    pub micro_batch: u64,
    pub microbatches: u64,
    pub sequence: u64,
    /// Tokens of a microbatch inside tensor-parallel regions.
    pub tokens: u64,
    /// Tokens of a microbatch between them.
    pub local_tokens: u64,
    pub attention: Option<AttentionSizes>,
    pub mlp: Option<Feed>,
    pub moe: Option<MoeSizes>,
    pub mamba: Option<Scan>,
    pub blocks: Blocks,
    pub recurrent: Option<M2rnn>,
    pub gated_delta: Option<GatedDelta>,
    pub linear: Option<Linear>,
    pub shared: Option<Shared>,
    /// Which optimizer steps projections, and which experts.
    pub matrix_optimizer: Optimizer,
    pub expert_optimizer: Optimizer,
    /// Whether every layer is computed again in backward.
    pub checkpoints: bool,
    /// Whether token table and head are units of their own.
    pub edges_apart: bool,
    /// Whether every layer is compiled.
    pub is_compiled: bool,
    /// Whether the loss is, by itself.
    pub is_loss_compiled: bool,
    /// Projections that have an adapter, by their path behind the layer, with its rank; all else is frozen
    /// where there are any.
    pub adapted: BTreeMap<String, u64>,
    /// How weights are kept, stepped and followed.
    pub ways: Ways,
    /// Whose loss it is: eager, or one that multiplies the head.
    pub loss: CrossEntropy,
    /// Documents that a sequence is packed of.
    pub documents: Option<Documents>,
    pub layers: Vec<(u32, Vec<Mixer>)>,
    /// Of each layer, where its norms stand.
    pub norm_places: Vec<NormPlace>,
    /// Of each layer's mixers, whether it stands beside the one before it, behind the same norm.
    pub beside: Vec<Vec<bool>>,
    pub is_first: bool,
    pub is_last: bool,
}

impl Config {
    /// Sizes of a rank; nothing is compiled, and edges are one unit, until the caller says so.
    pub fn new(place: Place) -> Result<Config, Unmodelled> {
        let Place { recipe, layout, .. } = place;
        refuse_recipe(&place)?;
        refuse_optimizers(&place)?;
        refuse_layout(layout)?;
        let mesh = Mesh::new(layout, Order::DeviceMesh, recipe.uses(Mixer::Moe))
            .map_err(|finding| Unmodelled::new("this mesh", finding.message))?;
        let stage = mesh.coordinates(place.rank).on(Axis::Pp);
        let tp = layout.tp.get();
        let mut held = place.stages.by_stage[stage as usize].iter().map(|&index| &place.stages.chunks[index]);
        let chunk = held.next_back().ok_or_else(|| Unmodelled::new("an empty stage", "it holds no layers"))?;
        let layers =
            chunk.layers.clone().map(|index| Ok((index as u32, mixers(&recipe.layers[index], index, &place)?)));
        Ok(Config {
            hidden: recipe.hidden,
            vocab: recipe.vocab.div_ceil(tp),
            is_tied: recipe.tied,
            rotates: matches!(recipe.positions, Positions::Rope(_)),
            rotated: rotated(recipe),
            multipliers: recipe.multipliers,
            depths: recipe.features.depths().cloned(),
            takes_some: false,
            partial: chunk.layers.clone().map(|index| recipe.layers[index].is_partial).collect(),
            engram: recipe.features.engram().cloned(),
            branched: chunk.layers.clone().map(|index| recipe.layers[index].has_engram).collect(),
            mhc: recipe.features.mhc().cloned(),
            norm: recipe.norm,
            has_embedding_norm: recipe.embedding_norm,
            has_head_bias: recipe.head_bias,
            drops: recipe.dropout > 0.0,
            learned: match recipe.positions {
                Positions::Learned { count } => Some(count),
                _ => None,
            },
            tp,
            sp: layout.sp && tp > 1,
            pp: layout.pp.get(),
            stage,
            ep: layout.ep.get(),
            etp: layout.etp.get(),
            dense_shards: layout.dense_shards(),
            expert_shards: expert_shards(layout, place.blocks),
            micro_batch: layout.micro_batch,
            microbatches: layout.microbatches,
            sequence: layout.sequence,
            tokens: layout.sequence * layout.micro_batch,
            local_tokens: layout.tokens_per_microbatch_per_rank(),
            attention: recipe.attention().map(|a| attention(&a, recipe, layout)).transpose()?,
            mlp: recipe.mlp.as_ref().map(|m| Feed { ffn: m.ffn, function: m.activation, bias: m.bias, shift: m.shift }),
            moe: recipe.moe.as_ref().map(|moe| experts(moe, layout)).transpose()?,
            mamba: mamba(recipe, &place)?,
            blocks: place.blocks,
            recurrent: recipe.recurrent.clone(),
            gated_delta: recipe.gated_delta.clone(),
            linear: recipe.linear.clone(),
            shared: recipe.shared.clone(),
            matrix_optimizer: recipe.optimizer.of(Role::Matrix, true),
            expert_optimizer: recipe.optimizer.of(Role::Expert, true),
            checkpoints: layout.recompute == Recompute::Full,
            edges_apart: false,
            adapted: adapted(recipe),
            ways: Ways::PLAIN,
            loss: CrossEntropy::Eager,
            documents: None,
            is_compiled: false,
            is_loss_compiled: false,
            layers: layers.collect::<Result<_, Unmodelled>>()?,
            norm_places: chunk.layers.clone().map(|index| recipe.norm_place.of(&recipe.layers[index])).collect(),
            beside: chunk.layers.clone().map(|index| beside(&recipe.layers[index])).collect(),
            is_first: chunk.index == 0,
            is_last: chunk.index + 1 == place.stages.chunks.len(),
        })
    }

    /// Attention's sizes; a block of attention is only built when there are some.
    pub fn attention(&self) -> &AttentionSizes {
        self.attention.as_ref().expect("a valid recipe with attention blocks has an attention table")
    }

    pub fn moe(&self) -> &MoeSizes {
        self.moe.as_ref().expect("a valid recipe with expert blocks has a moe table")
    }

    pub fn mlp(&self) -> Feed {
        self.mlp.expect("a valid recipe with dense blocks has an mlp table")
    }

    pub fn recurrent(&self) -> &M2rnn {
        self.recurrent.as_ref().expect("a valid recipe with recurrent blocks has a recurrent table")
    }

    pub fn linear(&self) -> &Linear {
        self.linear.as_ref().expect("a valid recipe with linear mixers has a linear table")
    }

    pub fn shared(&self) -> &Shared {
        self.shared.as_ref().expect("a valid recipe with shared blocks has a shared table")
    }

    pub fn gated_delta(&self) -> &GatedDelta {
        self.gated_delta.as_ref().expect("a valid recipe with gated delta nets has a gated_delta table")
    }

    /// The scan's sizes.
    pub fn scan(&self) -> &Scan {
        self.mamba.as_ref().expect("a valid recipe with Mamba blocks has a mamba table")
    }

    /// Sizes of Mamba-2, which common blocks have only.
    pub fn mamba(&self) -> &Mamba2 {
        match self.scan() {
            Scan::Two(mamba) => mamba,
            Scan::One(_) | Scan::Three(_) => unreachable!("asked of Mamba-2 alone"),
        }
    }

    /// Whether any matrix is stepped by Muon.
    pub fn matrix_steps(&self) -> bool {
        [self.matrix_optimizer, self.expert_optimizer].contains(&Optimizer::Muon)
    }

    /// Numbers a token that go from layer to layer.
    pub fn residual_width(&self) -> u64 {
        self.hidden * self.mhc.as_ref().map_or(1, |mhc| mhc.streams)
    }

    /// Documents of a microbatch, where they are kept apart.
    pub fn documents(&self) -> Option<u64> {
        self.documents.map(|documents| self.micro_batch * documents.count(self.sequence))
    }

    /// Whether any layer has this mixer.
    pub fn has(&self, mixer: Mixer) -> bool {
        self.layers.iter().any(|(_, mixers)| mixers.contains(&mixer))
    }
}

fn rotated(recipe: &Recipe) -> u64 {
    match (recipe.positions.rope(), recipe.attention().map(|attention| attention.kind)) {
        (Some(rope), Some(AttentionKind::Gqa { head_dim, .. })) => rope.width(head_dim),
        _ => 0,
    }
}

/// Paths of adapted projections behind their layers.
fn adapted(recipe: &Recipe) -> BTreeMap<String, u64> {
    let Some(adapters) = recipe.adapters() else { return BTreeMap::new() };
    let tensors = recipe.tensors();
    let covered = tensors.iter().filter(|tensor| tensor.is_frozen && adapters.cover(tensor));
    covered.map(|tensor| (recipe::adapted_module(tensor), adapters.rank)).collect()
}

fn refuse_recipe(place: &Place) -> Result<(), Unmodelled> {
    let recipe = place.recipe;
    let refuse = |what: &str, why: &str| Err(Unmodelled::new(what, why));
    if recipe.features.mtp().is_some() {
        return refuse("multi-token prediction", "the prediction suffix is not replayed yet");
    }
    if recipe.features.dsa().is_some() {
        return refuse("sparse attention", "the indexer's scores are not replayed yet");
    }
    if recipe.features.sides().next().is_some() {
        return refuse("side embeddings", "their tables are not replayed yet");
    }
    if recipe.features.mhc().is_some() && recipe.blocks().any(|(_, block)| block.mixers.len() > 1) {
        return refuse("hyper-connections around parallel mixers", "how their sum is added to streams is not replayed");
    }
    if matches!(recipe.linear, Some(Linear::Rwkv7(_))) && place.layout.recompute == Recompute::Full {
        return refuse("recompute of RWKV-7", "a layer's second output, the first one's values, is not replayed");
    }
    Ok(())
}

/// AdamW is replayed everywhere, Muon in the emitted program where tensor-parallel ranks hold no
/// parts of a matrix.
fn refuse_optimizers(place: &Place) -> Result<(), Unmodelled> {
    let policy = &place.recipe.optimizer;
    let is_emitted = place.blocks == Blocks::Emitted && policy.of(Role::Router, true) == Optimizer::AdamW;
    let is_known = |optimizer| match optimizer {
        Optimizer::AdamW => true,
        Optimizer::Muon => is_emitted && !place.layout.tp.splits(),
        Optimizer::Sgd => false,
    };
    if place.recipe.tensors().iter().filter(|tensor| !tensor.is_frozen).all(|tensor| is_known(tensor.optimizer)) {
        return Ok(());
    }
    Err(Unmodelled::new("optimizers other than AdamW", "Muon gathers whole matrices, which is not replayed here yet"))
}

fn refuse_layout(layout: &Layout) -> Result<(), Unmodelled> {
    let refuse = |what: String, why: &str| Err(Unmodelled::new(what, why));
    if layout.cp.splits() {
        return refuse("context parallelism".to_string(), "ring attention's buffers are not replayed yet");
    }
    if layout.vpp.splits() || (layout.pp.splits() && layout.schedule != Schedule::OneF1b) {
        return refuse(format!("schedule {}", layout.schedule), "only 1f1b with one chunk a stage is replayed");
    }
    if matches!(layout.recompute, Recompute::Selective(_)) {
        return refuse(format!("recompute {}", layout.recompute), "checkpointing is by whole layers");
    }
    if layout.etp.splits() && layout.ep.splits() {
        return refuse("tensor parallelism inside experts".to_string(), "its exchange is not replayed yet");
    }
    Ok(())
}

/// Ranks that share out experts: those that hold the same ones. Common blocks shard whole experts
/// with the rest.
fn expert_shards(layout: &Layout, blocks: Blocks) -> u64 {
    if layout.ep.splits() || blocks == Blocks::Emitted { layout.edp.get() } else { layout.dense_shards() }
}

fn attention(attention: &Attention, recipe: &Recipe, layout: &Layout) -> Result<AttentionSizes, Unmodelled> {
    if attention.qk_norm == QkNorm::Full && layout.tp.splits() {
        return Err(Unmodelled::new("a norm over all queries over tp", "its sums over ranks are not replayed"));
    }
    let heads = attention.heads;
    let (kv_heads, head_dim, mla) = match &attention.kind {
        AttentionKind::Gqa { kv_heads, head_dim } => (*kv_heads, *head_dim, None),
        AttentionKind::Mla(mla) => (heads, recipe.hidden / heads, Some(mla.clone())),
    };
    let qk_norm = match attention.qk_norm {
        QkNorm::None => None,
        QkNorm::Head => Some(NormOver::Head),
        QkNorm::Full => Some(NormOver::All),
    };
    let (has_gate, has_sinks) = (attention.output_gate, attention.sinks);
    let (qkv_bias, out_bias) = (attention.qkv_bias, attention.out_bias);
    Ok(AttentionSizes { heads, kv_heads, head_dim, qk_norm, qkv_bias, out_bias, has_gate, has_sinks, mla })
}

fn experts(moe: &Moe, layout: &Layout) -> Result<MoeSizes, Unmodelled> {
    let refuse = |what: &str| Err(Unmodelled::new(what, "what it saves is not replayed yet"));
    if moe.latent.is_some() {
        return refuse("a latent space around experts");
    }
    if moe.capacity_factor.is_some() {
        return refuse("a capacity factor");
    }
    let shared = moe.shared.as_ref().filter(|shared| shared.ffn > 0);
    Ok(MoeSizes {
        experts: moe.experts,
        local_experts: moe.experts / layout.ep.get(),
        top_k: moe.top_k,
        feed: Feed { ffn: moe.ffn, function: moe.activation, bias: moe.bias, shift: false },
        shared: shared.map(|s| Feed { ffn: s.ffn, function: s.activation, bias: s.bias, shift: false }),
        gates_shared: shared.is_some_and(|shared| shared.gate),
        has_router_bias: moe.router.bias,
        score: moe.router.score,
        normalizes: moe.router.normalize,
        is_scaled: moe.router.scaling != 1.0,
        has_groups: moe.router.groups > 1,
        has_z_loss: moe.router.z_loss.is_some(),
        has_expert_bias: moe.router.expert_bias,
        has_balance_loss: moe.router.aux_loss.is_some(),
    })
}

fn mamba(recipe: &Recipe, place: &Place) -> Result<Option<Scan>, Unmodelled> {
    let refuse = |what: &str, why: &str| Err(Unmodelled::new(what, why));
    let is_emitted = place.blocks == Blocks::Emitted;
    match &recipe.mamba {
        Some(Mamba::Two(mamba)) => Ok(Some(Scan::Two(mamba.clone()))),
        Some(Mamba::Three(mamba)) if is_emitted && mamba.mimo_rank == 1 => Ok(Some(Scan::Three(mamba.clone()))),
        Some(Mamba::One(_)) if is_emitted && recipe.uses(Mixer::Mamba) => {
            refuse("mamba1", "the emitted program has none")
        }
        Some(Mamba::One(_)) if recipe.uses(Mixer::Mamba) && place.layout.tp.splits() => {
            refuse("mamba1 over tp", "the sums of its selected parts over ranks are not replayed")
        }
        Some(Mamba::One(mamba)) => Ok(Some(Scan::One(mamba.clone()))),
        Some(other) if recipe.uses(Mixer::Mamba) => refuse(other.kind().name(), "its scan is not replayed yet"),
        _ => Ok(None),
    }
}

/// Of each mixer, whether it shares the norm of the one before it.
fn beside(layer: &Layer) -> Vec<bool> {
    layer.blocks.iter().flat_map(|block| (0..block.mixers.len()).map(|at| at > 0)).collect()
}

fn mixers(layer: &Layer, index: usize, place: &Place) -> Result<Vec<Mixer>, Unmodelled> {
    let refuse = |what: &str, why: &str| Err(Unmodelled::new(format!("layer {index}: {what}"), why));
    let mixers: Vec<Mixer> = layer.mixers().collect();
    for mixer in &mixers {
        match mixer {
            Mixer::Recurrent if place.blocks == Blocks::Common => {
                return refuse("a recurrent mixer", "its scan is not replayed yet");
            }
            Mixer::Recurrent if place.layout.tp.splits() => {
                return refuse("a recurrent mixer over tp", "its norm over all heads is not replayed yet");
            }
            Mixer::Attention | Mixer::Moe | Mixer::Mamba | Mixer::Mlp => {}
            Mixer::Recurrent | Mixer::GatedDelta | Mixer::Linear | Mixer::Shared => {}
        }
    }
    Ok(mixers)
}
