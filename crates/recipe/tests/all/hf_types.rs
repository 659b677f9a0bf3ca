//! Every model type that transformers trains causally imports with its exact count, or is refused by name with a
//! reason. Rows: `tools/measure_counts.py`, `data/truth/README.md`.

use recipe::Recipe;
use recipe::import::hf::{self, Asked};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

struct Row {
    at: usize,
    model_type: String,
    config: Value,
    /// What a recipe counts: parameters that a gradient reaches.
    trained: u64,
    is_bare: bool,
}

/// Rows with their configs put together, and the types that transformers does not build.
fn rows() -> (Vec<Row>, BTreeSet<String>) {
    let path = format!("{}/../../data/truth/hf_types.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut base: BTreeMap<String, Value> = BTreeMap::new();
    let (mut rows, mut not_built) = (Vec::new(), BTreeSet::new());
    for (at, line) in text.lines().enumerate() {
        let row: Value = serde_json::from_str(&line.replace("Infinity", "null")).expect("a row");
        let model_type = row["model_type"].as_str().expect("a type").to_string();
        let Some(params) = row["params"].as_u64() else {
            not_built.insert(model_type);
            continue;
        };
        let mut config = match (&row["config"], &row["change"]) {
            (Value::Object(config), _) => {
                base.insert(model_type.clone(), Value::Object(config.clone()));
                Value::Object(config.clone())
            }
            (_, Value::Object(change)) => {
                let mut config = base[&model_type].clone();
                for (key, value) in change {
                    config[key] = value.clone();
                }
                config
            }
            _ => serde_json::json!({}),
        };
        config["model_type"] = model_type.clone().into();
        let trained = params - row["frozen"].as_u64().unwrap_or(0);
        rows.push(Row { at: at + 1, model_type, config, trained, is_bare: row["bare"] == Value::Bool(true) });
    }
    (rows, not_built)
}

#[test]
fn every_causal_type_is_exact_or_refused_with_a_reason() {
    let (rows, not_built) = rows();
    let known: BTreeSet<&str> = hf::model_types().collect();
    let refused: BTreeMap<&str, &str> = hf::refused_types().collect();
    assert!(known.iter().all(|name| !refused.contains_key(name)), "a type is imported and refused");
    let mut differs = Vec::new();
    let mut turned_away = Vec::new();
    let mut exact = BTreeSet::new();
    for row in &rows {
        // A text model inside another model: its count is not the whole's.
        if row.config.get("text_config").is_some() {
            continue;
        }
        match hf::import(&row.config.to_string(), &Asked::named("x")) {
            Ok(imported) => {
                let total = imported.recipe.counts().all.total;
                if total != row.trained {
                    let by = total as i64 - row.trained as i64;
                    differs.push(format!("row {} {}: {total}, not {} ({by:+})", row.at, row.model_type, row.trained));
                    continue;
                }
                let again = Recipe::parse(&imported.recipe.to_toml()).unwrap_or_else(|f| panic!("{f:#?}"));
                assert_eq!(again, imported.recipe, "row {} does not read back", row.at);
                exact.insert(row.model_type.as_str());
            }
            Err(findings) if known.contains(row.model_type.as_str()) => {
                turned_away.push(format!("row {} {}: {}", row.at, row.model_type, findings[0].message));
            }
            Err(findings) => {
                let why =
                    refused.get(row.model_type.as_str()).unwrap_or_else(|| panic!("{} has no reason", row.model_type));
                assert!(findings[0].message.ends_with(why), "{}", findings[0].message);
            }
        }
    }
    assert!(differs.is_empty(), "{}", differs.join("\n"));
    for name in not_built {
        assert!(refused.contains_key(name.as_str()) || known.contains(name.as_str()), "{name} has no reason");
    }
    let bare = rows.iter().filter(|row| row.is_bare && known.contains(row.model_type.as_str())).count();
    println!("{} types exact, {bare} by their defaults alone: {exact:?}", exact.len());
    println!("{}", turned_away.join("\n"));
    assert_eq!(exact.len(), 104, "{exact:?}");
}

/// Keys that no recipe says, with the types whose rows have them; a switch turned the other way is one too.
const LOST: &[&str] = &[
    "alibi: bloom falcon",
    "apply_residual_connection_post_layernorm: bloom",
    "attn_config: mpt",
    "attn_logit_softcapping: gemma2 vaultgemma",
    "attn_temperature_tuning: llama4_text",
    "embd_pdrop: ctrl gpt-sw3 gpt2 gpt_bigcode",
    "embedding_norm_without_scale: nanochat",
    "final_logit_softcapping: gemma2 nanochat vaultgemma",
    "gate_soft_cap: xlstm",
    "kda_safe_gate: bailing_hybrid",
    "linear_allow_neg_eigval: olmo_hybrid",
    "linear_norm_eps: olmo_hybrid",
    "logits_soft_cap: recurrent_gemma",
    "mamba_norm_before_gate: falcon_h1",
    "mixer_rms_eps: falcon_mamba",
    "n_shared_experts: nemotron_h",
    "no_rope_layers: llama4_text smollm3",
    "no_rope_on_full_attention: afmoe cohere2 cohere2_moe exaone4 exaone_moe",
    "norm_topk_prob: deepseek_v2",
    "num_nextn_predict_layers: bailing_hybrid",
    "output_logit_soft_cap: xlstm",
    "parallel_attn: falcon",
    "qk_norm_without_scale: nanochat",
    "residual_behind_norm: minimax",
    "residual_in_fp32: falcon_mamba mamba mamba2 nemotron_h",
    "rope_parameters.llama_4_scaling_beta: ministral3",
    "rope_parameters.sliding_attention: gemma3_text mellum",
    "router_jitter_noise: phimoe",
    "scale_attn_by_inverse_layer_idx: gpt-sw3 gpt2",
    "scale_attn_weights: gpt-sw3 gpt2 gpt_bigcode",
    "shared_expert_combination_strategy: cohere2_moe",
    "sinusoidal_positions: ctrl xglm",
    "tie_word_embeddings: bailing_hybrid kimi_linear nemotron_h xlstm",
    "use_bidirectional_attention: gemma3_text",
    "use_l2warp: rwkv7",
    "use_parallel_residual: gpt_neox",
    "use_qk_norm: cohere llama4_text",
];

#[test]
fn every_key_of_every_type_is_carried_irrelevant_or_not_carried() {
    let mut lost: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows().0.iter().filter(|row| !row.is_bare && row.config.get("text_config").is_none()) {
        let Ok(imported) = hf::import(&row.config.to_string(), &Asked::named("x")) else { continue };
        let named: BTreeSet<&str> = imported.keys.iter().map(|key| key.name.as_str()).collect();
        for key in row.config.as_object().expect("an object").keys() {
            assert!(named.contains(key.as_str()), "row {}: {key} vanished", row.at);
        }
        for (key, _) in &imported.recipe.not_carried {
            lost.entry(key.clone()).or_default().insert(row.model_type.clone());
        }
    }
    let shown: Vec<String> = lost
        .iter()
        .map(|(key, types)| format!("{key}: {}", types.iter().cloned().collect::<Vec<_>>().join(" ")))
        .collect();
    assert_eq!(shown, LOST);
}
