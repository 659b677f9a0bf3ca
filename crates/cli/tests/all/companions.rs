//! Features of the texts' companions: prediction depths that share a stack (FastMTP), sparse layers that read another
//! layer's choice (the index cache), fused indexers, Mamba without a convolution, several residual streams (hyper-connections), layers
//! that take some tokens only (mixture of depths), tables of n-grams inside the depth (engram). Counted, priced, placed, told to Megatron, refused where nobody runs them.

use crate::common::{json, run, scratch};
use recipe::features::Switch;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mhc::Mhc;
use recipe::{Recipe, builtin};
use serde_json::Value;

fn written(name: &str, recipe: &Recipe) -> String {
    scratch(&format!("companion-{name}.toml"), &recipe.to_toml()).display().to_string()
}

fn with(name: &str, change: impl Fn(&mut Recipe)) -> Recipe {
    let mut recipe = builtin::find(name).unwrap();
    change(&mut recipe);
    recipe
}

fn fitted(file: &str) -> Value {
    json(&format!("fit {file} --on 8xH200 --engine megatron --ep 4 --etp 1 --levers no"))
}

fn peak(fit: &Value) -> u64 {
    fit["rank_classes"][0]["allocated_peak_bytes"].as_u64().unwrap()
}

fn step(fit: &Value) -> f64 {
    fit["step"]["seconds"].as_f64().unwrap_or_else(|| panic!("{}", fit["step"]))
}

/// What Megatron is told: every flag with its values.
fn told(file: &str, more: &str) -> Vec<(String, String)> {
    let record = json(&format!(
        "launch {file} --on 8xH200 --engine megatron --ep 4 --etp 1 --allow-seams --override-memory {more}"
    ));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let arguments = record["arguments"].as_array().unwrap_or_else(|| panic!("{record}")).iter();
    let values = |all: &Value| all.as_array().unwrap().iter().map(text).collect::<Vec<_>>().join(" ");
    arguments.map(|argument| (text(&argument["flag"]), values(&argument["values"]))).collect()
}

#[test]
fn prediction_depths_may_share_a_stack() {
    let own = with("nam56r", |recipe| recipe.features.mtp.as_mut().unwrap().on = true);
    let mut shared = own.clone();
    shared.features.mtp.as_mut().unwrap().value.shared = true;
    // One of two stacks is gone with its join and its norms; as much is computed.
    let of_suffix = |recipe: &Recipe| {
        let tensors = recipe.tensors();
        let is_suffix = |t: &&recipe::Tensor| t.path.starts_with("mtp.");
        tensors.iter().filter(is_suffix).map(|t| t.elements()).sum::<u64>()
    };
    assert_eq!(2 * of_suffix(&shared), of_suffix(&own));
    assert_eq!(Recipe::parse(&shared.to_toml()).unwrap(), shared);
    let (own_file, file) = (written("mtp-own", &own), written("mtp-shared", &shared));
    let (before, after) = (fitted(&own_file), fitted(&file));
    // Weights and gradients in 2 + 4 bytes, and their share of optimizer state.
    let less = peak(&before) - peak(&after);
    let gone = of_suffix(&shared) / 2;
    assert!(less > 5 * gone && less < 12 * gone, "{less} bytes less for {gone} parameters a rank");
    assert!(step(&after) <= step(&before) && step(&after) > 0.97 * step(&before));
    // Told, and read back.
    let repeats = |file: &str| told(file, "").iter().any(|(flag, _)| flag == "--mtp-use-repeated-layer");
    assert!(repeats(&file) && !repeats(&own_file));
    let list = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --vocab-size 1000 \
        --disable-bias-linear --normalization RMSNorm --position-embedding-type rope --mtp-num-layers 3";
    let read = |more: &str| {
        let imported = recipe::import::megatron_args::import(&format!("{list} {more}"), "x").unwrap();
        imported.recipe.features.mtp().unwrap().clone()
    };
    assert!(read("--mtp-use-repeated-layer").shared && !read("").shared);
    let ran = run(&format!("rehearse {file} --dp 2"));
    assert!(ran.code == 1 && ran.stderr.contains("features.mtp.shared"), "{}", ran.stderr);
}

#[test]
fn indexers_may_be_fused() {
    let own = with("nam56r", |recipe| {
        recipe.features.mla.as_mut().unwrap().on = true;
        recipe.features.dsa.as_mut().unwrap().on = true;
    });
    let mut even = own.clone();
    even.attention.as_mut().unwrap().heads = 64;
    let latent = &mut even.features.mla.as_mut().unwrap().value;
    (latent.kv_rank, latent.rope_dim) = (512, 64);
    let (own, even) = (written("dsa-heads", &own), written("dsa-even", &even));
    let fused = "--engine-args --dsa-kernel-backend=tilelang";
    let (before, after) = (fitted(&even), fitted(&format!("{even} {fused}")));
    // Nine layers keep 13 bytes for each score of 32 heads a rank without fused kernels, and read and write them many times.
    let scores = 32 * 4096 * 4096;
    assert!(peak(&before) - peak(&after) > 9 * 13 * scores, "{} {}", peak(&before), peak(&after));
    assert!(step(&before) > 2.0 * step(&after), "{} {}", step(&before), step(&after));
    let said = |more: &str| told(&even, more).into_iter().find(|(flag, _)| flag == "--dsa-kernel-backend");
    assert_eq!((said(""), said(fused).map(|(_, value)| value)), (None, Some("tilelang".to_string())));
    let loss = |more: &str| told(&even, more).iter().any(|(flag, _)| flag == "--dsa-indexer-use-sparse-loss");
    assert_eq!((loss(""), loss(fused)), (false, true));
    // Kernels that decline leave it to eager ones without a word.
    for (job, why) in [
        (format!("{own} --tp 2 --mode nemo_native"), "28 attention heads a rank"),
        ("llama3-8b".to_string(), "no layer has an indexer"),
    ] {
        let ran = run(&format!("fit {job} --on 8xH200 --engine megatron {fused}"));
        assert!(ran.code == 1 && ran.stderr.contains("[megatron/dsa-kernels]"), "{}", ran.stderr);
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
    let ran = run(&format!("fit llama3-8b --on 8xH200 --engine torchtitan {fused}"));
    assert!(ran.code == 1 && ran.stderr.contains("is a word of megatron"), "{}", ran.stderr);
}

#[test]
fn sparse_layers_may_read_the_last_choice() {
    let own = with("nam56r", |recipe| {
        recipe.features.mla.as_mut().unwrap().on = true;
        recipe.features.dsa.as_mut().unwrap().on = true;
    });
    // An indexer on the first of each three sparse layers, as the companion's index cache has it.
    let mut cached = own.clone();
    cached.features.dsa.as_mut().unwrap().value.reuse = vec![2, 3, 6, 7, 10, 11];
    let indexers = |recipe: &Recipe| recipe.tensors().iter().filter(|t| t.path.ends_with("indexer.wq.weight")).count();
    assert_eq!((indexers(&own), indexers(&cached)), (9, 3));
    assert_eq!(Recipe::parse(&cached.to_toml()).unwrap(), cached);
    let (own_file, file) = (written("dsa-own", &own), written("dsa-cached", &cached));
    let (before, after) = (fitted(&own_file), fitted(&file));
    assert!(peak(&after) < peak(&before) && step(&after) < step(&before), "{} {}", step(&before), step(&after));
    let job = format!("{file} --on 8xH200 --engine megatron --ep 4 --etp 1");
    let ran = run(&format!("check {job} --pp 2"));
    assert!(ran.code == 1 && ran.stderr.contains("[megatron/index-share]"), "{}", ran.stderr);
    // Attention stands at every fourth block, from the first: the second attention layer is the one to count from.
    let told = told(&file, "");
    let value = |flag: &str| told.iter().find(|(known, _)| known == flag).map(|(_, value)| value.as_str());
    assert_eq!((value("--dsa-indexer-topk-freq"), value("--dsa-indexer-skip-topk-offset")), (Some("16"), Some("5")));
    // Megatron has one frequency over all blocks, and none says that one layer alone reads a choice.
    let once = with("nam56r", |recipe| {
        recipe.features.mla.as_mut().unwrap().on = true;
        recipe.features.dsa.as_mut().unwrap().on = true;
        recipe.features.dsa.as_mut().unwrap().value.reuse = vec![2];
    });
    let once = written("dsa-once", &once);
    let ran = run(&format!("launch {once} --on 8xH200 --engine megatron --ep 4 --etp 1"));
    assert!(ran.code == 1 && ran.stderr.replace("\n  ", " ").contains("no frequency says these"), "{}", ran.stderr);
    let ran = run(&format!("rehearse {file} --dp 2"));
    assert!(ran.code == 1 && ran.stderr.contains("features.dsa.reuse"), "{}", ran.stderr);
    // A choice has to be made before it is read, and by a sparse layer.
    for (reuse, why) in [(vec![1], "no indexer stands before attention layer 1"), (vec![0], "is not sparse")] {
        cached.features.dsa.as_mut().unwrap().value.reuse = reuse;
        let findings = Recipe::parse(&cached.to_toml()).unwrap_err();
        assert!(findings.iter().any(|f| f.message.contains(why)), "{findings:?}");
    }
}

#[test]
fn a_choice_that_is_read_by_a_frequency_is_told_to_megatron() {
    let config = r#"{"model_type": "glm_moe_dsa", "num_hidden_layers": 8, "index_topk_freq": 3}"#;
    let imported = recipe::import::hf::import(config, &recipe::import::hf::Asked::named("glm")).unwrap().recipe;
    assert_eq!(imported.features.dsa().unwrap().reuse, [2, 3, 5, 6]);
    // As transformers 5.22 counts it (data/truth/hf_types.jsonl, with the same schedule).
    assert_eq!(imported.counts().all.total, 52_455_402_496);
    let file = written("glm", &imported);
    let told = told(&file, "--tp 8");
    let value = |flag: &str| told.iter().find(|(known, _)| known == flag).map(|(_, value)| value.clone());
    // Two blocks a layer: attention stands at 1, 3, 5, …, and the second layer is the one to count from.
    assert_eq!(
        (value("--dsa-indexer-topk-freq"), value("--dsa-indexer-skip-topk-offset")),
        (Some("6".into()), Some("3".into()))
    );
}

#[test]
fn mamba_may_have_no_convolution() {
    let plain = with("nemotron-h-8b", |_| {});
    let mut channels = 0;
    let mut bare = plain.clone();
    if let Some(Mamba::Two(mamba)) = &mut bare.mamba {
        channels = mamba.conv_channels();
        (mamba.conv, mamba.conv_bias) = (0, false);
    }
    let of = |recipe: &Recipe| recipe.counts().all.total;
    // Four taps and a bias a channel.
    assert_eq!(of(&plain) - of(&bare), plain.count(recipe::Mixer::Mamba) * 5 * channels);
    assert_eq!(Recipe::parse(&bare.to_toml()).unwrap(), bare);
    let unused = bare.to_toml().replace("conv = 0", "conv = 0\nconv_bias = true");
    assert!(Recipe::parse(&unused).unwrap_err().iter().any(|f| f.rule == "recipe/unused-key"));
    // Parts that lie apart are kept one by one; over tp blocks are those of a script of one's own in both.
    let (plain, bare) = (written("conv", &plain), written("bare", &bare));
    let fit =
        |file: &str| json(&format!("fit {file} --on 8xH200 --engine deepspeed --tp 2 --zero 3 --seq 2048 --levers no"));
    let (before, after) = (fit(&plain), fit(&bare));
    assert!(peak(&after) > peak(&before), "{} {}", peak(&before), peak(&after));
    let apart = (step(&after) / step(&before) - 1.0).abs();
    assert!(apart > 0.0 && apart < 0.05, "{} {}", step(&before), step(&after));
    let splits = run(&format!("splits {bare} --tp 2")).stdout;
    assert!(splits.contains("in_proj") && !splits.contains("mamba.conv"), "{splits}");
    let job = format!("{bare} --on 8xH200 --engine megatron");
    for (line, words) in [
        (format!("fit {job}"), "Mamba-2 without a convolution"),
        (format!("launch {job}"), "the built-in mixer has four taps"),
        (format!("rehearse {bare} --dp 2"), "mamba.conv"),
    ] {
        let ran = run(&line);
        assert!(ran.code == 1 && ran.stderr.replace("\n  ", " ").contains(words), "{line}: {}", ran.stderr);
    }
}

#[test]
fn residual_streams_are_mixed_around_blocks() {
    let plain = builtin::find("llama3-8b").unwrap();
    let streams = with("llama3-8b", |recipe| {
        recipe.features.mhc = Some(Switch { on: true, value: Mhc { streams: 4, sinkhorn: 20 } });
    });
    let (plain, file) = (written("one-stream", &plain), written("four-streams", &streams));
    let fit =
        |file: &str, more: &str| json(&format!("fit {file} --on 8xH200 --engine fsdp2 --seq 4096 --levers no {more}"));
    // Of each of 64 blocks four streams are kept instead of one, with what it reads and what it gives; little besides.
    let (before, after) = (fit(&plain, ""), fit(&file, ""));
    let kept = 64 * 4096 * 4096 * 2 * (4 + 1 + 1 - 1);
    let more = peak(&after) - peak(&before);
    assert!(more > kept && more < kept + kept / 16, "{more} bytes more, of which {kept} are streams");
    assert!(step(&after) > 1.02 * step(&before), "{} {}", step(&before), step(&after));
    // A stage sends all of them.
    let sent = |file: &str| {
        let answer = fit(file, "--pp 2 --microbatches 4");
        let traffic = answer["step"]["traffic"].as_array().unwrap_or_else(|| panic!("{}", answer["step"])).clone();
        traffic.iter().find(|one| one["axis"] == "pp").unwrap()["bytes"].as_f64().unwrap()
    };
    assert_eq!(sent(&file), 4.0 * sent(&plain));
    let words = |line: &str| {
        let ran = run(line);
        assert_eq!(ran.code, 1, "{line}");
        ran.stderr.replace("\n  ", " ")
    };
    let job = format!("{file} --on 8xH200 --engine");
    for engine in ["megatron", "torchtitan", "nanotron", "maxtext"] {
        let said = words(&format!("launch {job} {engine}"));
        assert!(said.contains("has no hyper-connections") && said.contains("--engine fsdp2"), "{said}");
    }
    assert!(words(&format!("rehearse {file} --dp 2")).contains("features.mhc"));
    assert_eq!(run(&format!("launch {job} fsdp2")).code, 0);
    let total = |line: &str| json(&format!("params {line}"))["total"].clone();
    assert_eq!(total(&format!("{file} --without mhc")), total(&plain));
}

#[test]
fn layers_may_take_some_tokens_only() {
    let plain = builtin::find("llama3-8b").unwrap();
    let layers: Vec<String> = (1..32).step_by(2).map(|layer| layer.to_string()).collect();
    let table = format!("\n[features.mod]\nlayers = [{}]\ncapacity = 0.125\n", layers.join(", "));
    let mixed = Recipe::parse(&(plain.to_toml() + &table)).unwrap();
    let (plain, file) = (written("all-tokens", &plain), written("some-tokens", &mixed));
    let fit =
        |file: &str, more: &str| json(&format!("fit {file} --on 8xH200 --engine fsdp2 --seq 8192 --levers no {more}"));
    // Half of the layers take an eighth: less memory, less time, and fewer operations of the model.
    let (before, after) = (fit(&plain, ""), fit(&file, ""));
    let of = |answer: &Value, line: &str| {
        let lines = answer["rank_classes"][0]["lines"].as_array().unwrap().clone();
        lines.iter().find(|one| one["line"] == line).unwrap()["bytes"].as_u64().unwrap() as f64
    };
    let (all, some) = (of(&before, "activations"), of(&after, "activations"));
    assert!(some > 0.5 * all && some < 0.7 * all, "{all} {some}");
    let flops = |answer: &Value| answer["step"]["model_flops"].as_f64().unwrap();
    let share = flops(&after) / flops(&before);
    assert!(share > 0.5 && share < 0.65, "{share}");
    assert!(step(&after) < 0.85 * step(&before), "{} {}", step(&before), step(&after));
    // Stages may cut between them, and what is searched is what is replayed.
    assert!(step(&fit(&file, "--pp 2 --microbatches 4")) > 0.0);
    let planned = json(&format!("plan {file} --on 8xH200 --engine fsdp2 --seq 4096 --gbs 64"));
    assert!(planned["best"].is_object(), "{planned}");
    let words = |line: &str| {
        let ran = run(line);
        assert_eq!(ran.code, 1, "{line}");
        ran.stderr.replace("\n  ", " ")
    };
    let job = format!("{file} --on 8xH200 --engine");
    assert!(words(&format!("check {job} fsdp2 --tp 2")).contains("[mod/whole-sequences]"));
    for engine in ["megatron", "torchtitan", "nanotron", "maxtext"] {
        assert!(words(&format!("launch {job} {engine}")).contains("has no mixture of depths"));
    }
    assert!(words(&format!("rehearse {file} --dp 2")).contains("features.mod"));
    assert_eq!(run(&format!("launch {job} fsdp2")).code, 0);
}

#[test]
fn n_grams_are_looked_up_before_layers() {
    let plain = builtin::find("llama3-8b").unwrap();
    let table = "\n[features.engram]\nlayers = [1, 15]\nrows = 10_000_000\ndim = 512\n";
    let branched = Recipe::parse(&(plain.to_toml() + table)).unwrap();
    let (plain, file) = (written("no-branch", &plain), written("branches", &branched));
    let fit =
        |file: &str, more: &str| json(&format!("fit {file} --on 8xH200 --engine fsdp2 --seq 4096 --levers no {more}"));
    // Tables of 640 M elements are shared out in fp32 with two moments, and gathered whole with their layer in bf16.
    let (before, after) = (fit(&plain, ""), fit(&file, ""));
    let more = peak(&after) - peak(&before);
    let state = 2 * 640_000_000 * 12 / 8;
    assert!(more > state && more < state + 4 * 2 * 640_000_000, "{more} bytes more, of which {state} are state");
    assert!(step(&after) > step(&before), "{} {}", step(&before), step(&after));
    let words = |line: &str| {
        let ran = run(line);
        assert_eq!(ran.code, 1, "{line}");
        ran.stderr.replace("\n  ", " ")
    };
    let job = format!("{file} --on 8xH200 --engine");
    assert!(words(&format!("check {job} fsdp2 --tp 2")).contains("[engram/whole-sequences]"));
    assert!(words(&format!("check {job} fsdp2 --pp 2")).contains("[engram/tokens]"));
    for engine in ["megatron", "torchtitan", "nanotron", "maxtext"] {
        assert!(words(&format!("launch {job} {engine}")).contains("has no engram branches"));
    }
    assert!(words(&format!("rehearse {file} --dp 2")).contains("features.engram"));
    assert_eq!(run(&format!("launch {job} fsdp2")).code, 0);
}
