//! Readers under hostile input: no panic, no hang, a finding instead.

use proptest::prelude::*;
use recipe::import::{hf, megatron_args};
use recipe::{Pattern, Recipe, builtin, megatron};

/// Pieces that mean something to one of the readers, and pieces that should not.
const PIECES: &[&str] = &[
    "pattern",
    "depth",
    "hidden",
    "[moe]",
    "[attention]",
    "[features.mtp]",
    "=",
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "\n",
    "x999999999999",
    "999999999999999999999",
    "-1",
    "0",
    "1e400",
    "true",
    "null",
    "AEMR",
    "|",
    "/",
    "*",
    "+",
    "D",
    "\\u0000",
    "\u{7f}",
    "é",
    "😀",
    "#",
    ".",
    ",",
    "--hidden-size",
    "--num-layers",
    "model_type",
    "\"llama\"",
    "hidden_size",
    "inf",
];

/// A text with random cuts, insertions and doublings.
fn mangled(text: &'static str) -> impl Strategy<Value = String> {
    let edit = (any::<prop::sample::Index>(), 0usize..40, prop::sample::select(PIECES), 0u8..3);
    prop::collection::vec(edit, 1..8).prop_map(move |edits| {
        let mut chars: Vec<char> = text.chars().collect();
        for (at, length, piece, kind) in edits {
            let at = at.index(chars.len() + 1);
            let end = (at + length).min(chars.len());
            match kind {
                0 => drop(chars.splice(at..end, piece.chars())),
                1 => drop(chars.splice(at..at, piece.chars())),
                _ => {
                    let again: Vec<char> = chars[at..end].to_vec();
                    drop(chars.splice(at..at, again));
                }
            }
        }
        chars.into_iter().collect()
    })
}

fn builtin_texts() -> impl Strategy<Value = String> {
    let texts: Vec<&'static str> = builtin::RECIPES.iter().map(|(_, text)| *text).collect();
    prop::sample::select(texts).prop_flat_map(mangled)
}

const CONFIGS: &[&str] = &[
    r#"{"model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}"#,
    r#"{"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*E", "hidden_size": 64, "tie_word_embeddings": true}"#,
    r#"{"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}"#,
    r#"{"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_dt_rank": "auto"}"#,
    r#"{"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"], "num_hidden_layers": 2, "num_local_experts": 0}"#,
];

const ARGUMENTS: &[&str] = &[
    "--hybrid-layer-pattern 'M-M*|M-*-/*-/*-' --hidden-size 256 --num-attention-heads 8 --position-embedding-type rope \
    --group-query-attention --num-query-groups 2 --vocab-size 1024 --seq-length 4096 --moe-layer-freq '([0]*1+[1]*3)' \
    --num-experts 8 --mamba-num-heads 8 --pipeline-model-parallel-size 2 --recompute-granularity selective",
    "--num-layers 8 --hidden-size 256 --num-attention-heads 8 --vocab-size 1024 --seq-length 4096 --swiglu \
    --normalization RMSNorm --use-rotary-position-embeddings --experimental-attention-variant gated_delta_net \
    --linear-attention-freq '([1]*3+[0])*2' --num-experts 8 --pipeline-model-parallel-size 2 --use-megatron-fsdp \
    --decoder-first-pipeline-num-layers 2 --num-virtual-stages-per-pipeline-rank 2",
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --vocab-size 1024 --seq-length 64 --disable-bias-linear \
    --normalization RMSNorm --max-position-embeddings 64 --multi-latent-attention --q-lora-rank 32 --qk-layernorm \
    --experimental-attention-variant dsa --dsa-indexer-n-heads 4 --dsa-indexer-head-dim 16 --dsa-indexer-topk 8",
];

/// What is mangled is whole before.
#[test]
fn unmangled_configs_are_imported() {
    for text in CONFIGS {
        usable(&hf::import(text, &hf::Asked::named("whole")).unwrap_or_else(|f| panic!("{text}: {f:#?}")).recipe);
    }
}

/// What is mangled is whole before.
#[test]
fn unmangled_argument_lists_are_imported() {
    for text in ARGUMENTS {
        let imported = megatron_args::import(text, "whole").unwrap_or_else(|f| panic!("{text}: {f:#?}"));
        usable(&imported.recipe);
    }
}

/// `PROPTEST_RNG_SEED` and `PROPTEST_CASES` explore further.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if usual.cases == 256 { 1500 } else { usual.cases };
    ProptestConfig { cases, ..usual }
}

/// Whatever was read is consistent enough to be counted and written.
fn usable(recipe: &Recipe) {
    let counted = recipe.counts().all.total;
    let tensors: u64 = recipe.tensors().iter().map(|t| t.elements()).sum();
    assert_eq!(counted, tensors);
    let again = Recipe::parse(&recipe.to_toml()).unwrap_or_else(|f| panic!("{f:#?}\n{}", recipe.to_toml()));
    assert_eq!(again.counts().all.total, counted);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn recipes_are_read_or_refused(text in builtin_texts()) {
        match Recipe::parse(&text) {
            Ok(recipe) => usable(&recipe),
            Err(findings) => {
                prop_assert!(!findings.is_empty());
                findings.iter().for_each(|f| drop(diag::render(f, Some(("fuzz", &text)))));
            }
        }
    }

    #[test]
    fn bytes_are_no_recipe(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        prop_assert!(Recipe::parse(&text).is_err());
        prop_assert!(hf::import(&text, &hf::Asked::named("fuzz")).is_err());
        prop_assert!(megatron_args::import(&text, "fuzz").is_err());
        // A few letters may be a pattern.
        let _ = Pattern::parse(&text);
        let _ = megatron::read(&text);
    }

    #[test]
    fn patterns_are_read_or_refused(text in "[AEMRGF*+D|/x0-9()\\[\\] -]{0,40}") {
        if let Ok(pattern) = Pattern::parse(&text) {
            prop_assert_eq!(Pattern::parse(&pattern.to_string()).unwrap(), pattern);
        }
        let _ = megatron::read(&text);
        let _ = megatron::read_layers(&text);
    }

    #[test]
    fn configs_are_imported_or_refused(text in prop::sample::select(CONFIGS).prop_flat_map(mangled)) {
        match hf::import(&text, &hf::Asked::named("fuzz")) {
            Ok(imported) => usable(&imported.recipe),
            Err(findings) => prop_assert!(!findings.is_empty()),
        }
    }

    #[test]
    fn argument_lists_are_imported_or_refused(text in prop::sample::select(ARGUMENTS).prop_flat_map(mangled)) {
        match megatron_args::import(&text, "fuzz") {
            Ok(imported) => usable(&imported.recipe),
            Err(findings) => prop_assert!(!findings.is_empty()),
        }
    }
}

/// Sizes no machine could hold are refused at once, by name.
#[test]
fn hostile_sizes_are_refused() {
    let text = builtin::RECIPES[0].1;
    for (from, to, rule) in [
        ("depth = 52", "depth = 1000000000", "recipe/limit"),
        ("experts = 16", "experts = 1000000", "recipe/limit"),
        ("vocab = 65536", "vocab = 99999999999999999999999999", "recipe/limit"),
        ("hidden = 3584", "hidden = 0", "recipe/limit"),
        ("heads = 56", "heads = -56", "recipe/limit"),
        ("pattern = \"AEMEAEMEAEMR\"", "pattern = \"Ax60000\"", "recipe/limit"),
        ("pattern = \"AEMEAEMEAEMR\"", "pattern = \"(AE)x9999999\"", "pattern/syntax"),
        ("ffn = 896", "ffn = 16777216\nlatent = 16777216", "recipe/limit"),
    ] {
        let hostile = text.replacen(from, to, 1);
        let hostile = if rule == "recipe/limit" && from == "ffn = 896" {
            hostile.replacen("experts = 16", "experts = 65536", 1)
        } else {
            hostile
        };
        let findings = Recipe::parse(&hostile).expect_err(to);
        assert!(findings.iter().any(|f| f.rule == rule), "{to}: {findings:#?}");
    }
    let deep = "a = ".to_string() + &"[".repeat(100_000);
    assert!(Recipe::parse(&deep).is_err());
    let nested = "{\"model_type\":".to_string() + &"[".repeat(100_000);
    assert!(hf::import(&nested, &hf::Asked::named("x")).is_err());
    let config = r#"{"model_type": "llama", "num_hidden_layers": 1000000000}"#;
    assert!(hf::import(config, &hf::Asked::named("x")).unwrap_err()[0].message.contains("more than"));
    assert!(Recipe::parse(&" ".repeat(9 << 20)).unwrap_err()[0].message.contains("bytes"));
}

/// Found by changing configs at random: a factor that no width holds, and keys of a text model that sort behind those of
/// the model around it.
#[test]
fn factors_are_bounded_and_keys_that_are_not_carried_are_in_order() {
    let asked = hf::Asked::named("fuzz");
    for factor in ["1e308", "1e17", "16777217.0"] {
        let config = format!("{{\"model_type\": \"xlstm\", \"ffn_proj_factor\": {factor}}}");
        let findings = hf::import(&config, &asked).unwrap_err();
        assert!(findings.iter().all(|finding| !finding.message.is_empty()), "{findings:?}");
    }
    let config = r#"{"model_type": "of_many", "audio_config": {}, "vision_config": {},
        "text_config": {"model_type": "qwen3", "of_nobody": 1}}"#;
    let recipe = hf::import(config, &asked).unwrap().recipe;
    assert_eq!(recipe.not_carried.len(), 3, "{:?}", recipe.not_carried);
    assert_eq!(Recipe::parse(&recipe.to_toml()).unwrap().to_toml(), recipe.to_toml());
}
