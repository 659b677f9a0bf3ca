//! Recipe, layout and options as the sizes rank 0 works with, or by name what is not modelled.

use super::{Job, PipelineEngine};
use layout::{Layout, Recompute, ZeroStage};
use recipe::kinds::attention::{Attention, AttentionKind};
use recipe::kinds::{Activation, Norm, NormPlace};
use recipe::{Dtype, Layer, Mixer, Optimizer, Positions, Recipe};
use replay::Unmodelled;

/// Microbatches beyond the warm-up that are replayed: the steady state repeats itself.
const STEADY: u64 = 4;

/// All sizes of rank 0.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub hidden: u64,
    /// Inner width of a feed-forward block on this rank.
    pub ffn: u64,
    /// Heads of this rank, and the width of them all.
    pub heads: u64,
    pub heads_width: u64,
    /// Width of this rank's keys, or of its values.
    pub kv_width: u64,
    /// Rows of the vocabulary on this rank.
    pub vocab: u64,
    pub is_tied: bool,
    pub tp: u64,
    pub pp: u64,
    pub dp: u64,
    pub shards_optimizer: bool,
    pub micro_batch: u64,
    pub microbatches: u64,
    pub sequence: u64,
    /// Tokens of a microbatch inside tensor-parallel regions.
    pub tokens: u64,
    /// Tokens of a microbatch between them.
    pub local_tokens: u64,
    /// Layers of the first stage.
    pub num_layers: u64,
    pub engine: PipelineEngine,
}

impl Config {
    pub fn new(job: &Job) -> Result<Config, Unmodelled> {
        let Job { recipe, layout, options } = *job;
        refuse_model(recipe)?;
        refuse_layout(layout)?;
        let (heads, kv_heads) = heads(recipe)?;
        let ffn = ffn(recipe)?;
        let tp = layout.tp.get();
        let pp = layout.pp.get();
        Ok(Config {
            hidden: recipe.hidden,
            ffn: ffn / tp,
            heads: heads / tp,
            heads_width: recipe.hidden / tp,
            kv_width: recipe.hidden / heads * (kv_heads / tp),
            vocab: layout.padded_vocab(recipe.vocab) / tp,
            is_tied: recipe.tied,
            tp,
            pp,
            dp: layout.dp.get(),
            shards_optimizer: layout.zero == ZeroStage::One,
            micro_batch: layout.micro_batch,
            microbatches: match options.engine {
                PipelineEngine::OneForwardOneBackward => layout.microbatches.min(pp + STEADY),
                PipelineEngine::AllForwardAllBackward => layout.microbatches,
            },
            sequence: layout.sequence,
            tokens: layout.micro_batch * layout.sequence,
            local_tokens: layout.tokens_per_microbatch_per_rank(),
            num_layers: first_stage(recipe, ffn, pp),
            engine: options.engine,
        })
    }

    /// Whether the first stage is also the last.
    pub fn is_whole(&self) -> bool {
        self.pp == 1
    }
}

fn refuse<T>(what: &str, why: &str) -> Result<T, Unmodelled> {
    Err(Unmodelled::new(what, why))
}

fn refuse_model(recipe: &Recipe) -> Result<(), Unmodelled> {
    let block = Layer::of(&[Mixer::Attention, Mixer::Mlp]);
    if recipe.layers.iter().any(|layer| *layer != block) {
        return refuse("a layer other than attention and an MLP", "only nanotron's dense Llama is replayed");
    }
    if recipe.norm_place != NormPlace::Before || recipe.embedding_norm || recipe.head_bias {
        return refuse(
            "norms behind blocks or of embeddings, or a bias of the head",
            "only nanotron's dense Llama is replayed",
        );
    }
    if recipe.features.mhc().is_some() {
        return refuse("hyper-connections", "only nanotron's dense Llama is replayed");
    }
    if recipe.norm != Norm::RmsNorm || !matches!(recipe.positions, Positions::Rope(_)) {
        return refuse("a norm or positions other than Llama's", "only nanotron's dense Llama is replayed");
    }
    if recipe.precision.weights != Dtype::Bf16 || recipe.precision.gradients != Dtype::Fp32 {
        return refuse("formats other than bf16 with fp32 gradients", "the fp32 accumulator is what is replayed");
    }
    if recipe.tensors().iter().any(|tensor| tensor.optimizer != Optimizer::AdamW) {
        return refuse("optimizers other than AdamW", "their state is not replayed");
    }
    Ok(())
}

fn refuse_layout(layout: &Layout) -> Result<(), Unmodelled> {
    if layout.cp.splits() || layout.ep.splits() {
        return refuse("context or expert parallelism", "the sweep had neither, so they are not replayed");
    }
    if layout.tp.splits() && !layout.sp {
        return refuse("tp in all-reduce mode", "only reduce-scatter mode is replayed");
    }
    if layout.recompute != Recompute::None {
        return refuse("recompute", "nanotron's checkpointed layers are not replayed");
    }
    if layout.zero > ZeroStage::One {
        return refuse("zero above 1", "nanotron shares out optimizer state only");
    }
    Ok(())
}

/// Query heads and KV heads.
fn heads(recipe: &Recipe) -> Result<(u64, u64), Unmodelled> {
    let Some(attention) = recipe.attention() else {
        return refuse("a model without attention", "only nanotron's dense Llama is replayed");
    };
    let heads = attention.heads;
    let kv_heads = match attention.kind {
        AttentionKind::Gqa { kv_heads, .. } => kv_heads,
        AttentionKind::Mla(_) => heads,
    };
    if attention != Attention::gqa(heads, kv_heads, recipe.hidden / heads.max(1)) {
        return refuse("attention other than Llama's", "only nanotron's dense Llama is replayed");
    }
    Ok((heads, kv_heads))
}

fn ffn(recipe: &Recipe) -> Result<u64, Unmodelled> {
    match &recipe.mlp {
        Some(mlp) if mlp.activation == Activation::SwiGlu && !mlp.bias => Ok(mlp.ffn),
        _ => refuse("an MLP other than SwiGLU without biases", "only nanotron's dense Llama is replayed"),
    }
}

/// Layers of the first stage (`models/base.py` build_model with `models/llama.py`
/// get_block_compute_costs): blocks in order, and a stage closes behind the block with which the
/// running cost passes its even share.
fn first_stage(recipe: &Recipe, ffn: u64, pp: u64) -> u64 {
    let hidden = recipe.hidden;
    let layer = u128::from(4 * hidden * hidden + 3 * ffn * hidden);
    let depth = recipe.depth() as u64;
    let total = layer * u128::from(depth) + u128::from(recipe.vocab * hidden);
    let closes = |layers: &u64| u128::from(*layers) * layer * u128::from(pp) > total;
    (1..=depth).find(closes).unwrap_or(depth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use recipe::builtin;

    #[test]
    fn a_stage_closes_behind_the_layer_that_passes_its_share() {
        let recipe = builtin::find("llama3-8b").unwrap();
        let ffn = recipe.mlp.as_ref().unwrap().ffn;
        // The head costs 2.2 layers here, so shares are 34.2 / pp.
        assert_eq!([1, 2, 4, 32].map(|pp| first_stage(&recipe, ffn, pp)), [32, 18, 9, 2]);
    }
}
