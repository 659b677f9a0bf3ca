//! What the model is, in Megatron's flags. Everything is said, defaults included, so that another
//! version's defaults cannot change the model.

use super::super::list::{List, number};
use super::{Shape, replaced, unsayable};
use crate::emission::Kind;
use crate::job::Job;
use case::SparseKernels;
use diag::Finding;
use recipe::kinds::attention::{AttentionKind, QkNorm};
use recipe::kinds::dsa::Dsa;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::mla::Mla;
use recipe::kinds::moe::{BalanceOver, GroupScore, Moe, ScoreFunction};
use recipe::kinds::{Activation, Norm};
use recipe::{Dtype, Mixer, Positions, Recipe, Rope, Scaling, Yarn};

const NATIVE: Kind = Kind::RecipeNative;

/// Adds the model.
pub fn arguments(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let recipe = job.recipe;
    list.set(NATIVE, "--hidden-size", recipe.hidden, "recipe.hidden", "width of the residual stream");
    widths(job, list, findings);
    attention(job, list, findings);
    positions(job, list, findings);
    biases(recipe, list, findings);
    if recipe.uses(Mixer::Moe)
        && let Some(moe) = &recipe.moe
    {
        experts(job, moe, list, findings);
    }
    if recipe.uses(Mixer::Mamba) || recipe.uses(Mixer::Recurrent) {
        mamba(job, list, findings);
    }
    if recipe.uses(Mixer::GatedDelta) {
        gated_delta(recipe, list);
    }
    if let Some(dsa) = recipe.features.dsa() {
        let why = "sparse attention where the pattern has `D`";
        list.set(NATIVE, "--dsa-indexer-n-heads", dsa.heads, "features.dsa.heads", why);
        list.set(NATIVE, "--dsa-indexer-head-dim", dsa.head_dim, "features.dsa.head_dim", why);
        list.set(NATIVE, "--dsa-indexer-topk", dsa.top_k, "features.dsa.top_k", why);
        // `dsa.py` trains no indexer without it; the figure is that of NAM56R's authors (cppmega, `recipes/megatron_args.py`).
        let why = "what the indexer's own loss weighs; the default is none, which trains no indexer";
        list.set(Kind::Policy, "--dsa-indexer-loss-coeff", "0.001", "features.dsa", why);
        if case::sparse_kernels(recipe, job.layout, &job.case.options) != SparseKernels::Eager {
            let why =
                "the indexer's loss over chosen tokens alone: over all tokens Megatron runs it by single operations";
            list.switch(Kind::Policy, "--dsa-indexer-use-sparse-loss", "features.dsa", why);
        }
        shared_choices(recipe, dsa, list, findings);
    }
    vocabulary(job, list);
}

/// Layers that read another's choice, by a frequency over blocks (`dsa.py`, `is_dsa_skip_topk_layer`): sparse attention
/// is emitted as a hybrid stack, whose layers are blocks, counted from one.
fn shared_choices(recipe: &Recipe, dsa: &Dsa, list: &mut List, findings: &mut Vec<Finding>) {
    if dsa.reuse.is_empty() {
        return;
    }
    let blocks = recipe.layers.iter().flat_map(|layer| &layer.blocks).zip(1u64..);
    let attends = blocks.filter(|(block, _)| block.mixers.contains(&Mixer::Attention)).zip(0u64..);
    let sparse: Vec<(u64, bool)> =
        attends.filter(|(_, o)| dsa.covers(*o)).map(|((_, at), o)| (at, dsa.indexes(o))).collect();
    let says_it = |frequency: u64, offset: u64| {
        let mut last = 0;
        sparse.iter().all(|(at, indexes)| {
            let behind = at.saturating_sub(offset) % frequency;
            last = if *indexes { *at } else { last };
            *indexes == (behind == 0) && at - behind == last
        })
    };
    let depth = sparse.last().map_or(0, |(at, _)| *at);
    let offsets = sparse.iter().filter(|(_, indexes)| *indexes).map(|(at, _)| *at);
    let found =
        offsets.flat_map(|offset| (2..=depth).map(move |n| (n, offset))).find(|(n, offset)| says_it(*n, *offset));
    let Some((frequency, offset)) = found else {
        let message = "sparse layers read a choice by one frequency over all blocks, and no frequency says these";
        return findings.push(unsayable("features.dsa.reuse", message));
    };
    let why = "every so many blocks an indexer; sparse layers between read its choice";
    list.set(NATIVE, "--dsa-indexer-topk-freq", frequency, "features.dsa.reuse", why);
    list.set(NATIVE, "--dsa-indexer-skip-topk-offset", offset, "features.dsa.reuse", "the block to count from");
}

fn widths(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let recipe = job.recipe;
    let norm = if recipe.norm == Norm::RmsNorm { "RMSNorm" } else { "LayerNorm" };
    list.set(NATIVE, "--normalization", norm, "recipe.norm", "the default is LayerNorm");
    list.set(NATIVE, "--norm-epsilon", float(recipe.norm_eps), "recipe.norm_eps", "the default is 1e-5");
    if let Some(std) = recipe.init_std {
        list.set(NATIVE, "--init-method-std", float(std), "recipe.init_std", "deviation of fresh weights");
    }
    list.set(NATIVE, "--hidden-dropout", float(recipe.dropout), "recipe.dropout", "the default is 0.1");
    let dropped = recipe.attention.as_ref().map_or(0.0, |a| a.dropout);
    list.set(NATIVE, "--attention-dropout", float(dropped), "attention.dropout", "the default is 0.1");
    if let Some(mlp) = &recipe.mlp {
        list.set(NATIVE, "--ffn-hidden-size", mlp.ffn, "mlp.ffn", "inner width of dense blocks");
    }
    let routed = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe)).map(|m| m.activation);
    let dense = recipe.mlp.as_ref().filter(|_| recipe.uses(Mixer::Mlp)).map(|m| m.activation);
    match routed.or(dense) {
        Some(Activation::SwiGlu) => list.switch(NATIVE, "--swiglu", "activation", "one activation for the whole model"),
        Some(Activation::Relu2) => {
            list.switch(NATIVE, "--squared-relu", "activation", "one activation for the whole model");
        }
        Some(Activation::SwiGluOai) => {
            let why = "gpt-oss' unit: quick GELU, one added to the other half, both clamped";
            list.switch(NATIVE, "--quick-geglu", "activation", why);
            list.set(NATIVE, "--glu-linear-offset", "1.0", "activation", why);
            list.set(NATIVE, "--activation-func-clamp-value", "7.0", "activation", why);
        }
        Some(Activation::Gelu) | None => {}
        Some(other @ (Activation::GeGlu | Activation::Silu | Activation::Relu)) => {
            findings.push(unsayable("activation", format!("no flag makes the activation `{other}`")));
        }
    }
}

/// The flags of attention. A model without attention still has to say a number of heads
/// (`training/arguments.py`), which nothing then uses.
fn attention(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let recipe = job.recipe;
    let Some(attention) = recipe.attention().filter(|_| recipe.uses(Mixer::Attention)) else {
        let heads = job.layout.tp.get();
        let why = "the engine asks for heads even where no block attends";
        list.set(Kind::Policy, "--num-attention-heads", heads, "layout.tp", why);
        return;
    };
    list.set(NATIVE, "--num-attention-heads", attention.heads, "attention.heads", "query heads");
    match &attention.kind {
        AttentionKind::Gqa { kv_heads, head_dim } => {
            if *kv_heads != attention.heads {
                let why = "without it the groups are ignored";
                list.switch(NATIVE, "--group-query-attention", "attention.kv_heads", why);
                list.set(NATIVE, "--num-query-groups", kv_heads, "attention.kv_heads", "key/value heads");
            }
            list.set(NATIVE, "--kv-channels", head_dim, "attention.head_dim", "width of a head");
            if attention.qk_norm == QkNorm::Head {
                let why = "queries and keys are normalised head by head";
                list.switch(NATIVE, "--qk-layernorm", "attention.qk_norm", why);
            }
        }
        AttentionKind::Mla(mla) => latent(recipe, mla, list, findings),
    }
    if attention.sinks {
        list.set(
            NATIVE,
            "--softmax-type",
            "learnable",
            "attention.sinks",
            "a learned logit a head that keys share with",
        );
    }
    if attention.output_gate {
        list.switch(NATIVE, "--attention-output-gate", "attention.output_gate", "a gate multiplies the output");
    }
    if let Some(window) = &attention.window {
        super::window::arguments(job, window, list, findings);
    }
}

fn latent(recipe: &Recipe, mla: &Mla, list: &mut List, findings: &mut Vec<Finding>) {
    let from = if recipe.features.mla.as_ref().is_some_and(|s| s.on) { "features.mla" } else { "attention" };
    list.switch(NATIVE, "--multi-latent-attention", from, "latent attention on every attention block");
    if let Some(rank) = mla.q_rank {
        list.set(NATIVE, "--q-lora-rank", rank, &format!("{from}.q_rank"), "rank of the query latent");
    }
    let why = "the default is another width";
    list.set(NATIVE, "--kv-lora-rank", mla.kv_rank, &format!("{from}.kv_rank"), "the default is 32");
    list.set(NATIVE, "--qk-head-dim", mla.qk_dim, &format!("{from}.qk_dim"), why);
    list.set(NATIVE, "--qk-pos-emb-head-dim", mla.rope_dim, &format!("{from}.rope_dim"), why);
    list.set(NATIVE, "--v-head-dim", mla.v_dim, &format!("{from}.v_dim"), why);
    if mla.latent_norm && mla.q_rank.is_none() {
        // core/transformer/mla_qk_norm_config.py: the query norm is then fused with `linear_q_proj`, as wide as hidden; and
        // an explicit norm of the latent is refused without the flag.
        let message = "`--qk-layernorm` norms the key/value latent, and the hidden state before queries, which have no \
                       latent here, as well; without it Megatron-Core says \"qk_layernorm/qk_l2_norm are supposed to be \
                       disabled\"";
        let hint =
            "--engine fsdp2 has the latent's norm alone; with `latent_norm = false` in [attention] it is another model";
        findings.push(unsayable("attention.latent_norm", message).hint(hint));
    }
    if mla.latent_norm {
        list.switch(NATIVE, "--qk-layernorm", &format!("{from}.latent_norm"), "the latents are normalised");
    }
    let yarn = recipe.positions.rope().and_then(|rope| yarn(rope, findings));
    let kind = if yarn.is_some() { "yarn" } else { "rope" };
    list.set(NATIVE, "--rope-type", kind, "rope.scaling.kind", "latent attention defaults to yarn");
    if let Some(yarn) = yarn {
        let why = "YaRN of latent attention";
        list.set(NATIVE, "--rotary-scaling-factor", float(yarn.factor), "rope.scaling.factor", why);
        // `_yarn_get_concentration_factor`: one and zero are what a config without them means.
        let (mscale, all) = (yarn.mscale.unwrap_or(1.0), yarn.mscale_all_dim.unwrap_or(0.0));
        list.set(NATIVE, "--mscale", float(mscale), "rope.scaling.mscale", why);
        list.set(NATIVE, "--mscale-all-dim", float(all), "rope.scaling.mscale_all_dim", why);
    }
}

/// YaRN as latent attention can be told it: `MLATransformerConfig` fixes the rest.
fn yarn(rope: &Rope, findings: &mut Vec<Finding>) -> Option<Yarn> {
    let Some(Scaling::Yarn(yarn)) = rope.scaling else { return None };
    let usual = Yarn::usual(yarn.factor, MLA_ORIGINAL);
    let told = Yarn { mscale: usual.mscale, mscale_all_dim: usual.mscale_all_dim, ..yarn };
    let one_alone = yarn.mscale.is_some() != yarn.mscale_all_dim.is_some();
    if told != usual || one_alone || yarn.factor == 1.0 {
        let message = format!(
            "latent attention has YaRN over {MLA_ORIGINAL} with betas 32 and 1 and both mscales, and the recipe another"
        );
        findings.push(unsayable("rope.scaling", message));
    }
    Some(yarn)
}

/// `original_max_position_embeddings` of `MLATransformerConfig`, which no flag changes.
const MLA_ORIGINAL: u64 = 4096;

/// A number with a point or an exponent, as argparse reads it back to the same value.
fn float(x: f64) -> String {
    format!("{x:?}")
}

fn positions(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let sequence = job.layout.sequence;
    let (kind, most) = match job.recipe.positions {
        Positions::Rope(rope) if has_yarn(job, &rope) => ("yarn", sequence),
        Positions::Rope(_) => ("rope", sequence),
        Positions::Learned { count } => ("learned_absolute", count.max(sequence)),
        Positions::None => ("none", sequence),
    };
    let why = "the default is learned_absolute";
    list.set(NATIVE, "--position-embedding-type", kind, "recipe.positions", why);
    if let Some(rope) = job.recipe.positions.rope() {
        let theta = rope.theta;
        if theta.fract() != 0.0 {
            findings.push(unsayable("rope_theta", format!("--rotary-base is a whole number, and theta is {theta}")));
        }
        list.set(NATIVE, "--rotary-base", number(theta), "recipe.rope_theta", "the default is 10000");
        let why = "share of a head that turns";
        list.set(NATIVE, "--rotary-percent", float(rope.fraction), "rope.fraction", why);
        if !job.recipe.is_latent() {
            scaling(job, rope, list, findings);
        }
    }
    list.set(NATIVE, "--max-position-embeddings", most, "recipe.positions", "at least the sequence");
}

/// Whether rotary frequencies are scaled as YaRN's outside latent attention, which `GPTModel` alone reads.
fn has_yarn(job: &Job, rope: &Rope) -> bool {
    let is_yarn = matches!(rope.scaling, Some(Scaling::Yarn(yarn)) if yarn.attention_factor.is_none());
    is_yarn && !job.recipe.is_latent() && Shape::of(job) == Shape::Gpt
}

/// Scaled frequencies of grouped-query attention. `--use-rope-scaling` has Llama 3.1's borders
/// (`rotary_pos_embedding.py`); it and YaRN's flags (`training/argument_utils.py`) are read by `GPTModel` only.
fn scaling(job: &Job, rope: &Rope, list: &mut List, findings: &mut Vec<Finding>) {
    match rope.scaling {
        None => {}
        Some(Scaling::Llama3 { factor, low: 1.0, high: 4.0, original: 8192 }) if Shape::of(job) == Shape::Gpt => {
            let why = "frequencies as Llama 3.1 scales them";
            list.switch(NATIVE, "--use-rope-scaling", "rope.scaling.kind", why);
            list.set(NATIVE, "--rope-scaling-factor", float(factor), "rope.scaling.factor", why);
        }
        Some(Scaling::Yarn(yarn)) if has_yarn(job, rope) => {
            let why = "YaRN as the recipe has it";
            let mut set = |flag, value: String, field: &str| {
                list.set(NATIVE, flag, value, &format!("rope.scaling.{field}"), why);
            };
            set("--rotary-scaling-factor", float(yarn.factor), "factor");
            set("--yarn-original-max-position-embeddings", yarn.original.to_string(), "original");
            set("--yarn-beta-fast", float(yarn.beta_fast), "beta_fast");
            set("--yarn-beta-slow", float(yarn.beta_slow), "beta_slow");
            set("--mscale", float(yarn.mscale.unwrap_or(1.0)), "mscale");
            set("--mscale-all-dim", float(yarn.mscale_all_dim.unwrap_or(0.0)), "mscale_all_dim");
            let rounds = if yarn.rounds { "--yarn-correction-range-round-to-int" } else { NOT_ROUNDED };
            list.switch(NATIVE, rounds, "rope.scaling.rounds", why);
        }
        Some(Scaling::Linear { factor }) if factor.fract() == 0.0 && factor >= 1.0 => {
            let flag = "--rotary-seq-len-interpolation-factor";
            list.set(NATIVE, flag, number(factor), "rope.scaling.factor", "positions divided");
        }
        Some(other) => {
            let message = format!("no flags say this `{}` scaling of rotary frequencies here", other.kind());
            findings.push(unsayable("rope.scaling", message));
        }
    }
}

const NOT_ROUNDED: &str = "--no-yarn-correction-range-round-to-int";

/// Biases are the whole model's, but for the projections into heads.
fn biases(recipe: &Recipe, list: &mut List, findings: &mut Vec<Finding>) {
    let attention = recipe.attention().filter(|_| recipe.uses(Mixer::Attention));
    let mlp = recipe.mlp.as_ref().filter(|_| recipe.uses(Mixer::Mlp)).map(|m| m.bias);
    let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
    let out = attention.as_ref().map(|a| match &a.kind {
        AttentionKind::Gqa { .. } => a.out_bias,
        AttentionKind::Mla(mla) => mla.bias,
    });
    let said: Vec<bool> = [out, mlp, moe.map(|m| m.bias), moe.map(|m| m.router.bias)].into_iter().flatten().collect();
    let qkv = attention.as_ref().is_some_and(|a| a.qkv_bias);
    let any = said.iter().any(|b| *b);
    if any && !said.iter().all(|b| *b) {
        let message = "linear biases are on for the whole model or for none of it, and the recipe mixes them";
        findings.push(unsayable("bias", message));
    }
    if !any {
        list.switch(NATIVE, "--disable-bias-linear", "bias", "the default adds biases");
    } else if moe.is_some() {
        let why = "Megatron refuses it with biases of experts (`moe/experts.py`)";
        list.switch(NATIVE, "--no-bias-dropout-fusion", "moe.bias", why);
    }
    match (qkv, any) {
        (true, false) => list.switch(NATIVE, "--add-qkv-bias", "attention.qkv_bias", "biases into heads alone"),
        (false, true) if attention.is_some() => {
            findings.push(unsayable("attention.qkv_bias", "biases everywhere but into heads have no flag"));
        }
        _ => {}
    }
}

/// Columns of a block in which gates and linear halves of fused experts take turns (Transformer Engine,
/// `ops/_common.py`: "Fused kernel requires 32-wide GLU interleaving").
pub const GLU_BLOCK: u64 = 32;

/// Whether Transformer Engine's op fuser runs the experts.
pub fn fuses_experts(job: &Job) -> bool {
    job.case.options.kernels.expert_fusion && job.recipe.uses(Mixer::Moe)
}

fn experts(job: &Job, moe: &Moe, list: &mut List, findings: &mut Vec<Finding>) {
    list.set(NATIVE, "--num-experts", moe.experts, "moe.experts", "routed experts a layer");
    list.set(NATIVE, "--moe-router-topk", moe.top_k, "moe.top_k", "the default is 2");
    list.set(NATIVE, "--moe-ffn-hidden-size", moe.ffn, "moe.ffn", "the default is the dense width");
    list.switch(Kind::Policy, "--moe-grouped-gemm", "moe.experts", "local experts in one grouped product");
    if let Some(shared) = &moe.shared {
        let flag = "--moe-shared-expert-intermediate-size";
        let kind = replaced(job, "shared-expert-activation");
        list.set(kind, flag, shared.ffn, "moe.shared.ffn", "width of all shared experts together");
        if shared.gate {
            list.switch(NATIVE, "--moe-shared-expert-gate", "moe.shared.gate", "a scalar a token weighs it");
        }
    }
    if let Some(latent) = moe.latent {
        list.set(NATIVE, "--moe-latent-size", latent, "moe.latent", "width experts work in");
    }
    if fuses_experts(job) {
        let why = "fused kernels read an expert's gate and linear half in blocks of so many columns";
        list.set(Kind::Policy, "--moe-mlp-glu-interleave-size", GLU_BLOCK, "options", why);
    }
    router(moe, list, findings);
    if let Some(factor) = moe.capacity_factor {
        let from = "moe.capacity_factor";
        list.set(NATIVE, "--moe-expert-capacity-factor", number(factor), from, "tokens an expert accepts");
        let why = "buffers are sized before the exchange";
        list.switch(NATIVE, "--moe-pad-expert-input-to-capacity", from, why);
    }
}

fn router(moe: &Moe, list: &mut List, findings: &mut Vec<Finding>) {
    let score = moe.router.score;
    list.set(NATIVE, "--moe-router-score-function", score, "moe.router.score", "how scores are normalised");
    match moe.router.dtype {
        Dtype::Fp32 => list.set(NATIVE, "--moe-router-dtype", "fp32", "moe.router.dtype", "the default is bf16"),
        Dtype::Bf16 => {}
        other => findings.push(unsayable("moe.router.dtype", format!("routers score in fp32 or bf16, not {other}"))),
    }
    if moe.router.expert_bias {
        let why = "a balancing bias that no gradient reaches";
        list.switch(NATIVE, "--moe-router-enable-expert-bias", "moe.router.expert_bias", why);
        if moe.router.score == ScoreFunction::Softmax {
            // transformer/transformer_config.py.
            let finding =
                unsayable("moe.router.expert_bias", "a balancing bias goes with sigmoid scores alone, not softmax");
            findings.push(
                finding.quote("Expert bias for aux-loss-free routing only supports 'sigmoid' and 'sqrtsoftplus' "),
            );
        }
        if let Some(rate) = moe.router.bias_update_rate {
            list.set(NATIVE, "--moe-router-bias-update-rate", float(rate), "moe.router.bias_update_rate", "its step");
        }
    }
    weights(moe, list, findings);
    groups(moe, list, findings);
    let (kind, from) = (NATIVE, "moe.router.aux_loss");
    match moe.router.aux_loss {
        Some(coefficient) => {
            let over = match moe.router.aux_loss_over {
                BalanceOver::Batch => "aux_loss",
                BalanceOver::Sequence => "seq_aux_loss",
            };
            let flag = "--moe-router-load-balancing-type";
            list.set(kind, flag, over, "moe.router.aux_loss_over", "over a microbatch or each sequence");
            list.set(kind, "--moe-aux-loss-coeff", float(coefficient), from, "the default is 0");
        }
        None => list.set(kind, "--moe-router-load-balancing-type", "none", from, "the default is aux_loss"),
    }
    if let Some(coefficient) = moe.router.z_loss {
        list.set(kind, "--moe-z-loss-coeff", float(coefficient), "moe.router.z_loss", "keeps logits small");
    }
}

/// Weights of the chosen experts: `moe_utils.py`, `topk_routing_with_score_function`. A softmax over the chosen is
/// the chosen shares over their sum; sigmoid scores are always divided by it, that of one expert never.
fn weights(moe: &Moe, list: &mut List, findings: &mut Vec<Finding>) {
    let (router, from) = (&moe.router, "moe.router.normalize");
    match (router.score, router.normalize, moe.top_k) {
        (ScoreFunction::Softmax, true, 1) | (ScoreFunction::Sigmoid, true, 1) => {
            let message = "one chosen expert weighs its own score, and the recipe divides it by itself";
            findings.push(unsayable(from, message).hint("say `normalize = false` in `[moe.router]`"));
        }
        (ScoreFunction::Softmax, false, _) => {
            let why = "shares of all experts, not divided by the sum of the chosen";
            list.switch(NATIVE, "--moe-router-pre-softmax", from, why);
        }
        (ScoreFunction::Sigmoid, false, 2..) => {
            findings.push(unsayable(from, "sigmoid scores of several experts are always divided by their sum"));
        }
        _ => {}
    }
    if router.scaling != 1.0 {
        let flag = "--moe-router-topk-scaling-factor";
        list.set(NATIVE, flag, float(router.scaling), "moe.router.scaling", "factor on the weights");
    }
}

/// `moe_utils.py`, `group_limited_topk`: a group is scored by its `topk // group_topk` best experts.
fn groups(moe: &Moe, list: &mut List, findings: &mut Vec<Finding>) {
    let router = &moe.router;
    if router.groups == 1 {
        return;
    }
    let best = moe.top_k / router.group_top_k;
    let wanted = if router.group_score == GroupScore::Max { 1 } else { 2 };
    if best != wanted {
        let message =
            format!("groups are scored by top_k / group_top_k = {best} of their experts, and the recipe says {wanted}");
        findings.push(unsayable("moe.router.group_score", message));
    }
    list.set(NATIVE, "--moe-router-num-groups", router.groups, "moe.router.groups", "groups of experts");
    let why = "groups a token's experts come from";
    list.set(NATIVE, "--moe-router-group-topk", router.group_top_k, "moe.router.group_top_k", why);
}

fn mamba(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    // Under a custom mixer the built-in widths stand for what it replaces.
    let built_in;
    let mixer = match &job.recipe.mamba {
        Some(Mamba::Two(mixer)) => mixer,
        Some(Mamba::Three(m)) => {
            built_in = Mamba2::new(m.heads, m.head_dim, m.state, m.groups);
            &built_in
        }
        _ => return findings.push(unsayable("mamba", "`M` is Mamba-2, and no `[mamba]` describes one")),
    };
    let usual = Mamba2::new(mixer.heads, mixer.head_dim, mixer.state, mixer.groups);
    if (Mamba2 { chunk: usual.chunk, ..mixer.clone() }) != usual {
        let message = "the built-in mixer has four taps with a bias, no other biases and a gated norm";
        findings.push(unsayable("mamba", message));
    }
    let kind = replaced(job, "mamba3-mixer");
    list.set(kind, "--mamba-num-heads", mixer.heads, "mamba.heads", "the default is twice hidden over head_dim");
    list.set(kind, "--mamba-head-dim", mixer.head_dim, "mamba.head_dim", "width of a head");
    list.set(kind, "--mamba-state-dim", mixer.state, "mamba.state", "the default is 128");
    list.set(kind, "--mamba-num-groups", mixer.groups, "mamba.groups", "groups that share B and C");
}

fn gated_delta(recipe: &Recipe, list: &mut List) {
    let Some(net) = &recipe.gated_delta else { return };
    for (flag, value, from) in [
        ("--linear-num-key-heads", net.key_heads, "gated_delta.key_heads"),
        ("--linear-num-value-heads", net.value_heads, "gated_delta.value_heads"),
        ("--linear-key-head-dim", net.key_dim, "gated_delta.key_dim"),
        ("--linear-value-head-dim", net.value_dim, "gated_delta.value_dim"),
        ("--linear-conv-kernel-dim", net.conv, "gated_delta.conv"),
    ] {
        list.set(NATIVE, flag, value, from, "gated delta net");
    }
}

fn vocabulary(job: &Job, list: &mut List) {
    list.set(NATIVE, "--vocab-size", job.recipe.vocab, "recipe.vocab", "rows of the token table before padding");
    if job.policy.data.tokenizer.is_some() {
        let why = "the tokenizer's size would take its place; a larger tokenizer does not fit this table";
        let padded = job.layout.padded_vocab(job.recipe.vocab);
        list.set(NATIVE, "--padded-vocab-size", padded, "recipe.vocab", why);
    }
    let why = "the padded vocabulary is a multiple of this times tp";
    list.set(Kind::Layout, "--make-vocab-size-divisible-by", job.layout.vocab_multiple, "layout.vocab_multiple", why);
    if !job.recipe.tied {
        list.switch(NATIVE, "--untie-embeddings-and-output-weights", "recipe.tied", "the default ties them");
    }
}
