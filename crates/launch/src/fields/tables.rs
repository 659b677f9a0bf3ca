//! What engines do with fields that no argument names: one table an engine. A field that stands in none is a
//! seam.

use crate::emission::Emission;
use layout::Engine;

/// What an engine does with a field.
pub enum Rule {
    /// It is told by these keys or files.
    Said(&'static [&'static str]),
    /// It builds the default only: another value is a seam.
    OneWay(&'static str),
    /// It builds one way only, and what differs was refused before (the engine's own file in `engines`).
    Checked(&'static str),
    /// Nothing of a run depends on it.
    Never(&'static str),
    /// It is never told.
    Lost(&'static str),
}

use Rule::{Checked, Lost, Never, OneWay, Said};

type Table = &'static [(&'static str, Rule)];

const CHUNKS: &str = "tokens a kernel takes at once; the result is the same";

/// What holds for every engine.
pub const EVERY: Table = &[
    ("name", Never("names the job, the record and its folders")),
    ("source", Never("where the figures come from")),
    ("modes", Never("modes there are; the job's own is in its record")),
    ("multipliers.*", OneWay("activations are multiplied by nothing")),
    ("norm_place", OneWay("a norm stands before each block")),
    ("embedding_norm", OneWay("embeddings are not normalised")),
    ("head_bias", OneWay("the output head has no bias")),
    ("attention.chunked", OneWay("windows slide")),
    ("attention.head_gate", OneWay("nothing gates the heads of latent attention")),
    ("mlp.shift", OneWay("inputs are not mixed with the token before")),
    ("features.mtp.shared", OneWay("each prediction depth has a stack of its own")),
    ("not_carried.*", Lost("the config had it, and a recipe has no place for it")),
    ("mamba.chunk", Never(CHUNKS)),
    ("mamba.state_carry", Never("what the layout may cut; the layout says it")),
    ("recurrent.state_carry", Never("what the layout may cut; the layout says it")),
];

/// The table of an engine; where a program of ours runs under DeepSpeed, the program's.
pub fn of(emission: &Emission) -> Table {
    match emission.engine {
        Engine::Megatron => MEGATRON,
        Engine::Torchtitan => TORCHTITAN,
        Engine::Nanotron => NANOTRON,
        Engine::Maxtext => MAXTEXT,
        Engine::Deepspeed if emission.files.iter().any(|file| file.path == "sharding.json") => DEEPSPEED_PROGRAM,
        Engine::Deepspeed => DEEPSPEED,
        Engine::Fsdp2 => FSDP2,
        Engine::XlaSpmd => XLA_SPMD,
        Engine::Shardwright => &[],
    }
}

const BIASES: &str = "biases are the whole model's: `--disable-bias-linear`, refused where the recipe mixes them";
const BUILT_IN: &str = "the built-in mixer is one way only, refused where the recipe differs";
const ONE_ACTIVATION: &str =
    "one activation for the whole model: `--swiglu`, `--squared-relu`, `--quick-geglu` or none";
const SIDES: &str = "shardwright_megatron/sides.json";
const SPEC: &str = "`blocks.json` of the package that is written with the launch";

const MEGATRON: Table = &[
    ("depth", Said(&["--num-layers", "--hybrid-layer-pattern"])),
    ("pattern", Said(&["--num-layers", "--moe-layer-freq", "--hybrid-layer-pattern"])),
    ("sequence", Said(&["--seq-length"])),
    ("tied", Said(&["--untie-embeddings-and-output-weights"])),
    ("init_std", Never("0.02, Megatron's own, where the recipe says nothing")),
    ("positions", Said(&["--position-embedding-type"])),
    ("learned_positions", Said(&["--max-position-embeddings"])),
    ("rope.scaling.*", Checked("the kind's fixed figures, refused where the recipe has others")),
    ("attention.kind", Said(&["--multi-latent-attention"])),
    ("attention.kv_heads", Said(&["--num-query-groups"])),
    ("attention.q_rank", Said(&["--q-lora-rank"])),
    ("attention.latent_norm", Said(&["--qk-layernorm"])),
    ("attention.latent_bias", Checked(BIASES)),
    ("attention.qk_norm", Said(&["--qk-layernorm"])),
    ("attention.qkv_bias", Checked(BIASES)),
    ("attention.out_bias", Checked(BIASES)),
    ("attention.sinks", Checked("`--softmax-type learnable`, or none")),
    ("attention.output_gate", Checked("`--attention-output-gate`, or no gate")),
    ("attention.window", Checked("no window, or `--window-size`")),
    ("attention.full_attention_layers", Checked("no window, or `--window-attn-skip-freq`")),
    ("attention.chunked", Checked("windows slide; chunks were refused")),
    ("attention.head_dim", Never("a width of grouped-query attention, which the latent feature replaces")),
    ("moe.activation", Checked(ONE_ACTIVATION)),
    ("moe.bias", Checked(BIASES)),
    ("moe.latent", Said(&["--moe-latent-size"])),
    ("moe.latent_bias", Checked(BIASES)),
    ("moe.capacity_factor", Never("dropless, Megatron's own, where the recipe says nothing")),
    ("moe.shared.activation", Checked(ONE_ACTIVATION)),
    ("moe.shared.gate", Checked("`--moe-shared-expert-gate`, or no gate")),
    ("moe.shared.bias", OneWay("shared experts have no biases")),
    ("moe.router.dtype", Checked("`--moe-router-dtype`, or bf16")),
    ("moe.router.bias", Checked(BIASES)),
    ("moe.router.expert_bias", Checked("`--moe-router-enable-expert-bias`, or none")),
    ("moe.router.bias_update_rate", Never("0.001, Megatron's own, where the recipe says nothing")),
    ("moe.router.aux_loss_over", Never("there is no balancing loss")),
    ("moe.router.z_loss", Never("none, Megatron's own, where the recipe says nothing")),
    ("moe.router.normalize", Checked("a softmax over the chosen, or sigmoid scores over their sum")),
    ("moe.router.scaling", OneWay("no factor")),
    ("moe.router.groups", OneWay("no groups")),
    ("moe.router.group_top_k", OneWay("no groups")),
    ("moe.router.group_score", Checked("by the number of experts a token takes from a group")),
    ("mamba.kind", Checked("`M` is Mamba-2, or a custom mixer that the mode's seams name")),
    ("mamba.*", Checked(BUILT_IN)),
    ("recurrent.*", Said(&[SPEC])),
    ("mlp.activation", Checked(ONE_ACTIVATION)),
    ("mlp.bias", Checked(BIASES)),
    ("features.mla.*", Said(&["--multi-latent-attention"])),
    ("features.dsa.*", Said(&["--hybrid-layer-pattern"])),
    ("features.mtp.shared", Checked("`--mtp-use-repeated-layer`, or a stack a depth")),
    ("features.mtp.*", Said(&["--mtp-num-layers", "--hybrid-layer-pattern"])),
    ("features.ngram_hash.*", Said(&[SIDES])),
    ("features.structure.*", Said(&[SIDES])),
    ("precision.*", Said(&["--bf16", "--accumulate-allreduce-grads-in-fp32", "--use-precision-aware-optimizer"])),
    ("optimizer.*", Said(&["--optimizer"])),
];

const DECODER: &str = "its decoder is this way only; another was refused";

const TORCHTITAN: Table = &[
    ("sequence", Said(&["training.seq_len"])),
    ("pattern", Said(&["model.depth", "model.dense_first", "model.form"])),
    ("depth", Said(&["model.depth"])),
    ("hidden", Said(&["model.hidden"])),
    ("vocab", Said(&["model.vocab"])),
    ("tied", Said(&["model.tied"])),
    ("norm", Checked(DECODER)),
    ("norm_eps", Said(&["model.norm_eps"])),
    ("init_std", Said(&["model.init_std"])),
    ("dropout", OneWay("it drops nothing")),
    ("rope_theta", Said(&["model.theta"])),
    ("positions", Checked(DECODER)),
    ("rope.fraction", OneWay("its forms turn whole heads")),
    ("rope.scaling.*", Said(&["model.rope_scaling"])),
    ("attention.dropout", OneWay("it drops nothing")),
    ("attention.heads", Said(&["model.heads"])),
    ("attention.kv_heads", Said(&["model.kv_heads"])),
    ("attention.head_dim", Said(&["model.head_dim"])),
    ("attention.qk_norm", Said(&["model.qk_norm"])),
    ("attention.kind", Said(&["model.form", "model.latent"])),
    ("attention.q_rank", Said(&["model.latent"])),
    ("attention.kv_rank", Said(&["model.latent"])),
    ("attention.qk_dim", Said(&["model.latent"])),
    ("attention.rope_dim", Said(&["model.latent"])),
    ("attention.v_dim", Said(&["model.latent"])),
    ("attention.*", OneWay(DECODER)),
    ("moe.experts", Said(&["model.moe"])),
    ("moe.top_k", Said(&["model.moe"])),
    ("moe.ffn", Said(&["model.moe"])),
    ("moe.shared.ffn", Said(&["model.moe"])),
    ("moe.router.score", Said(&["model.moe"])),
    ("moe.router.expert_bias", Said(&["model.moe"])),
    ("moe.router.bias_update_rate", Said(&["model.moe"])),
    ("moe.router.normalize", Said(&["model.moe"])),
    ("moe.router.scaling", Said(&["model.moe"])),
    ("moe.router.groups", Said(&["model.moe"])),
    ("moe.router.group_top_k", Said(&["model.moe"])),
    ("moe.router.group_score", Checked(DECODER)),
    ("moe.router.z_loss", OneWay("its router has no such loss")),
    ("moe.router.dtype", OneWay("its router scores in fp32")),
    ("mlp.ffn", Said(&["model.ffn"])),
    ("moe.*", OneWay(DECODER)),
    ("mlp.*", OneWay(DECODER)),
    ("features.mtp.depth", Said(&["model.mtp_depth"])),
    ("features.mtp.pattern", Checked(DECODER)),
    ("features.mtp.enabled", Said(&["model.mtp_depth"])),
    ("features.mla.*", Said(&["model.latent"])),
    ("precision.weights", Said(&["training.mixed_precision_param"])),
    ("precision.*", OneWay("main weights and reduced gradients are fp32, everything else bf16")),
    ("optimizer.*", Checked("AdamW; others were refused")),
];

const NANOTRON: Table = &[
    ("sequence", Said(&["tokens.sequence_length"])),
    ("pattern", Said(&["model.model_config.num_hidden_layers", "model.model_config.moe_config.layers"])),
    ("norm", Checked(DECODER)),
    ("dropout", OneWay("it drops nothing")),
    ("positions", Checked(DECODER)),
    ("rope.fraction", OneWay("it turns whole heads")),
    ("attention.dropout", OneWay("it drops nothing")),
    ("attention.head_dim", Checked("hidden over heads; another was refused")),
    ("attention.*", OneWay(DECODER)),
    ("moe.router.score", Checked("a softmax; another was refused")),
    ("moe.router.normalize", Checked("shares of all experts; others were refused")),
    ("moe.router.dtype", OneWay("its router scores in fp32")),
    ("moe.router.aux_loss_over", OneWay("its loss is a microbatch's")),
    ("moe.router.z_loss", OneWay("its router has no such loss")),
    ("moe.router.scaling", OneWay("no factor")),
    ("moe.router.groups", OneWay("no groups")),
    ("moe.router.group_top_k", OneWay("no groups")),
    ("moe.router.group_score", OneWay("no groups")),
    ("moe.router.bias_update_rate", OneWay("no balancing bias")),
    ("moe.shared.gate", Checked("its shared expert is gated; another was refused")),
    ("moe.*", OneWay(DECODER)),
    ("mlp.*", OneWay(DECODER)),
    ("precision.weights", Said(&["model.dtype"])),
    ("precision.gradients", Said(&["optimizer.accumulate_grad_in_fp32"])),
    ("precision.*", OneWay("weights are bf16 with fp32 main weights and moments")),
    ("optimizer.*", Checked("AdamW; others were refused")),
];

const MAXTEXT: Table = &[
    ("sequence", Said(&["max_target_length"])),
    ("pattern", Said(&["decoder_block", "base_num_decoder_layers", "first_num_dense_layers"])),
    ("norm", Checked(DECODER)),
    ("init_std", OneWay("weights are drawn by `dense_init_scale` over the width")),
    ("dropout", OneWay("`enable_dropout=false`")),
    ("positions", Checked(DECODER)),
    ("rope.fraction", OneWay("its blocks turn whole heads")),
    ("rope.scaling.*", Checked("the kind's fixed figures, refused where the recipe has others")),
    ("attention.dropout", OneWay("`enable_dropout=false`")),
    ("attention.kind", Said(&["attention_type"])),
    ("attention.*", OneWay(DECODER)),
    ("moe.router.z_loss", OneWay("its router has no such loss")),
    ("moe.router.dtype", OneWay("its router scores in fp32")),
    ("moe.router.aux_loss_over", OneWay("its loss is a microbatch's")),
    ("moe.router.score", Checked("a softmax, unless the block is deepseek's")),
    ("moe.router.expert_bias", Checked("none, unless the block is deepseek's")),
    ("moe.router.bias_update_rate", OneWay("no balancing bias")),
    ("moe.router.normalize", Checked("weights that sum to one; others were refused")),
    ("moe.*", OneWay(DECODER)),
    ("mlp.*", OneWay(DECODER)),
    ("features.mtp.pattern", Checked(DECODER)),
    ("features.mtp.enabled", Said(&["mtp_num_layers"])),
    ("features.mla.*", Said(&["attention_type"])),
    ("precision.*", OneWay("products in bf16, weights, gradients and moments in fp32")),
    ("optimizer.*", Checked("AdamW; others were refused")),
];

const SCRIPT: &str = "DeepSpeed wraps the model that the training script builds; recipe.toml lies beside it";

const DEEPSPEED: Table = &[
    ("precision.weights", Said(&["bf16.enabled"])),
    ("precision.gradients", Said(&["data_types.grad_accum_dtype"])),
    ("precision.*", OneWay("main weights and moments are fp32")),
    ("optimizer.*", Said(&["optimizer.type"])),
    ("sequence", Never(SCRIPT)),
    ("pattern", Never(SCRIPT)),
    ("depth", Never(SCRIPT)),
    ("hidden", Never(SCRIPT)),
    ("vocab", Never(SCRIPT)),
    ("tied", Never(SCRIPT)),
    ("norm", Never(SCRIPT)),
    ("norm_place", Never(SCRIPT)),
    ("embedding_norm", Never(SCRIPT)),
    ("head_bias", Never(SCRIPT)),
    ("norm_eps", Never(SCRIPT)),
    ("init_std", Never(SCRIPT)),
    ("dropout", Never(SCRIPT)),
    ("rope_theta", Never(SCRIPT)),
    ("positions", Never(SCRIPT)),
    ("learned_positions", Never(SCRIPT)),
    ("rope.fraction", Never(SCRIPT)),
    ("rope.scaling.*", Never(SCRIPT)),
    ("multipliers.*", Never(SCRIPT)),
    ("attention.*", Never(SCRIPT)),
    ("moe.*", Never(SCRIPT)),
    ("mamba.*", Never(SCRIPT)),
    ("recurrent.*", Never(SCRIPT)),
    ("gated_delta.*", Never(SCRIPT)),
    ("linear.*", Never(SCRIPT)),
    ("mlp.*", Never(SCRIPT)),
    ("shared.*", Never(SCRIPT)),
    ("features.*", Never(SCRIPT)),
];

const MODEL: &[&str] = &["model in sharding.json"];
const TABLE: &[&str] = &["model in table.json"];
const UNREAD: &str = "the emitted model does not read it";
const REFERENCE: &str = "the emitted model has none; another was refused";

/// Fields of the reference model (`assets/fsdp2/model.py`): whoever makes the program read one of the `UNREAD` ones
/// says so here.
macro_rules! reference {
    ($said:expr, $sequence:expr, $precision:expr, $optimizer:expr, $adapters:expr) => {
        &[
            ("sequence", Said($sequence)),
            ("pattern", Said($said)),
            ("depth", Said($said)),
            ("hidden", Said($said)),
            ("vocab", Said($said)),
            ("tied", Said($said)),
            ("norm", Said($said)),
            ("rope_theta", Said($said)),
            ("positions", Said($said)),
            ("learned_positions", Checked(REFERENCE)),
            ("norm_eps", Said($said)),
            ("init_std", Said($said)),
            ("dropout", OneWay(UNREAD)),
            ("rope.fraction", Said($said)),
            ("rope.scaling.*", Said($said)),
            ("multipliers.*", Said($said)),
            ("adapters.*", $adapters),
            ("attention.dropout", OneWay(UNREAD)),
            ("moe.router.score", Said($said)),
            ("moe.router.normalize", Said($said)),
            ("moe.router.scaling", Said($said)),
            ("moe.router.groups", Said($said)),
            ("moe.router.group_top_k", Said($said)),
            ("moe.router.group_score", Said($said)),
            ("moe.router.expert_bias", Said($said)),
            ("moe.router.bias_update_rate", Said($said)),
            ("moe.router.aux_loss", Said($said)),
            ("moe.router.aux_loss_over", Said($said)),
            ("moe.router.z_loss", Said($said)),
            ("moe.router.dtype", Never("the emitted router scores in fp32 or the weights' format")),
            ("moe.router.bias", Checked(REFERENCE)),
            ("moe.router.*", OneWay(UNREAD)),
            ("moe.shared.ffn", Said($said)),
            ("moe.shared.activation", Said($said)),
            ("moe.experts", Said($said)),
            ("moe.top_k", Said($said)),
            ("moe.ffn", Said($said)),
            ("moe.activation", Said($said)),
            ("moe.*", OneWay(UNREAD)),
            ("attention.heads", Said($said)),
            ("attention.kv_heads", Said($said)),
            ("attention.head_dim", Said($said)),
            ("attention.*", OneWay(UNREAD)),
            ("mamba.kind", Said($said)),
            ("mamba.heads", Said($said)),
            ("mamba.head_dim", Said($said)),
            ("mamba.state", Said($said)),
            ("mamba.groups", Said($said)),
            ("mamba.angles", Said($said)),
            ("mamba.conv", Said($said)),
            ("mamba.conv_bias", Said($said)),
            ("mamba.gated_norm", Said($said)),
            ("mamba.chunk", Never(CHUNKS)),
            ("mamba.*", OneWay(UNREAD)),
            ("recurrent.kind", Said($said)),
            ("recurrent.heads", Said($said)),
            ("recurrent.qk_heads", Said($said)),
            ("recurrent.key_dim", Said($said)),
            ("recurrent.value_dim", Said($said)),
            ("recurrent.conv", Said($said)),
            ("recurrent.conv_bias", Said($said)),
            ("recurrent.gradient_clip", Said($said)),
            ("recurrent.*", OneWay(UNREAD)),
            ("gated_delta.*", Checked(REFERENCE)),
            ("linear.*", Checked(REFERENCE)),
            ("mlp.ffn", Said($said)),
            ("mlp.activation", Said($said)),
            ("mlp.bias", Checked(REFERENCE)),
            ("features.mhc.*", Said($said)),
            ("features.mod.*", Said($said)),
            ("features.engram.*", Said($said)),
            ("mlp.shift", Checked(REFERENCE)),
            ("shared.bias", Checked(REFERENCE)),
            ("shared.*", Said($said)),
            ("features.*", Checked(REFERENCE)),
            ("precision.weights", Said($precision)),
            ("precision.gradients", Said($precision)),
            ("precision.main", Said($precision)),
            ("precision.*", OneWay(UNREAD)),
            ("optimizer.*", Said($optimizer)),
        ]
    };
}

const FSDP2: Table = reference!(
    MODEL,
    &["batch.sequence in sharding.json"],
    &["precision in sharding.json"],
    &["optimizer of each tensor in sharding.json"],
    Said(&["lora and rows of the factors in sharding.json"])
);
const DEEPSPEED_PROGRAM: Table = reference!(
    MODEL,
    &["batch.sequence in sharding.json"],
    &["bf16.enabled", "data_types.grad_accum_dtype"],
    &["optimizer.type"],
    Checked("adapters were refused")
);
const XLA_SPMD: Table = reference!(
    TABLE,
    &["batch.sequence in table.json"],
    &["the framework's own formats"],
    &["the program's optimizer"],
    Lost("the program has no adapters")
);
