//! Every key of a config is carried, irrelevant to training or not carried, and never lost. Configs:
//! `data/truth/hf_*.jsonl`, and `data/truth/configs` as their authors publish them.

use recipe::import::hf::{self, Asked, Fate, Imported};
use recipe::{Positions, Recipe, Scaling};
use serde_json::Value;
use std::collections::BTreeSet;

fn truth(file: &str) -> String {
    let path = format!("{}/../../data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn published(name: &str) -> Imported {
    let text = truth(&format!("configs/{name}.json"));
    hf::import(&text, &Asked::named(name)).unwrap_or_else(|f| panic!("{name}: {f:#?}"))
}

fn lost(imported: &Imported) -> Vec<&str> {
    imported.recipe.not_carried.iter().map(|(key, _)| key.as_str()).collect()
}

/// Each key of the config once, and the recipe holds those that are not carried.
fn is_whole(config: &Value, imported: &Imported) {
    let named: BTreeSet<&str> = imported.keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(named.len(), imported.keys.len());
    for key in config.as_object().expect("an object").keys() {
        assert!(named.contains(key.as_str()), "{key} vanished");
    }
    let not_carried: Vec<&str> =
        imported.keys.iter().filter(|k| k.fate == Fate::NotCarried).map(|k| k.name.as_str()).collect();
    assert_eq!(not_carried, lost(imported));
    let unexplained = imported.keys.iter().find(|k| matches!(k.fate, Fate::Irrelevant(why) if why.is_empty()));
    assert!(unexplained.is_none(), "{:?} is irrelevant without a reason", unexplained.map(|key| &key.name));
}

#[test]
fn every_key_of_every_measured_config_is_accounted_for() {
    let mut all = BTreeSet::new();
    for file in ["hf_counts.jsonl", "hf_matrix.jsonl"] {
        for line in truth(file).lines() {
            let row: Value = serde_json::from_str(&line.replace("Infinity", "null")).expect("a row");
            let config = row["config"].clone();
            let Ok(imported) = hf::import(&config.to_string(), &Asked::default()) else { continue };
            is_whole(&config, &imported);
            all.extend(imported.recipe.not_carried.iter().map(|(key, value)| format!("{key} = {value}")));
        }
    }
    // Keys that contradict another one are not carried either: the matrix has some on purpose.
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(
        all,
        [
            "attention_head_dim = 64",
            "hybrid_override_pattern = \"MMMMMM\"",
            "mamba_norm_before_gate = true",
            "moe_layer_freq = 2",
            "n_shared_experts = 3",
            "num_experts = 3",
            "num_experts = 4",
            "num_experts = 6",
            "num_hidden_layers = 99",
            "num_local_experts = 16",
            "num_local_experts = 5",
            "num_local_experts = 6",
            "residual_in_fp32 = true",
            "tie_word_embeddings = true",
        ]
    );
}

/// Counts: transformers 5.12.1 on the meta device.
#[test]
fn published_configs_count_exactly_and_lose_nothing() {
    for (name, parameters) in [
        ("Bamba-9B-v1", 9_780_235_392),
        ("DeepSeek-V2-Lite", 15_706_484_224),
        ("DeepSeek-V3", 671_026_404_352),
        ("Falcon-H1-0.5B-Base", 521_411_104),
        ("GLM-4.5-Air", 106_852_245_504),
        ("Jamba-v0.1", 51_570_323_328),
        ("Llama-3.1-8B", 8_030_261_248),
        ("Mixtral-8x7B-v0.1", 46_702_792_704),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B", 31_577_937_344),
        ("OLMoE-1B-7B-0924", 6_919_161_856),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen3-Next-80B-A3B", 79_674_391_296),
        ("gpt-oss-20b", 20_914_757_184),
        ("granite-4.0-h-tiny", 6_939_037_248),
    ] {
        let imported = published(name);
        let text = truth(&format!("configs/{name}.json")).replace("Infinity", "null");
        is_whole(&serde_json::from_str(&text).expect("JSON"), &imported);
        assert_eq!(imported.recipe.counts().all.total, parameters, "{name}");
        assert!(lost(&imported).is_empty(), "{name}");
        assert_eq!(imported.recipe.name, name);
        let again = Recipe::parse(&imported.recipe.to_toml()).unwrap_or_else(|f| panic!("{name}: {f:#?}"));
        assert_eq!(again, imported.recipe, "{name} does not read back");
    }
}

#[test]
fn what_defines_a_model_is_carried() {
    let rope = |recipe: &Recipe| match recipe.positions {
        Positions::Rope(rope) => rope,
        other => panic!("{}: {other:?}", recipe.name.raw()),
    };
    let llama = published("Llama-3.1-8B").recipe;
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
    assert_eq!((rope(&llama).scaling, llama.norm_eps, llama.init_std), (Some(scaling), 1e-5, Some(0.02)));
    assert_eq!(rope(&published("Qwen3-Next-80B-A3B").recipe).fraction, 0.25);
    assert_eq!(rope(&published("GLM-4.5-Air").recipe).fraction, 0.5);
    assert_eq!(rope(&published("Bamba-9B-v1").recipe).fraction, 0.5);
    let router = |name: &str| published(name).recipe.moe.expect("experts").router;
    assert_eq!(router("Mixtral-8x7B-v0.1").aux_loss, Some(0.02));
    assert_eq!((router("Qwen3-30B-A3B").aux_loss, router("Qwen3-30B-A3B").normalize), (Some(0.001), true));
    assert_eq!((router("OLMoE-1B-7B-0924").aux_loss, router("OLMoE-1B-7B-0924").normalize), (Some(0.01), false));
    assert!(!router("Jamba-v0.1").normalize);
    let v3 = router("DeepSeek-V3");
    assert_eq!((v3.scaling, v3.groups, v3.group_top_k, v3.normalize), (2.5, 8, 4, true));
    let yarn = rope(&published("DeepSeek-V3").recipe).scaling;
    assert!(matches!(yarn, Some(Scaling::Yarn(y)) if y.mscale_all_dim == Some(1.0) && y.factor == 40.0));
    assert!(matches!(rope(&published("gpt-oss-20b").recipe).scaling, Some(Scaling::Yarn(y)) if !y.rounds));
    assert_eq!(router("NVIDIA-Nemotron-3-Nano-30B-A3B").scaling, 2.5);
    let granite = published("granite-4.0-h-tiny").recipe;
    assert_eq!(granite.positions, Positions::None);
    assert_eq!(granite.multipliers.set(), ["embedding", "residual", "attention", "logits"]);
    assert_eq!(granite.multipliers.logits, 1.0 / 6.0);
    let falcon = published("Falcon-H1-0.5B-Base").recipe.multipliers;
    assert_eq!((falcon.ssm[3], falcon.mlp[1], falcon.logits), (0.5, 0.5859375, 0.0390625));
}

#[test]
fn a_key_that_nobody_knows_is_never_lost() {
    for line in truth("hf_counts.jsonl").lines() {
        let mut row: Value = serde_json::from_str(&line.replace("Infinity", "null")).expect("a row");
        if row["model_type"] == "glm4_moe" {
            row["config"]["head_dim"] = 128.into();
        }
        row["config"]["brand_new"] = 3.into();
        row["config"]["rope_parameters"]["brand_new"] = true.into();
        let imported = hf::import(&row["config"].to_string(), &Asked::default()).expect("a recipe");
        let lost = lost(&imported);
        assert!(lost.contains(&"brand_new"), "{}: {lost:?}", row["model_type"]);
        if imported.recipe.positions.rope().is_some() {
            assert!(lost.contains(&"rope_parameters.brand_new"), "{}: {lost:?}", row["model_type"]);
        }
        assert!(imported.recipe.to_toml().contains("\n\"brand_new\" = \"3\"\n"));
    }
    // A scaling that no recipe says goes with its value.
    let dynamic = truth("configs/Llama-3.1-8B.json").replace("\"llama3\"", "\"dynamic\"");
    assert_eq!(lost(&hf::import(&dynamic, &Asked::default()).expect("a recipe")), ["rope_scaling"]);
    let activation = truth("configs/Llama-3.1-8B.json").replace("\"silu\"", "\"relu\"");
    assert_eq!(lost(&hf::import(&activation, &Asked::default()).expect("a recipe")), ["hidden_act"]);
}

#[test]
fn the_training_sequence_is_asked_for_or_comes_from_a_stated_rule() {
    let of = |name: &str, sequence| {
        let asked = Asked { sequence, ..Asked::default() };
        hf::import(&truth(&format!("configs/{name}.json")), &asked).expect("a recipe").recipe
    };
    for (name, asked, sequence, rule) in [
        ("Llama-3.1-8B", None, 8192, "sequence: original length of the rotary scaling"),
        ("DeepSeek-V3", None, 4096, "sequence: original length of the rotary scaling"),
        ("Qwen3-30B-A3B", None, 8192, "sequence: 8192 of max_position_embeddings 40960"),
        ("OLMoE-1B-7B-0924", None, 4096, "sequence: max_position_embeddings"),
        ("Llama-3.1-8B", Some(32_768), 32_768, "sequence: as asked"),
    ] {
        let recipe = of(name, asked);
        assert_eq!(recipe.sequence, sequence, "{name}");
        assert!(recipe.source.raw().ends_with(rule), "{:?}", recipe.source);
    }
}

#[test]
fn names_come_from_the_user_the_config_its_place_or_its_size() {
    let text = truth("configs/Llama-3.1-8B.json");
    let named = text.replacen('{', "{\"_name_or_path\": \"meta-llama/Llama-3.1-8B\",", 1);
    let name = |text: &str, asked: Asked| hf::import(text, &asked).expect("a recipe").recipe.name;
    let place = Asked { place: Some("my-model"), ..Asked::default() };
    assert_eq!(name(&named, Asked { name: Some("mine"), ..place }), "mine");
    assert_eq!(name(&named, place), "Llama-3.1-8B");
    assert_eq!(name(&text, place), "my-model");
    assert_eq!(name(&text, Asked::default()), "llama-8b");
    assert_eq!(name(&truth("configs/Falcon-H1-0.5B-Base.json"), Asked::default()), "falcon_h1-521m");
}
