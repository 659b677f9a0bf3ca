//! What Megatron-Bridge's own performance recipes say of a row that its tables print: dispatcher, graphs, overlap
//! and recompute, by release, model, device, format and layout (`data/truth/bridge_recipes.jsonl`, from the
//! repository's files at the tag of each release). A release's table is a run of these recipes; what a row says
//! itself stands above them.
//!
//! Layers whose activations a recipe keeps on the host are named there and not priced: they travel beside compute.

use super::super::device;
use super::super::precision::Precision;
use super::super::words::plain;
use case::options::{Format, Scaling};
use serde::Deserialize;
use serde_json::Value;
use std::sync::LazyLock;

/// One recipe of one or more releases.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recipe {
    releases: Vec<String>,
    model: String,
    gpu: String,
    precision: String,
    count: u64,
    #[serde(default = "one")]
    tp: u64,
    #[serde(default = "one")]
    cp: u64,
    #[serde(default = "one")]
    pp: u64,
    #[serde(default = "one")]
    vpp: u64,
    #[serde(default = "one")]
    ep: u64,
    micro: u64,
    global: u64,
    /// Whether Megatron-FSDP shards the model.
    #[serde(default)]
    fsdp: bool,
    /// Options in Megatron's words.
    pub args: String,
    /// What is computed again: `none`, `selective:a,b`, or `full:n`, n layers of every stage.
    pub recompute: Option<String>,
    /// Layers whose activations lie on the host.
    #[serde(default)]
    offloaded_layers: u64,
}

fn one() -> u64 {
    1
}

static RECIPES: LazyLock<Vec<Recipe>> = LazyLock::new(|| {
    let text = include_str!("../../../../../data/truth/bridge_recipes.jsonl");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
});

/// Models by the words their tables have for them: the recipe's name, and words that must all stand in the row's.
const MODELS: [(&str, &[&str]); 15] = [
    ("llama3_8b", &["llama3", "8b"]),
    ("llama3_70b", &["llama3", "70b"]),
    ("llama31_405b", &["llama31", "405b"]),
    ("deepseek_v3", &["deepseekv3"]),
    ("gpt_oss_120b", &["gptoss120b"]),
    ("gpt_oss_20b", &["gptoss20b"]),
    ("kimi_k2", &["kimik2"]),
    ("nemotron_3_super", &["nemotron3super"]),
    ("nemotron_3_nano", &["nemotron3nano"]),
    ("nemotronh_56b", &["nemotronh", "56b"]),
    ("qwen3_235b_a22b", &["qwen3", "235b"]),
    ("qwen3_30b_a3b", &["qwen3", "30b"]),
    ("qwen3_next_80b_a3b", &["qwen3next", "80b"]),
    ("llama3_8b", &["llama318b"]),
    ("llama3_70b", &["llama3170b"]),
];

/// The recipe of a row: that of its very layout; otherwise the one that all of its release's for the same model,
/// device, format and degrees agree on, or all without the degrees. None where they differ, or there is none.
pub(super) fn of(row: &Value) -> Option<Recipe> {
    let name = plain(row["framework"]["name"].as_str()?);
    if !name.contains("megatronbridge") || row["kind"].as_str().is_some_and(|kind| !kind.starts_with("pre")) {
        return None;
    }
    let release = release(row["framework"]["version"].as_str()?)?;
    let model = plain(row["model"]["name"].as_str()?);
    let (model, _) = MODELS.iter().find(|(_, words)| words.iter().all(|word| model.contains(word)))?;
    let gpu = device::name(row).ok()?;
    let precision = precisions(&Precision::of(row).ok()?);
    let all: Vec<&Recipe> = RECIPES
        .iter()
        .filter(|r| r.releases.contains(&release) && r.model == *model && r.gpu == gpu)
        .filter(|r| precision.contains(&r.precision.as_str()))
        .collect();
    let (layout, batch) = (&row["layout"], &row["batch"]);
    let said = |object: &Value, key: &str| object[key].as_u64().unwrap_or(1).max(1);
    let degrees = |r: &Recipe| [r.tp, r.cp, r.pp, r.ep] == ["tp", "cp", "pp", "ep"].map(|key| said(layout, key));
    let whole = |r: &Recipe| {
        degrees(r)
            && r.vpp == said(layout, "vpp")
            && r.count == said(&row["hardware"], "count")
            && [r.micro, r.global] == ["micro", "global"].map(|key| said(batch, key))
            && r.fsdp == (layout["fsdp"].as_u64().unwrap_or(0) > 1)
    };
    agreed(all.iter().copied().filter(|r| whole(r)))
        .or_else(|| agreed(all.iter().copied().filter(|r| degrees(r))))
        .or_else(|| agreed(all.iter().copied()))
}

/// The one that all of them agree with in what they say of options.
fn agreed<'a>(mut recipes: impl Iterator<Item = &'a Recipe>) -> Option<Recipe> {
    let first = recipes.next()?;
    let agrees = |other: &Recipe| other.args == first.args && other.recompute == first.recompute;
    recipes.all(agrees).then(|| first.clone())
}

/// `26.04.01` of `NeMo 26.04.01`.
fn release(version: &str) -> Option<String> {
    let is_release = |word: &&str| word.len() >= 5 && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    version.split(|c: char| !c.is_ascii_digit() && c != '.').find(is_release).map(str::to_string)
}

/// Recipes' words for a format. Tables of old call current scaling `FP8`, and name the hardware's block scales
/// by how fine they are.
fn precisions(precision: &Precision) -> &'static [&'static str] {
    match (precision.format, precision.scaling) {
        (Format::Mxfp8, _) => &["fp8_mx"],
        (Format::Nvfp4, _) => &["nvfp4"],
        (Format::Fp8, Some(Scaling::Delayed)) => &["fp8_ds"],
        (Format::Fp8, Some(Scaling::Blockwise)) => &["fp8_sc", "fp8sc"],
        (Format::Fp8, _) => &["fp8_cs"],
        _ => &["bf16"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The words of every recipe are words that Megatron's vocabulary has.
    #[test]
    fn recipes_are_said_in_words_that_are_read() {
        let lines = include_str!("../../../../../data/truth/bridge_recipes.jsonl").lines().count();
        assert!(RECIPES.len() == lines && lines > 600);
        for recipe in RECIPES.iter() {
            let model = recipe::builtin::find("qwen3-30b-a3b").unwrap();
            let mut options = case::Options::of(Some(layout::Engine::Megatron), &model);
            let words: Vec<String> = recipe.args.split_whitespace().map(str::to_string).collect();
            let read = case::words::read_priced(Some(layout::Engine::Megatron), &words, &mut options);
            assert!(read.is_ok(), "{recipe:?}: {read:?}");
        }
    }

    #[test]
    fn a_row_finds_the_recipe_of_its_layout_and_not_its_neighbour() {
        let row = |release: &str, gpu: &str, ep: u64| {
            json!({
                "framework": { "name": "megatron-bridge", "version": format!("NeMo {release}") }, "kind": "pretrain",
                "model": { "name": "Qwen3-235B-A22B" }, "precision": "bf16",
                "hardware": { "gpu": gpu, "count": 256 }, "layout": { "tp": 2, "pp": 8, "vpp": 4, "ep": ep },
                "batch": { "micro": 1, "global": 8192 },
            })
        };
        let found = of(&row("26.02", "H100-80GB-HBM3", 32)).unwrap();
        assert!(found.args.contains("alltoall") && found.args.contains("--overlap-moe"), "{found:?}");
        assert_eq!(of(&row("24.01", "H100", 32)), None);
        let mut oss = row("26.06", "GB200", 64);
        (oss["model"], oss["precision"]) = (json!({ "name": "GPT-OSS 120B" }), json!("MXFP8"));
        oss["hardware"]["count"] = json!(64);
        oss["layout"] = json!({ "ep": 64 });
        oss["batch"] = json!({ "micro": 4, "global": 1280 });
        assert_eq!(of(&oss).unwrap().model, "gpt_oss_120b");
        assert_eq!(of(&row("26.02", "A100", 32)), None);
    }

    #[test]
    fn releases_are_read_out_of_versions() {
        assert_eq!(release("NeMo 26.04.01").as_deref(), Some("26.04.01"));
        assert_eq!(release("26.02").as_deref(), Some("26.02"));
        assert_eq!(release("main 2026-08"), None);
    }
}
