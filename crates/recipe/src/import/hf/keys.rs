//! What became of every key of a config: carried into the recipe, irrelevant to training, or not carried.
//! [`super::config::Config`] records what an importer reads; what nobody read is looked up here, and a
//! key that stands nowhere is not carried. So a key cannot vanish, whoever adds it to a config.

use serde_json::Value;

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It made this part of the recipe.
    Carried(&'static str),
    /// Training the model does not depend on it, and why.
    Irrelevant(&'static str),
    /// The recipe has no place for it: what is trained is another model.
    NotCarried,
}

/// A key of a config, dotted where it stands inside another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// Its value as JSON.
    pub value: String,
    /// What became of it.
    pub fate: Fate,
}

/// Where a key that an importer read stands in a recipe. What stands in several tables by model type is
/// named by the first that fits.
pub(super) fn place(model_type: &str, key: &str) -> Option<&'static str> {
    let by_type = BY_TYPE.iter().find(|(types, name, _)| *name == key && types.contains(&model_type));
    by_type
        .map(|(_, _, place)| *place)
        .or_else(|| PLACES.iter().find(|(name, _)| *name == key).map(|(_, place)| *place))
}

/// The fate of a key that no importer read.
pub(super) fn unread(model_type: &str, key: &str, value: &Value) -> Fate {
    if value.is_null() {
        return Fate::Irrelevant("null: it is not set");
    }
    if let Some((_, why)) = IRRELEVANT.iter().find(|(name, _)| *name == key) {
        return Fate::Irrelevant(why);
    }
    if let Some((_, _, why)) =
        IRRELEVANT_BY_TYPE.iter().find(|(types, name, _)| *name == key && types.contains(&model_type))
    {
        return Fate::Irrelevant(why);
    }
    let said = value.to_string();
    let neutral = NEUTRAL.iter().find(|(name, text, _)| *name == key && said == *text);
    neutral.map_or(Fate::NotCarried, |(_, _, why)| Fate::Irrelevant(why))
}

/// Models whose experts are as wide as `intermediate_size` says.
const WIDE_EXPERTS: &[&str] = &["mixtral", "olmoe", "gpt_oss", "granitemoehybrid"];

const BY_TYPE: &[(&[&str], &str, &str)] = &[
    (WIDE_EXPERTS, "intermediate_size", "moe.ffn"),
    (&["mamba2"], "head_dim", "mamba.head_dim"),
    (&["deepseek_v2", "deepseek_v3"], "attention_bias", "attention.latent_bias"),
];

const PLACES: &[(&str, &str)] = &[
    ("_name_or_path", "name"),
    ("model_type", "source"),
    ("vocab_size", "vocab"),
    ("hidden_size", "hidden"),
    ("num_hidden_layers", "depth"),
    ("max_position_embeddings", "sequence"),
    ("initial_context_length", "rope.scaling.original"),
    ("tie_word_embeddings", "tied"),
    ("rms_norm_eps", "norm_eps"),
    ("layer_norm_epsilon", "norm_eps"),
    ("norm_eps", "norm_eps"),
    ("layer_norm_eps", "norm_eps"),
    ("norm_epsilon", "norm_eps"),
    ("use_bias", "attention.qkv_bias"),
    ("initializer_range", "init_std"),
    ("hidden_dropout", "dropout"),
    ("attention_dropout", "attention.dropout"),
    ("num_attention_heads", "attention.heads"),
    ("num_key_value_heads", "attention.kv_heads"),
    ("head_dim", "attention.head_dim"),
    ("attention_head_dim", "attention.head_dim"),
    ("attention_bias", "attention.qkv_bias"),
    ("use_qk_norm", "attention.qk_norm"),
    ("sliding_window", "attention.window"),
    ("use_sliding_window", "attention.window"),
    ("max_window_layers", "attention.full_attention_layers"),
    ("q_lora_rank", "attention.q_rank"),
    ("kv_lora_rank", "attention.kv_rank"),
    ("qk_nope_head_dim", "attention.qk_dim"),
    ("qk_rope_head_dim", "attention.rope_dim"),
    ("qk_head_dim", "attention.qk_dim"),
    ("v_head_dim", "attention.v_dim"),
    ("rope_theta", "rope_theta"),
    ("partial_rotary_factor", "rope.fraction"),
    ("rope_scaling", "rope.scaling"),
    ("rope_parameters", "rope.scaling"),
    ("position_embedding_type", "positions"),
    ("hidden_act", "activation"),
    ("mlp_hidden_act", "activation"),
    ("mamba_hidden_act", "mamba"),
    ("intermediate_size", "mlp.ffn"),
    ("mlp_bias", "mlp.bias"),
    ("layer_types", "pattern"),
    ("layers_block_type", "pattern"),
    ("hybrid_override_pattern", "pattern"),
    ("full_attention_interval", "pattern"),
    ("attn_layer_indices", "pattern"),
    ("attn_layer_period", "pattern"),
    ("attn_layer_offset", "pattern"),
    ("expert_layer_period", "pattern"),
    ("expert_layer_offset", "pattern"),
    ("first_k_dense_replace", "pattern"),
    ("moe_layer_freq", "pattern"),
    ("decoder_sparse_step", "pattern"),
    ("mlp_only_layers", "pattern"),
    ("num_experts", "moe.experts"),
    ("num_local_experts", "moe.experts"),
    ("n_routed_experts", "moe.experts"),
    ("num_experts_per_tok", "moe.top_k"),
    ("experts_per_token", "moe.top_k"),
    ("moe_intermediate_size", "moe.ffn"),
    ("moe_latent_size", "moe.latent"),
    ("n_shared_experts", "moe.shared.ffn"),
    ("shared_intermediate_size", "moe.shared.ffn"),
    ("shared_expert_intermediate_size", "moe.shared.ffn"),
    ("moe_shared_expert_intermediate_size", "moe.shared.ffn"),
    ("router_aux_loss_coef", "moe.router.aux_loss"),
    ("aux_loss_alpha", "moe.router.aux_loss"),
    ("seq_aux", "moe.router.aux_loss_over"),
    ("scoring_func", "moe.router.score"),
    ("topk_method", "moe.router.group_score"),
    ("norm_topk_prob", "moe.router.normalize"),
    ("routed_scaling_factor", "moe.router.scaling"),
    ("n_group", "moe.router.groups"),
    ("topk_group", "moe.router.group_top_k"),
    ("num_mtp_layers", "features.mtp.depth"),
    ("num_nextn_predict_layers", "features.mtp.depth"),
    ("mtp_hybrid_override_pattern", "features.mtp.pattern"),
    ("mtp_layers_block_type", "features.mtp.pattern"),
    ("mamba_num_heads", "mamba.heads"),
    ("mamba_n_heads", "mamba.heads"),
    ("num_heads", "mamba.heads"),
    ("expand", "mamba.heads"),
    ("mamba_expand", "mamba.heads"),
    ("mamba_d_ssm", "mamba.heads"),
    ("mamba_head_dim", "mamba.head_dim"),
    ("mamba_d_head", "mamba.head_dim"),
    ("ssm_state_size", "mamba.state"),
    ("state_size", "mamba.state"),
    ("mamba_d_state", "mamba.state"),
    ("n_groups", "mamba.groups"),
    ("mamba_n_groups", "mamba.groups"),
    ("conv_kernel", "mamba.conv"),
    ("mamba_d_conv", "mamba.conv"),
    ("use_conv_bias", "mamba.conv_bias"),
    ("mamba_conv_bias", "mamba.conv_bias"),
    ("use_bias", "mamba.in_bias"),
    ("mamba_proj_bias", "mamba.in_bias"),
    ("projectors_bias", "mamba.out_bias"),
    ("mamba_rms_norm", "mamba.gated_norm"),
    ("mamba_norm_before_gate", "mamba.gated_norm"),
    ("chunk_size", "mamba.chunk"),
    ("mamba_chunk_size", "mamba.chunk"),
    ("mamba_dt_rank", "mamba.dt_rank"),
    ("mamba_inner_layernorms", "mamba.inner_norms"),
    ("linear_num_key_heads", "gated_delta.key_heads"),
    ("linear_num_value_heads", "gated_delta.value_heads"),
    ("linear_key_head_dim", "gated_delta.key_dim"),
    ("linear_value_head_dim", "gated_delta.value_dim"),
    ("linear_conv_kernel_dim", "gated_delta.conv"),
    ("embedding_multiplier", "multipliers.embedding"),
    ("residual_multiplier", "multipliers.residual"),
    ("attention_multiplier", "multipliers.attention"),
    ("logits_scaling", "multipliers.logits"),
    ("lm_head_multiplier", "multipliers.logits"),
    ("key_multiplier", "multipliers.key"),
    ("attention_in_multiplier", "multipliers.attention_in"),
    ("attention_out_multiplier", "multipliers.attention_out"),
    ("ssm_in_multiplier", "multipliers.ssm_in"),
    ("ssm_out_multiplier", "multipliers.ssm_out"),
    ("ssm_multipliers", "multipliers.ssm"),
    ("mlp_multipliers", "multipliers.mlp"),
    ("attention_chunk_size", "attention.window"),
    ("attention_layers", "attention.full_attention_layers"),
    ("attention_types", "attention.full_attention_layers"),
    ("attention_out_bias", "attention.out_bias"),
    ("bias", "attention.qkv_bias"),
    ("enable_bias", "attention.qkv_bias"),
    ("use_qkv_bias", "attention.qkv_bias"),
    ("qkv_bias", "attention.qkv_bias"),
    ("qk_layernorm", "attention.qk_norm"),
    ("multi_query", "attention.kv_heads"),
    ("lm_head_bias", "head_bias"),
    ("use_post_norm", "norm_place"),
    ("do_layer_norm_before", "norm_place"),
    ("layer_norm_elementwise_affine", "norm"),
    ("_remove_final_layer_norm", "norm"),
    ("word_embed_proj_dim", "hidden"),
    ("rotary_dim", "rope.fraction"),
    ("layer_rope_theta", "rope_theta"),
    ("expansion_ratio", "mlp.ffn"),
    ("mlp_layer_types", "pattern"),
    ("moe_layers", "pattern"),
    ("interleave_moe_layer_step", "pattern"),
    ("moe_layer_start_index", "pattern"),
    ("moe_layer_end_index", "pattern"),
    ("moe_layer_interval", "pattern"),
    ("num_dense_layers", "pattern"),
    ("new_decoder_architecture", "pattern"),
    ("num_ln_in_parallel_attn", "pattern"),
    ("parallel_attn", "pattern"),
    ("use_parallel_residual", "pattern"),
    ("expert_selection_fn", "moe.router.score"),
    ("index_n_heads", "features.dsa.heads"),
    ("index_head_dim", "features.dsa.head_dim"),
    ("index_topk", "features.dsa.top_k"),
    ("indexer_types", "features.dsa.layers"),
    ("time_step_rank", "mamba.dt_rank"),
    ("scale_emb", "multipliers.embedding"),
    ("scale_embedding", "multipliers.embedding"),
    ("mup_enabled", "multipliers.embedding"),
    ("scale_depth", "multipliers.residual"),
    ("query_pre_attn_scalar", "multipliers.attention"),
    ("dim_model_base", "multipliers.logits"),
    ("logit_scale", "multipliers.logits"),
];

/// Keys that training the model does not depend on, whatever they say.
const IRRELEVANT: &[(&str, &str)] = &[
    ("architectures", LOADING),
    ("auto_map", LOADING),
    ("transformers_version", LOADING),
    ("_commit_hash", LOADING),
    ("_attn_implementation", KERNELS),
    ("_attn_implementation_autoset", KERNELS),
    ("is_encoder_decoder", LOADING),
    ("torch_dtype", SAVED),
    ("dtype", SAVED),
    ("quantization_config", SAVED),
    ("compression_config", SAVED),
    ("rope_interleave", ORDER),
    ("bos_token_id", TOKENS),
    ("eos_token_id", TOKENS),
    ("pad_token_id", TOKENS),
    ("unk_token_id", TOKENS),
    ("sep_token_id", TOKENS),
    ("decoder_start_token_id", TOKENS),
    ("use_cache", GENERATION),
    ("num_logits_to_keep", GENERATION),
    ("calc_logits_for_entire_prompt", GENERATION),
    ("mamba_ssm_cache_dtype", GENERATION),
    ("generation_config", GENERATION),
    ("max_length", GENERATION),
    ("temperature", GENERATION),
    ("top_p", GENERATION),
    ("do_sample", GENERATION),
    ("n_ctx", "an older name of the longest sequence; `max_position_embeddings` says it"),
    ("output_attentions", OUTPUTS),
    ("output_hidden_states", OUTPUTS),
    ("return_dict", OUTPUTS),
    ("output_router_logits", "whether transformers adds the balancing loss; the recipe's `aux_loss` says it"),
    ("id2label", CLASSIFIER),
    ("label2id", CLASSIFIER),
    ("problem_type", CLASSIFIER),
    ("num_labels", CLASSIFIER),
    ("chunk_size_feed_forward", SPLIT),
    ("pretraining_tp", SPLIT),
    ("ep_size", SPLIT),
    ("tp_plan", SPLIT),
    ("moe_shared_expert_overlap", SPLIT),
    ("use_mamba_kernels", KERNELS),
    ("use_mambapy", KERNELS),
    ("use_associative_scan", KERNELS),
    ("fused_mlp", KERNELS),
    ("time_step_min", FRESH),
    ("time_step_max", FRESH),
    ("time_step_floor", FRESH),
    ("time_step_rank", "Mamba-1's; Mamba-2 has no rank"),
    ("time_step_init_scheme", FRESH),
    ("rescale_prenorm_residual", FRESH),
    ("init_method", FRESH),
    ("mamba_dt_min", FRESH),
    ("mamba_dt_max", FRESH),
    ("mamba_dt_init_floor", FRESH),
    ("A_init_range", FRESH),
    ("time_step_scale", FRESH),
    ("reorder_and_upcast_attn", KERNELS),
    ("summary_type", CLASSIFIER),
    ("summary_use_proj", CLASSIFIER),
    ("summary_activation", CLASSIFIER),
    ("summary_proj_to_labels", CLASSIFIER),
    ("summary_first_dropout", CLASSIFIER),
];

const IRRELEVANT_BY_TYPE: &[(&[&str], &str, &str)] = &[
    (&["bamba"], "attn_rotary_emb", "transformers turns half of a head whatever it says"),
    (&["falcon_h1"], "mlp_expansion_factor", "`intermediate_size` says the width"),
    (&["nemotron_h"], "expand", "heads and their width say it"),
    (&["nemotron_h"], "mamba_proj_bias", "`use_bias` says it"),
    (&["nemotron_h", "jamba"], "attention_bias", "the class has no such bias whatever it says"),
    (&["mamba2"], "norm_before_gate", "transformers norms behind the gate whatever it says"),
    (&["gpt_oss"], "experts_per_token", "`num_experts_per_tok` says the same"),
    (&["phi3"], "original_max_position_embeddings", "`rope_parameters` says what is made of it"),
    (&["cohere2_moe"], "sliding_window_pattern", "`layer_types` says it"),
    (&["cohere2_moe"], "prefix_dense_sliding_window_pattern", "`layer_types` says it"),
    (&["deepseek_v32", "glm_moe_dsa"], "mlp_bias", "the class has no such bias whatever it says"),
    (
        &["mistral", "mixtral", "glm4_moe", "olmoe", "jamba", "bamba", "granitemoehybrid", "falcon_h1"],
        "max_window_layers",
        "the model has no such layers",
    ),
    (&["mistral", "mixtral", "qwen2"], "attention_bias", "the class has its own biases whatever it says"),
    (
        &["mixtral", "jamba", "gpt_oss", "qwen2", "qwen3", "mistral"],
        "mlp_bias",
        "the class has no such bias whatever it says",
    ),
];

/// Keys of which one value changes nothing: the value as JSON, and why. Any other is not carried.
const NEUTRAL: &[(&str, &str, &str)] = &[
    ("router_jitter_noise", "0.0", "no noise"),
    ("z_loss_coefficient", "0.0", "no loss"),
    ("moe_layer_freq", "1", "experts in every layer, as the recipe has them"),
    ("residual_in_fp32", "false", "the residual stream has the weights' format"),
    ("time_step_limit", "[0.0,null]", "nothing is cut off"),
    ("time_step_limit", "[0.0,{\"__float__\":\"null\"}]", "nothing is cut off"),
    ("time_step_limit", "[0.0,{\"__float__\":\"Infinity\"}]", "nothing is cut off"),
    ("rms_norm", "true", "the mixer's norm, as the recipe has it"),
    ("mamba_use_mlp", "true", "an MLP in every layer, as the recipe has it"),
    ("use_mrope", "false", "positions are not multimodal"),
    ("normalization_function", "\"rmsnorm\"", "the norm the recipe has"),
    ("use_qk_norm", "false", "no norm"),
    ("attention_output_gate", "false", "no gate"),
    ("mamba_inner_layernorms", "true", "norms of the selected parts, as the recipe has them"),
    ("is_moe", "true", "the experts are in the recipe"),
    ("hidden_dropout", "0.0", "nothing is dropped"),
    ("resid_pdrop", "0.0", "nothing is dropped"),
    ("embd_pdrop", "0.0", "nothing is dropped"),
    ("attention_bias", "false", "no bias"),
    ("mlp_bias", "false", "no bias"),
    ("use_sliding_window", "false", "no window"),
    ("num_nextn_predict_layers", "0", "no prediction layers"),
    ("shared_expert_intermediate_size", "0", "no shared expert"),
    ("scale_attn_weights", "true", "scores are scaled by a head's width"),
    ("scale_attn_by_inverse_layer_idx", "false", "scores are scaled alike in every layer"),
    ("apply_residual_connection_post_layernorm", "false", "the residual stream is not normalised"),
    ("emb_pdrop", "0.0", "nothing is dropped"),
    ("embed_dropout", "0.0", "nothing is dropped"),
    ("embedding_dropout", "0.0", "nothing is dropped"),
    ("activation_dropout", "0.0", "nothing is dropped"),
    ("layerdrop", "0.0", "nothing is dropped"),
    ("input_jitter_noise", "0.0", "no noise"),
    ("use_bidirectional_attention", "false", "attention is causal"),
];

const LOADING: &str = "how transformers loads the model";
const SAVED: &str = "format of the published weights; `[precision]` says what training holds";
const ORDER: &str = "order of a head's columns: the same model up to a permutation of its weights";
const TOKENS: &str = "the tokenizer's; the data has them";
const GENERATION: &str = "for generation";
const OUTPUTS: &str = "what a call returns";
const CLASSIFIER: &str = "for classifiers";
const SPLIT: &str = "how one implementation splits its work; a layout says that";
const KERNELS: &str = "which kernels run";
const FRESH: &str = "how fresh weights are drawn; engines do that their own way";
