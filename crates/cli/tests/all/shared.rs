//! Blocks that layers share, and other kinds of models that are read from configs: counted once, run at every use, refused where no
//! engine runs them.

use crate::common::{folder, json, run, scratch};
use recipe::import::hf::{self, Asked};
use serde_json::{Value, json};

/// A recipe of a class's own defaults with these keys.
fn imported(model_type: &str, more: Value) -> String {
    let mut config = json!({ "model_type": model_type });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    let recipe = hf::import(&config.to_string(), &Asked::named(model_type)).unwrap().recipe;
    scratch(&format!("shared-{model_type}.toml"), &recipe.to_toml()).display().to_string()
}

fn fit(file: &str, more: &str) -> Value {
    json(&format!("fit {file} --on 8xH200 --engine fsdp2 --zero 3 --mbs 1 --seq 1024 --levers no {more}"))
}

const HYBRID: [&str; 4] = ["mamba", "hybrid", "mamba", "hybrid"];

fn zamba2() -> String {
    imported("zamba2", json!({ "layers_block_type": HYBRID, "num_hidden_layers": 4 }))
}

#[test]
fn a_rank_holds_what_the_recipe_counts() {
    for file in [
        zamba2(),
        imported("zamba", json!({ "layers_block_type": HYBRID, "num_hidden_layers": 4 })),
        imported("rwkv7", json!({ "num_hidden_layers": 3 })),
        imported("olmo_hybrid", json!({ "num_hidden_layers": 4 })),
        imported("bailing_hybrid", json!({ "num_hidden_layers": 6, "num_experts": 16 })),
    ] {
        let counted = json(&format!("params {file}"))["total"].as_u64().unwrap();
        let fit = fit(&file, "");
        assert_eq!(fit["rank_classes"][0]["params"].as_u64(), Some(counted), "{file}");
        assert!(fit["step"]["seconds"].as_f64().unwrap() > 0.0, "{file}");
    }
}

/// A block of each layer's own computes what a shared one does, and is held as often as there are layers.
#[test]
fn shared_weights_are_held_once_and_run_at_every_use() {
    let text = std::fs::read_to_string(zamba2()).unwrap();
    let apart = text.replace("[shared]\n", "[shared]\nblocks = 2\n");
    let [one, two] = [("together", text), ("apart", apart)].map(|(name, text)| {
        let file = scratch(&format!("shared-{name}.toml"), &text).display().to_string();
        let fit = json(&format!("fit {file} --on 1xH200 --engine fsdp2 --zero 3 --mbs 1 --seq 1024 --levers no"));
        let class = fit["rank_classes"][0].clone();
        let line = class["lines"].as_array().unwrap().iter().find(|line| line["line"] == "activations").cloned();
        (
            class["params"].as_u64().unwrap(),
            line.unwrap()["bytes"].as_u64().unwrap(),
            fit["step"]["model_flops"].clone(),
        )
    });
    // Two norms, projections of queries, keys and values, the one out, and three of the feed-forward part.
    let block = 5120 + 2560 + 3 * 5120 * 5120 + 2560 * 5120 + 3 * 2560 * 10_240;
    assert_eq!(two.0, one.0 + block);
    assert_eq!((one.1, one.2), (two.1, two.2));
}

#[test]
fn what_no_engine_runs_is_refused_by_name() {
    let zamba2 = zamba2();
    let rwkv7 = imported("rwkv7", json!({ "num_hidden_layers": 4 }));
    for (line, rule, words) in [
        (format!("{zamba2} --pp 2 --engine fsdp2"), "shared/stage", "pp=2 would part layers from the block they share"),
        (format!("{zamba2} --tp 2 --engine fsdp2"), "shared/whole", "tp=2 would cut a block that nobody sums"),
        (format!("{zamba2} --engine megatron"), "megatron/linear", "Megatron-Core has no shared block"),
        (format!("{zamba2} --engine torchtitan"), "torchtitan/no-block", "torchtitan has no shared block"),
        (format!("{rwkv7} --pp 2 --engine fsdp2"), "linear/first-values", "every layer reads the values of the first"),
        (format!("{rwkv7} --tp 3 --engine fsdp2"), "linear/heads-over-tp", "32 heads are not a multiple of 3"),
    ] {
        let ran = run(&format!("check {line}"));
        let text = ran.stderr.replace("\n  ", " ");
        assert!(ran.code == 1 && text.contains(&format!("[{rule}]")) && text.contains(words), "{line}: {text}");
    }
    let refused = run(&format!("fit {zamba2} --on 8xH200 --engine deepspeed --mbs 1"));
    assert!(refused.stderr.contains("shared blocks under DeepSpeed"), "{}", refused.stderr);
    let refused = run(&format!("rehearse {zamba2}"));
    assert!(refused.stderr.contains("the runtime does not compute `shared`"), "{}", refused.stderr);
}

#[test]
fn launch_tells_the_program_of_shared_blocks_once() {
    let folder = folder("shared-launch").join("out");
    let line = format!("launch {} --on 8xH200 --engine fsdp2 --zero 3 --mbs 1 --seq 1024", zamba2());
    let ran = run(&format!("{line} --out {}", folder.display()));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let plan: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("sharding.json")).unwrap()).unwrap();
    let paths: Vec<&str> =
        plan["tensors"].as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert_eq!(paths.iter().filter(|path| path.ends_with(".fc1.weight")).collect::<Vec<_>>(), [&"shared.0.fc1.weight"]);
    assert_eq!(paths.iter().filter(|path| path.ends_with("shared.join.weight")).count(), 2);
    assert_eq!(plan["model"]["shared"]["adapted"], json!(["fc1"]));
}
