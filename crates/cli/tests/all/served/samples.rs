//! Questions of every kind, as bodies and as they are typed.

use serde_json::{Value, json};

/// A question, its body, and the words that ask the same.
pub struct Sample {
    pub question: &'static str,
    pub body: Value,
    pub words: &'static str,
}

fn sample(question: &'static str, body: Value, words: &'static str) -> Sample {
    Sample { question, body, words }
}

/// One of every kind, held byte for byte.
pub fn samples() -> Vec<Sample> {
    vec![
        sample("recipes", json!({}), "recipes"),
        sample("recipes", json!({ "name": "nam56r" }), "recipes nam56r"),
        sample("hardware", json!({}), "hardware"),
        sample("hardware", json!({ "name": "H200" }), "hardware H200"),
        sample("hardware", json!({ "name": "tcpxo" }), "hardware tcpxo"),
        sample("hardware", json!({ "name": "H200", "toml": true }), "hardware H200 --toml"),
        sample("lanes", json!({}), "lanes"),
        sample("lanes", json!({ "for": "nam56r", "on": "8xH200" }), "lanes --for nam56r --on 8xH200"),
        sample("options", json!({}), "options"),
        sample("options", json!({ "engine": "megatron" }), "options megatron"),
        sample("axes", json!({}), "axes"),
        sample("axes", json!({ "axis": "cp" }), "axes cp"),
        sample("glossary", json!({}), "glossary"),
        sample("glossary", json!({ "word": "lane" }), "glossary lane"),
        sample("params", json!({ "recipe": "nam56r", "with": ["mtp"] }), "params nam56r --with mtp"),
        sample("params", json!({ "recipe": "llama3-8b" }), "params llama3-8b"),
        sample("check", json!({ "recipe": "nam56r", "tp": 2, "on": "8xH200" }), "check nam56r --tp 2 --on 8xH200"),
        sample(
            "choices",
            json!({ "recipe": "nam56r-mini", "tp": 2, "on": "8xH200" }),
            "choices nam56r-mini --tp 2 --on 8xH200",
        ),
        sample(
            "splits",
            json!({ "recipe": "nam56r-mini", "mode": "nemo_native", "ep": 4, "etp": 1, "world": 8 }),
            "splits nam56r-mini --mode nemo_native --ep 4 --etp 1 --world 8",
        ),
        sample("splits", json!({ "recipe": "llama3-8b", "tp": 2, "rank": 1 }), "splits llama3-8b --tp 2 --rank 1"),
        sample("stages", json!({ "recipe": "nam56r", "pp": 2, "tp": 2 }), "stages nam56r --pp 2 --tp 2"),
        sample("mesh", json!({ "tp": 2, "pp": 2, "world": 8 }), "mesh --tp 2 --pp 2 --world 8"),
        sample("mesh", json!({ "tp": 2, "ep": 2, "world": 8, "rank": 5 }), "mesh --tp 2 --ep 2 --world 8 --rank 5"),
        sample("fit", json!({ "recipe": "nam56r", "on": "8xH200", "tp": 2 }), "fit nam56r --on 8xH200 --tp 2"),
        sample(
            "fit",
            json!({ "recipe": "llama3-8b", "on": "8xH100", "pp": 2, "sp": false, "levers": "no" }),
            "fit llama3-8b --on 8xH100 --pp 2 --no-sp --levers no",
        ),
        sample(
            "fit",
            json!({ "recipe": "mixtral-8x7b", "on": "8xH200", "ep": 8, "overload": [1.0, 2], "routing": true, "checklist": true }),
            "fit mixtral-8x7b --on 8xH200 --ep 8 --overload 1.0,2 --routing --checklist",
        ),
        sample(
            "fit",
            json!({ "recipe": "llama3-8b", "on": "1xH100", "serve": true, "batch": 4, "context": "32k" }),
            "fit llama3-8b --on 1xH100 --serve --batch 4 --context 32k",
        ),
        sample(
            "diff",
            json!({ "before": { "recipe": "nam56r", "tp": 2 }, "after": { "recipe": "nam56r", "tp": 2, "mbs": 2 }, "on": "8xH200" }),
            "diff --on 8xH200",
        ),
        sample(
            "schedule",
            json!({ "recipe": "llama3-8b", "on": "8xH200", "pp": 2, "microbatches": 4 }),
            "schedule llama3-8b --on 8xH200 --pp 2 --microbatches 4",
        ),
        sample(
            "launch",
            json!({ "recipe": "llama3-8b", "on": "8xH200", "tp": 2 }),
            "launch llama3-8b --on 8xH200 --tp 2",
        ),
        sample(
            "launch",
            json!({ "recipe": "nam56r", "on": "8xH200", "mode": "nemo_native", "scheduler": "slurm" }),
            "launch nam56r --on 8xH200 --mode nemo_native --scheduler slurm",
        ),
        sample(
            "plan",
            json!({ "recipe": "llama3-8b", "on": "8xH200", "top": 3 }),
            "plan llama3-8b --on 8xH200 --top 3",
        ),
        sample(
            "plan",
            json!({ "recipe": "llama3-8b", "on": "1,2xH200", "engine": "fsdp2" }),
            "plan llama3-8b --on 1,2xH200 --engine fsdp2",
        ),
    ]
}

/// More, for the shape of answers alone.
pub fn others() -> Vec<Sample> {
    vec![
        sample("recipes", json!({ "name": "llama3-70b" }), "recipes llama3-70b"),
        sample("hardware", json!({ "name": "B200" }), "hardware B200"),
        sample("options", json!({ "engine": "deepspeed" }), "options deepspeed"),
        sample("axes", json!({ "axis": "ep" }), "axes ep"),
        sample("glossary", json!({ "word": "seam" }), "glossary seam"),
        sample("lanes", json!({ "for": "llama3-8b", "on": "8xTPU-v6e" }), "lanes --for llama3-8b --on 8xTPU-v6e"),
        sample("params", json!({ "recipe": "deepseek-v3" }), "params deepseek-v3"),
        sample(
            "check",
            json!({ "recipe": "mixtral-8x7b", "ep": 8, "world": 8 }),
            "check mixtral-8x7b --ep 8 --world 8",
        ),
        sample("choices", json!({ "recipe": "llama3-8b", "on": "8xB200" }), "choices llama3-8b --on 8xB200"),
        sample("splits", json!({ "recipe": "nam56r", "tp": 2, "world": 8 }), "splits nam56r --tp 2 --world 8"),
        sample("stages", json!({ "recipe": "llama3-8b", "pp": 4 }), "stages llama3-8b --pp 4"),
        sample("mesh", json!({ "tp": 4, "cp": 2, "world": 16, "rank": 3 }), "mesh --tp 4 --cp 2 --world 16 --rank 3"),
        sample(
            "fit",
            json!({ "recipe": "nam56r-mini", "on": "8xH100", "tp": 2, "pp": 2 }),
            "fit nam56r-mini --on 8xH100 --tp 2 --pp 2",
        ),
        sample(
            "launch",
            json!({ "recipe": "llama3-8b", "on": "8xH200", "engine": "torchtitan" }),
            "launch llama3-8b --on 8xH200 --engine torchtitan",
        ),
        sample("plan", json!({ "recipe": "nam56r-mini", "on": "8xH200" }), "plan nam56r-mini --on 8xH200"),
        // Uneven routing breaks the first, is not replayed of the second, and the third does not fit.
        sample("plan", json!({ "recipe": "qwen3-30b-a3b", "on": "8xH200" }), "plan qwen3-30b-a3b --on 8xH200"),
        sample(
            "plan",
            json!({ "recipe": "qwen3-30b-a3b", "on": "8xH200", "engine": "fsdp2" }),
            "plan qwen3-30b-a3b --on 8xH200 --engine fsdp2",
        ),
        sample("plan", json!({ "recipe": "llama3-70b", "on": "1xH100" }), "plan llama3-70b --on 1xH100"),
    ]
}
