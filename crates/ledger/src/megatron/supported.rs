//! What of a recipe and a layout is replayed, as sizes, or by name what is not and why.

use super::config::{AttentionSizes, ChunkLayers, Feed, Indexer, MoeSizes, Recomputed, Suffix};
use super::options::GraphInputs;
use super::{AttentionBackend, Dispatcher, Fp8Recipe, Job, MegatronOptions, Routing};
use layout::order::Pipeline;
use layout::request::RecomputeModule;
use layout::{Layout, Recompute, Schedule, ZeroStage};
use recipe::kinds::attention::{Attention, AttentionKind, QkNorm};
use recipe::kinds::gated_delta::GatedDelta;
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::mamba3::Mamba3;
use recipe::kinds::mlp::Mlp;
use recipe::kinds::moe::Moe;
use recipe::kinds::side::{OwnerStage, SideEmbedding};
use recipe::kinds::{Activation, NormPlace};
use recipe::{Dtype, Layer, Mixer, Optimizer, Recipe};
use replay::Unmodelled;
use replay::tape::{BF16, FP32};

/// What data-parallel ranks share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharding {
    /// Nothing.
    None,
    /// Optimizer state: the distributed optimizer.
    Optimizer,
    /// Optimizer state and gradients: Megatron-FSDP's `optim_grads`.
    Gradients,
    /// Weights too: Megatron-FSDP's `optim_grads_params`.
    Everything,
}

impl Sharding {
    /// Whether Megatron-FSDP wraps the model.
    pub fn is_fsdp(self) -> bool {
        matches!(self, Sharding::Gradients | Sharding::Everything)
    }
}

fn refuse<T>(what: impl Into<String>, why: impl Into<String>) -> Result<T, Unmodelled> {
    Err(Unmodelled::new(what, why))
}

pub(super) fn width(dtype: Dtype, what: &str) -> Result<u64, Unmodelled> {
    match dtype {
        Dtype::Fp32 => Ok(FP32),
        Dtype::Bf16 | Dtype::Fp16 => Ok(BF16),
        other => refuse(format!("{} {what}", other.name()), "Megatron keeps them in fp32 or bf16"),
    }
}

pub(super) fn features(recipe: &Recipe) -> Result<(), Unmodelled> {
    let relu = [recipe.mlp.as_ref().map(|m| m.activation), recipe.moe.as_ref().map(|m| m.activation)];
    let what = [
        (!recipe.norm.is_usual(), "a norm without a scale or a shift", "Megatron-Core has RMSNorm and LayerNorm"),
        (recipe.norm_place != NormPlace::Before, "norms behind blocks", "a Megatron-Core layer has none"),
        (recipe.embedding_norm, "a norm of embeddings", "Megatron-Core has none"),
        (recipe.head_bias, "a bias of the output head", "Megatron-Core's head has none"),
        (recipe.features.mhc().is_some(), "hyper-connections", "Megatron-Core 0.19 has none"),
        (recipe.features.depths().is_some(), "mixture of depths", "Megatron-Core has none"),
        (recipe.features.engram().is_some(), "engram branches", "Megatron-Core has none"),
        (recipe.uses(Mixer::Linear), "linear mixers of other kinds", "Megatron-Core has no such block"),
        (recipe.uses(Mixer::Shared), "shared blocks", "Megatron-Core has no such block"),
        (recipe.gates_latent_heads(), "gates of latent attention's heads", "Megatron-Core has none"),
        (recipe.mlp.as_ref().is_some_and(|m| m.shift), "inputs mixed with the token before", "Megatron-Core has none"),
        (relu.contains(&Some(Activation::Relu)), "plain ReLU", "Megatron-LM has no argument for it"),
    ];
    if let Some((_, what, why)) = what.into_iter().find(|(is_there, ..)| *is_there) {
        return refuse(what, why);
    }
    if recipe.precision.weights != Dtype::Bf16 {
        return refuse("weights other than bf16", "parameter buffers of other formats are not replayed yet");
    }
    if recipe.tensors().iter().any(|tensor| tensor.optimizer == Optimizer::Sgd) {
        return refuse("SGD for a part of the model", "Megatron has SGD for the whole model only");
    }
    Ok(())
}

/// The order in which so many microbatches run.
pub(super) fn order(layout: &Layout, microbatches: u64) -> Result<Pipeline, Unmodelled> {
    let order = Pipeline::new(layout.schedule, layout.pp.get(), layout.vpp.get(), microbatches);
    order.map_err(|finding| Unmodelled::new(format!("schedule {}", layout.schedule), finding.message))
}

/// ZeRO 2 and 3 are Megatron-FSDP there, another wrapper with buffers and hooks of its own.
pub(super) fn sharding(recipe: &Recipe, layout: &Layout) -> Result<Sharding, Unmodelled> {
    match layout.zero {
        ZeroStage::Zero => Ok(Sharding::None),
        ZeroStage::One => Ok(Sharding::Optimizer),
        ZeroStage::Two => fsdp(recipe, layout).map(|()| Sharding::Gradients),
        ZeroStage::Three => fsdp(recipe, layout).map(|()| Sharding::Everything),
    }
}

/// What Megatron-FSDP refuses itself, and what is not replayed of it.
fn fsdp(recipe: &Recipe, layout: &Layout) -> Result<(), Unmodelled> {
    let what = format!("zero {} under Megatron-Core", layout.zero);
    if recipe.tensors().iter().any(|tensor| tensor.optimizer == Optimizer::Muon) {
        let why = "Megatron refuses it with Muon: `Emerging optimizer does not support Megatron-FSDP for now.`";
        return refuse(what, why);
    }
    if !matches!(layout.schedule, Schedule::OneF1b | Schedule::Interleaved) {
        return refuse(
            format!("{what} with {}", layout.schedule),
            "its hooks are not replayed around a split backward",
        );
    }
    Ok(())
}

/// What `--fp8-param-gather` needs (`megatron/training/arguments.py`,
/// `megatron/core/transformer/transformer_config.py`), and what is not replayed of it.
pub(super) fn quantized_weights(
    recipe: &Recipe,
    layout: &Layout,
    options: &MegatronOptions,
) -> Result<Option<Fp8Recipe>, Unmodelled> {
    if !options.fp8_param_gather {
        return Ok(None);
    }
    let what = "fp8 parameter gather";
    if options.fp8.is_none() {
        return refuse(what, "Megatron refuses it: `fp8_param must be used together with fp8 mode.`");
    }
    match layout.zero {
        ZeroStage::Zero => return refuse(what, "Megatron has it with the distributed optimizer only"),
        ZeroStage::One => {}
        ZeroStage::Two | ZeroStage::Three => {
            return refuse(what, "Megatron-FSDP's buffers of fp8 weights are not replayed");
        }
    }
    if recipe.tensors().iter().any(|tensor| tensor.optimizer == Optimizer::Muon) {
        return refuse(what, "fp8 weights under Muon are not replayed");
    }
    Ok(options.fp8)
}

/// What `--use-precision-aware-optimizer` needs (`megatron/core/optimizer/optimizer_config.py`), and
/// what is not replayed of attention's kernels.
pub(super) fn options(recipe: &Recipe, layout: &Layout, options: &MegatronOptions) -> Result<(), Unmodelled> {
    if let Some(formats) = options.precision_aware {
        let what = "a precision-aware optimizer";
        if recipe.tensors().iter().any(|tensor| tensor.optimizer == Optimizer::Muon) {
            return refuse(what, "Megatron has it with Adam only");
        }
        if layout.zero != ZeroStage::One {
            return refuse(what, "Megatron has it with the distributed optimizer only");
        }
        if options.fp8.is_some_and(|fp8| fp8 != Fp8Recipe::Delayed) {
            return refuse(what, "under this fp8 recipe Megatron keeps main weights itself, which is not replayed");
        }
        if formats.main_gradients != Dtype::Fp32 && options.gradients == Dtype::Fp32 {
            let why = "Megatron reads main gradients where they lie, and refuses it over fp32 gradients";
            return refuse(format!("{} main gradients", formats.main_gradients.name()), why);
        }
        if !matches!(formats.main_weights, Dtype::Fp32 | Dtype::Fp16) {
            let why = "Transformer Engine keeps main weights in fp32 or fp16";
            return refuse(format!("{} main weights", formats.main_weights.name()), why);
        }
    }
    match options.dispatcher {
        Dispatcher::DeepEp => flex("DeepEP", layout, options)?,
        Dispatcher::HybridEp => flex("HybridEP", layout, options)?,
        Dispatcher::AllToAll | Dispatcher::AllGather => {}
    }
    if options.expert_fusion {
        expert_fusion(recipe, layout, options)?;
    }
    if options.graphs != GraphInputs::None && layout.recompute != Recompute::None {
        return refuse("captured graphs beside recompute", "what a graph computes again in its pool is not replayed");
    }
    if options.rope_fusion && recipe.is_latent() {
        return refuse("fused rotation of latent attention", "Megatron has it for yarn only, which is not replayed");
    }
    if options.documents.is_some() {
        documents(recipe)?;
    }
    match options.attention {
        AttentionBackend::Fused => Ok(()),
        AttentionBackend::Flash => refuse("FlashAttention", "what its kernels keep is not replayed yet"),
        AttentionBackend::Unfused => refuse("unfused attention", "its score matrices are not replayed yet"),
    }
}

/// What is not replayed of either backend of the flex dispatcher.
fn flex(backend: &str, layout: &Layout, options: &MegatronOptions) -> Result<(), Unmodelled> {
    if options.capacity_factor.is_some() {
        return refuse(format!("experts of a fixed capacity over {backend}"), "it is replayed dropless");
    }
    match layout.etp.get() {
        1 => Ok(()),
        _ => refuse(format!("experts cut over etp with {backend}"), "what its repeated choices hold is not replayed"),
    }
}

/// The op fuser is replayed where its fused kernels run: elsewhere Megatron refuses it, or Transformer Engine runs the
/// same operations one by one (`case::unmet` says so in the engines' words).
fn expert_fusion(recipe: &Recipe, layout: &Layout, options: &MegatronOptions) -> Result<(), Unmodelled> {
    let what = |place: &str| format!("Transformer Engine's op fuser {place}");
    let Some(moe) = &recipe.moe else {
        return refuse(what("in dense blocks"), "what its fused dense blocks keep is not replayed");
    };
    let why = "its operations then run one by one, and what those keep is not replayed";
    if options.fp8 != Some(Fp8Recipe::Mxfp8) {
        return refuse(what("without mxfp8"), why);
    }
    if !matches!(moe.activation, Activation::SwiGlu | Activation::SwiGluOai) {
        return refuse(
            what(&format!("around {}", moe.activation.name())),
            "Transformer Engine 2.16 has no such kernel",
        );
    }
    if layout.etp.splits() {
        return refuse(what("over etp"), "Megatron refuses it");
    }
    if matches!(&layout.recompute, Recompute::Selective(all) if all.contains(&RecomputeModule::MoeAct)) {
        return refuse(
            what("beside recompute of moe_act"),
            "Transformer Engine 2.16 keeps the activation all the same",
        );
    }
    match layout.zero {
        ZeroStage::Zero | ZeroStage::One => Ok(()),
        ZeroStage::Two | ZeroStage::Three => {
            refuse(what("under Megatron-FSDP"), "its hooks are called in another order, which is not replayed")
        }
    }
}

/// Packed sequences are replayed through cuDNN's kernel over grouped queries, and blocks that see tokens one by one.
fn documents(recipe: &Recipe) -> Result<(), Unmodelled> {
    let knows = |mixer: Mixer| matches!(mixer, Mixer::Attention | Mixer::Mlp | Mixer::Moe);
    let is_known = recipe.layers.iter().flat_map(|layer| layer.mixers()).all(knows);
    if !is_known {
        return refuse("documents under scans", "what a scan keeps of each document is not replayed");
    }
    if recipe.is_latent() || recipe.features.dsa().is_some() || recipe.features.mtp().is_some() {
        let what = "documents under latent or sparse attention or prediction heads";
        return refuse(what, "their packed paths are not replayed");
    }
    Ok(())
}

pub(super) fn attention(attention: &Attention, recipe: &Recipe) -> Result<AttentionSizes, Unmodelled> {
    let why = "what it saves is not replayed yet";
    if attention.sinks && recipe.is_latent() {
        return refuse("sinks of latent attention", why);
    }
    if attention.qk_norm == QkNorm::Full {
        return refuse("a norm over all queries", "Megatron-Core normalises head by head");
    }
    let heads = attention.heads;
    let base = AttentionSizes {
        heads,
        kv_heads: heads,
        // Without `--kv-channels` Megatron takes hidden / heads for what latent attention replaces.
        head_dim: recipe.hidden / heads,
        qk_norm: false,
        has_in_bias: attention.qkv_bias,
        has_out_bias: attention.out_bias,
        has_sinks: attention.sinks,
        has_gate: attention.output_gate,
        mla: None,
    };
    match &attention.kind {
        AttentionKind::Gqa { kv_heads, head_dim } => Ok(AttentionSizes {
            kv_heads: *kv_heads,
            head_dim: *head_dim,
            qk_norm: attention.qk_norm == QkNorm::Head,
            ..base
        }),
        AttentionKind::Mla(mla) if mla.bias => refuse("latent biases", why),
        AttentionKind::Mla(mla) => Ok(AttentionSizes { mla: Some(mla.clone()), ..base }),
    }
}

pub(super) fn mlp(mlp: &Mlp) -> Result<Feed, Unmodelled> {
    if mlp.bias && matches!(mlp.activation, Activation::Relu2 | Activation::Silu) {
        let what = format!("biases in front of {}", mlp.activation.name());
        return refuse(what, "Megatron fuses a bias with GELU, GeGLU and SwiGLU only");
    }
    Ok(Feed { ffn: mlp.ffn, activation: mlp.activation, has_bias: mlp.bias })
}

pub(super) fn experts(moe: &Moe, layout: &Layout, options: &MegatronOptions) -> Result<MoeSizes, Unmodelled> {
    let why = "what it saves is not replayed yet";
    if moe.latent_bias || moe.shared.as_ref().is_some_and(|shared| shared.bias) {
        return refuse("biases of shared or latent experts", why);
    }
    let gated = matches!(moe.activation, Activation::SwiGlu | Activation::SwiGluOai);
    if moe.bias && !gated {
        return refuse(format!("biases of experts with {}", moe.activation.name()), why);
    }
    let feed = |ffn, activation, has_bias| Feed { ffn, activation, has_bias };
    Ok(MoeSizes {
        experts: moe.experts,
        top_k: moe.top_k,
        feed: feed(moe.ffn, moe.activation, moe.bias),
        shared: moe.shared.as_ref().map(|shared| feed(shared.ffn, shared.activation, false)),
        gates_shared: moe.shared.as_ref().is_some_and(|shared| shared.gate),
        latent: moe.latent,
        local_experts: moe.experts / layout.ep.get(),
        score: moe.router.score,
        has_router_bias: moe.router.bias,
        has_expert_bias: moe.router.expert_bias,
        has_balance_loss: moe.router.aux_loss.is_some(),
        score_width: width(options.router, "routing scores")?,
        capacity_factor: options.capacity_factor,
        dispatcher: options.dispatcher,
        routing: match options.routing {
            Routing::Overloaded { factor } => {
                Routing::Overloaded { factor: factor.min(moe.most_overload(layout.ep.get())) }
            }
            routing => routing,
        },
        own_buffers: layout.ep.splits() || layout.etp != layout.tp,
    })
}

pub(super) fn mamba2(recipe: &Recipe) -> Result<Option<Mamba2>, Unmodelled> {
    match &recipe.mamba {
        Some(Mamba::Two(mamba)) if mamba.conv == 0 => {
            refuse("Mamba-2 without a convolution", "Megatron's mixer has one, and a custom mixer is not replayed")
        }
        Some(Mamba::Two(mamba)) if mamba.in_bias || mamba.out_bias || !mamba.conv_bias || !mamba.gated_norm => {
            refuse("Mamba-2 with other biases or without its gated norm", "Megatron's mixer is built one way only")
        }
        Some(Mamba::Two(mamba)) => Ok(Some(mamba.clone())),
        Some(Mamba::One(_)) if recipe.uses(Mixer::Mamba) => {
            refuse("mamba1", "Megatron-Core's `M` is Mamba-2, and no custom mixer keeps Mamba-1")
        }
        _ => Ok(None),
    }
}

/// Custom mixers see whole sequences and whole heads.
fn refuse_split(what: &str, layout: &Layout) -> Result<(), Unmodelled> {
    if layout.tp.splits() || layout.cp.splits() {
        return refuse(format!("{what} over tp or cp"), "the custom mixer runs on one rank a replica");
    }
    Ok(())
}

pub(super) fn mamba3(recipe: &Recipe, layout: &Layout) -> Result<Option<Mamba3>, Unmodelled> {
    match &recipe.mamba {
        Some(Mamba::Three(mamba)) if recipe.uses(Mixer::Mamba) => {
            if layout.cp.splits() {
                return refuse("mamba3 over cp", "the mixer does not hand its state over context ranks");
            }
            if mamba.mimo_rank > 1 {
                return refuse("mamba3 with several inputs a head", "the mixer runs the kernels of one input a head");
            }
            Ok(Some(mamba.clone()))
        }
        _ => Ok(None),
    }
}

pub(super) fn recurrent(recipe: &Recipe, layout: &Layout) -> Result<Option<M2rnn>, Unmodelled> {
    let used = recipe.recurrent.as_ref().filter(|_| recipe.uses(Mixer::Recurrent));
    used.map(|mixer| refuse_split("m2rnn", layout).map(|()| mixer.clone())).transpose()
}

pub(super) fn gated_delta(recipe: &Recipe, layout: &Layout) -> Result<Option<GatedDelta>, Unmodelled> {
    let used = recipe.gated_delta.as_ref().filter(|_| recipe.uses(Mixer::GatedDelta));
    if used.is_some() && layout.cp.splits() {
        return refuse("a gated delta net over cp", "its all-to-all over heads is not replayed yet");
    }
    Ok(used.cloned())
}

pub(super) fn sides(recipe: &Recipe) -> Result<Vec<SideEmbedding>, Unmodelled> {
    let sides: Vec<_> = recipe.features.sides().map(|(_, side)| side.clone()).collect();
    if sides.iter().any(|side| side.stage == OwnerStage::Last) {
        return refuse(
            "side embeddings on the last stage",
            "the stack keeps the final norm to itself, and nothing can be added before it",
        );
    }
    Ok(sides)
}

pub(super) fn suffix(recipe: &Recipe) -> Result<Option<Suffix>, Unmodelled> {
    let Some(mtp) = recipe.features.mtp() else { return Ok(None) };
    let mixers = mixers(&mtp.layer, "the prediction suffix")?;
    Ok(Some(Suffix { depth: mtp.depth as u32, shared: mtp.shared, mixers }))
}

pub(super) fn indexer(recipe: &Recipe, layout: &Layout) -> Result<Option<Indexer>, Unmodelled> {
    // Layers without attention are weighed by themselves, too.
    let Some(dsa) = recipe.features.dsa().filter(|_| recipe.uses(Mixer::Attention)) else { return Ok(None) };
    if !recipe.is_latent() {
        return refuse("sparse attention without latents", "Megatron-Core's indexer stands on latent attention only");
    }
    let holders = recipe.layers_with(Mixer::Attention);
    let of = |is: &dyn Fn(u64) -> bool| -> Vec<u32> {
        let held = holders.iter().zip(0u64..).filter(|(_, ordinal)| is(*ordinal));
        held.map(|(&layer, _)| layer as u32).collect()
    };
    let sparse = of(&|ordinal| dsa.covers(ordinal));
    // One way of context parallelism for all layers, and sparse ones gather.
    let predicts = recipe.features.mtp().is_some_and(|mtp| mtp.layer.mixers().any(|mixer| mixer == Mixer::Attention));
    let has_dense = sparse.len() < holders.len() || predicts;
    if layout.cp.splits() && has_dense {
        return refuse("dense attention beside sparse over cp", "keys that dense layers gather are not replayed yet");
    }
    let layers = of(&|ordinal| dsa.indexes(ordinal));
    let is_shared = !dsa.reuse.is_empty();
    Ok(Some(Indexer { heads: dsa.heads, head_dim: dsa.head_dim, top_k: dsa.top_k, sparse, layers, is_shared }))
}

pub(super) fn recomputed(recompute: &Recompute) -> Result<Recomputed, Unmodelled> {
    let modules = match recompute {
        Recompute::Selective(modules) => modules.clone(),
        _ => Vec::new(),
    };
    if modules.contains(&RecomputeModule::GdnNormOut) {
        return refuse("recompute of gdn_norm_out", "its checkpoint inside gated delta nets is not replayed yet");
    }
    Ok(Recomputed { whole_layers: *recompute == Recompute::Full, modules })
}

pub(super) fn chunks(job: &Job, stage: usize) -> Result<Vec<ChunkLayers>, Unmodelled> {
    let last = job.stages.chunks.len() - 1;
    let held = job.stages.by_stage[stage].iter().map(|&index| &job.stages.chunks[index]);
    // Transformer layers throughout make a GPT; with any other the stack is hybrid, and its layers one block each
    // (`launch/src/engines/megatron/depth.rs`).
    let is_transformer = |layer: &Layer| {
        matches!(layer.mixers().collect::<Vec<_>>()[..], [_] | [Mixer::Attention, Mixer::Mlp | Mixer::Moe])
    };
    let is_flat = !job.recipe.layers.iter().all(is_transformer);
    held.map(|chunk| {
        let of = |index: usize| {
            let mixers = mixers(&job.recipe.layers[index], &format!("layer {index}"))?;
            let parts = if is_flat { mixers.into_iter().map(|mixer| vec![mixer]).collect() } else { vec![mixers] };
            Ok(parts.into_iter().map(move |mixers| (index as u32, mixers)))
        };
        let layers = chunk.layers.clone().map(of).collect::<Result<Vec<_>, Unmodelled>>()?;
        Ok(ChunkLayers {
            layers: layers.into_iter().flatten().collect(),
            is_first: chunk.index == 0,
            is_last: chunk.index == last,
        })
    })
    .collect()
}

/// The mixers of a layer, one behind the other.
fn mixers(layer: &Layer, place: &str) -> Result<Vec<Mixer>, Unmodelled> {
    if layer.blocks.iter().any(|block| block.mixers.len() > 1) {
        return refuse(format!("{place}: parallel mixers"), "Megatron-Core has no such block");
    }
    Ok(layer.mixers().collect())
}
