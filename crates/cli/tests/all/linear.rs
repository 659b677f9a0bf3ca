//! `L` blocks over tensor ranks: channels and heads go whole, what cannot be cut is refused with the reason.

use crate::common::{json, run, scratch};
use recipe::import::hf::{self, Asked};
use serde_json::Value;

/// A recipe of a class's own defaults with these keys.
fn imported(model_type: &str, more: Value) -> String {
    let mut config = serde_json::json!({ "model_type": model_type });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    let recipe = hf::import(&config.to_string(), &Asked::named(model_type)).unwrap().recipe;
    scratch(&format!("linear-{model_type}.toml"), &recipe.to_toml()).display().to_string()
}

/// Parameters, bytes and seconds of a rank of one replica.
fn rank(file: &str, tp: u64) -> (f64, f64, f64) {
    let job = format!("--on {tp}xH200 --engine fsdp2 --tp {tp} --zero 3 --mbs 1 --seq 1024 --levers no");
    let fit = json(&format!("fit {file} {job}"));
    let class = &fit["rank_classes"][0];
    let figure = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{fit}"));
    (figure(&class["params"]), figure(&class["allocated_peak_bytes"]), figure(&fit["step"]["seconds"]))
}

fn types() -> [(&'static str, String); 3] {
    let of_conv = serde_json::json!({ "num_hidden_layers": 4, "layer_types": ["conv", "conv", "conv", "conv"] });
    [
        ("lfm2", imported("lfm2", of_conv)),
        ("recurrent_gemma", imported("recurrent_gemma", serde_json::json!({ "num_hidden_layers": 2 }))),
        ("xlstm", imported("xlstm", serde_json::json!({ "num_hidden_layers": 4 }))),
    ]
}

#[test]
fn channels_and_heads_go_to_tensor_ranks_whole() {
    for (model_type, file) in types() {
        let (whole, cut) = (rank(&file, 1), rank(&file, 2));
        // Norms alone are on every rank.
        assert!(cut.0 < 0.501 * whole.0 && cut.0 >= 0.5 * whole.0, "{model_type}: {} of {}", cut.0, whole.0);
        assert!(cut.1 < 0.6 * whole.1, "{model_type}: {} of {} bytes", cut.1, whole.1);
        assert!(cut.2 < whole.2, "{model_type}: {} and {} seconds", cut.2, whole.2);
        let splits = run(&format!("splits {file} --tp 2"));
        assert!(splits.code == 0 && splits.stdout.contains("mixer/in-by-head"), "{model_type}: {}", splits.stdout);
    }
}

#[test]
fn what_is_never_cut_is_refused_with_the_reason() {
    let [(_, lfm2), (_, griffin), _] = types();
    let minimax = imported("minimax", serde_json::json!({ "num_hidden_layers": 2 }));
    for (line, rule, words) in [
        (format!("{minimax} --tp 2"), "linear/whole", "norm runs over all heads"),
        (format!("{lfm2} --cp 2"), "linear/whole", "hand their states on"),
        (format!("{griffin} --tp 4"), "linear/heads-over-tp", "10 heads are not a multiple of 4"),
    ] {
        let ran = run(&format!("check {line} --engine fsdp2"));
        let text = ran.stderr.replace("\n  ", " ");
        assert!(ran.code == 1 && text.contains(&format!("[{rule}]")) && text.contains(words), "{line}: {text}");
    }
}

#[test]
fn latents_of_delta_attention_are_every_heads() {
    let file = imported("kimi_linear", serde_json::json!({ "num_hidden_layers": 5 }));
    let splits = run(&format!("splits {file} --tp 2")).stdout;
    let row =
        |name: &str| splits.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {splits}"));
    assert!(row("linear.decay_latent").contains("replicated"), "{splits}");
    assert!(!row("linear.qkv").contains("replicated") && !row("linear.A_log").contains("replicated"), "{splits}");
    let fit = json(&format!("fit {file} --on 8xH200 --engine fsdp2 --zero 3 --mbs 1 --seq 1024 --levers no"));
    assert!(fit["step"]["seconds"].as_f64().unwrap() > 0.0);
    // The checkpoint's own config has its figures in a table, with layers from one.
    let table = serde_json::json!({ "model_type": "kimi_linear", "num_hidden_layers": 4, "linear_attn_config": {
        "head_dim": 64, "num_heads": 16, "short_conv_kernel_size": 4, "full_attn_layers": [4], "kda_layers": [1, 2, 3] } });
    let recipe = hf::import(&table.to_string(), &Asked::named("kimi")).unwrap().recipe;
    assert_eq!(recipe.pattern.to_string(), "(LF)(LE)x2 (AE)");
}
