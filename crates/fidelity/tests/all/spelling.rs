//! Rows of sources that nobody here has seen: other spellings of the same run are the same run, words that deny are
//! not read as words that say, and what is not understood is named.

use fidelity::{Judged, Part, Pricing, judge_parts};
use serde_json::{Value, json};

/// A run of Qwen3-235B on H100 by nobody in particular.
fn row() -> Value {
    json!({
        "id": "made-up-1", "source_id": "made-up", "source": "a page nobody has read", "kind": "pretrain",
        "ready": { "memory": false, "throughput": true },
        "model": {
            "name": "Qwen3-235B-A22B", "layers": 94, "hidden": 4096, "ffn": 12288, "heads": 64, "kv_heads": 4,
            "head_dim": 128, "vocab": 151936, "activation": "swiglu", "tied_embeddings": false,
            "experts": 128, "topk": 8, "expert_ffn": 1536,
        },
        "hardware": { "gpu": "H100", "mem_gb": 80, "count": 256, "per_node": 8 },
        "precision": "BF16", "layout": { "tp": 2, "cp": 1, "pp": 8, "vpp": 4, "dp": 16, "ep": 32 },
        "batch": { "micro": 1, "global": 2048, "seq": 4096 }, "recompute": "none", "optimizer": "AdamW",
        "framework": { "name": "Megatron-LM", "version": "2025" }, "features": null,
        "measured": { "step_time_s": 30.0 }, "notes": null,
    })
}

fn judged(change: impl FnOnce(&mut Value)) -> Judged {
    let mut row = row();
    change(&mut row);
    judge_parts(&row, &[Part::Time], Pricing::AsRun)
}

fn seconds(change: impl FnOnce(&mut Value)) -> f64 {
    let judged = judged(change);
    let figure = judged.figure("step_time");
    figure.unwrap_or_else(|| panic!("{:?}", judged.why_not())).predicted.number()
}

fn with_features(features: &str) -> f64 {
    seconds(|row| row["features"] = json!(features))
}

#[test]
fn what_is_denied_is_not_run() {
    let plain = with_features("DeepEP");
    let hidden = with_features("DeepEP, 1F1B EP overlap");
    assert!(hidden < plain, "{hidden} {plain}");
    for denied in
        ["DeepEP, no EP overlap", "DeepEP without EP overlap", "DeepEP; EP overlap off", "DeepEP, ep_overlap=false"]
    {
        assert_eq!(with_features(denied), plain, "{denied}");
    }
    let serial = with_features("DeepEP, no overlap");
    assert!(serial > plain, "{serial} {plain}");
    assert_eq!(serial, with_features("DeepEP, no communication overlap"));
    let said = seconds(|row| {
        row["features"] = json!("DeepEP");
        row["notes"] = json!("mock data; without EP overlap");
    });
    assert_eq!(said, plain);
}

#[test]
fn one_run_has_many_spellings() {
    let usual = seconds(|_| {});
    type Change = fn(&mut Value);
    let spellings: [(&str, Change); 17] = [
        ("no recompute", |row| row["recompute"] = json!("None")),
        ("a usual node", |row| row["hardware"]["per_node"] = Value::Null),
        ("no ZeRO stage", |row| row["layout"]["zero"] = json!(1)),
        ("accumulation instead of a microbatch", |row| {
            row["batch"]["micro"] = Value::Null;
            row["batch"]["grad_accum"] = json!(128);
        }),
        ("kind", |row| row["kind"] = json!("Pre-Training")),
        ("bf16", |row| row["precision"] = json!("bf16")),
        ("bfloat16", |row| row["precision"] = json!("bfloat16")),
        ("H100-80GB-HBM3", |row| row["hardware"]["gpu"] = json!("H100-80GB-HBM3")),
        ("h100", |row| row["hardware"]["gpu"] = json!("h100")),
        ("NVIDIA H100 80GB HBM3", |row| row["hardware"]["gpu"] = json!("NVIDIA H100 80GB HBM3")),
        ("megatron_lm", |row| row["framework"]["name"] = json!("megatron_lm")),
        ("MCore", |row| row["framework"]["name"] = json!("MCore")),
        ("another source", |row| row["source_id"] = json!("mbridge-perf-26.02")),
        ("another page", |row| row["source"] = json!("NVIDIA-NeMo/Megatron-Bridge performance summary")),
        ("SwiGLU", |row| row["model"]["activation"] = json!("SwiGLU")),
        ("adamw", |row| row["optimizer"] = json!("adamw")),
        ("all-to-all", |row| row["features"] = json!("all-to-all dispatcher")),
    ];
    for (name, change) in spellings {
        assert_eq!(seconds(change), usual, "{name}");
    }
    let hybrid = with_features("HybridEP");
    for spelled in [
        "hybridep",
        "Hybrid-EP dispatcher",
        "hybrid_ep",
        "moe-flex-dispatcher-backend=hybridep; moe-token-dispatcher-type=flex",
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
    ] {
        assert_eq!(with_features(spelled), hybrid, "{spelled}");
    }
    assert_eq!(with_features("deepep"), with_features("DeepEP dispatcher"));
    let scaled = |precision: &str| {
        seconds(|row| {
            row["precision"] = json!(precision);
            row["hardware"]["gpu"] = json!("B200");
        })
    };
    for spelled in ["fp8_mx", "FP8-MX", "mxfp8"] {
        assert_eq!(scaled(spelled), scaled("MXFP8"), "{spelled}");
    }
    for (spelled, same) in
        [("fp8_cs", "FP8 tensorwise"), ("FP8-CS", "fp8_cs"), ("fp8_ds", "FP8 delayed"), ("fp8_sc", "FP8-SC")]
    {
        assert_eq!(scaled(spelled), scaled(same), "{spelled}");
    }
    assert_ne!(scaled("fp8_sc"), scaled("fp8_cs"));
    assert_ne!(scaled("nvfp4"), scaled("bf16"));
}

/// A row is refused with the very word that was not understood.
#[test]
fn what_is_not_understood_is_named() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 7] = [
        ("`int8`", |row| row["precision"] = json!("int8")),
        ("`quux`", |row| row["features"] = json!("DeepEP, quux")),
        ("`warp`", |row| row["features"] = json!("warp overlap")),
        ("`--warp-drive`", |row| row["features"] = json!("--warp-drive")),
        ("`pcie`", |row| row["hardware"]["gpu"] = json!("H100 PCIe")),
        ("`ColossalAI`", |row| row["framework"]["name"] = json!("ColossalAI")),
        ("`tanh`", |row| row["model"]["activation"] = json!("tanh")),
    ];
    for (word, change) in cases {
        let judged = judged(change);
        let why = judged.why_not().map(ToString::to_string).unwrap_or_default();
        assert!(why.contains(word), "{word}: {why}");
    }
}

/// A release's table is a run of that release's recipes; another engine's row of the same model is not.
#[test]
fn rows_of_a_release_run_its_recipes() {
    let bridge = |change: fn(&mut Value)| {
        judged(|row| {
            row["framework"] = json!({ "name": "Megatron-Bridge / Megatron-Core", "version": "NeMo 26.04" });
            row["precision"] = json!("fp8_cs");
            row["recompute"] = Value::Null;
            change(row);
        })
    };
    let seconds = |judged: Judged| judged.figures[0].predicted.number();
    let released = seconds(bridge(|_| {}));
    // `moe_a2a_overlap=True` of QWEN3_235B_A22B_PRETRAIN_CONFIG_H100_FP8_CS_V1, and no dispatch kernels.
    assert_eq!(released, seconds(bridge(|row| row["features"] = json!("all-to-all dispatcher, EP overlap"))));
    assert!(released < seconds(bridge(|row| row["features"] = json!("no EP overlap"))));
    assert!(released < seconds(bridge(|row| row["framework"]["version"] = json!("NeMo 23.01"))));
}
