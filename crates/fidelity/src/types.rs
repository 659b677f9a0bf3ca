//! What the fields of a row are. A field of another type is not the one that was meant: it is named with its
//! place, and never taken as left out.

use serde_json::Value;

/// What a field may be; null is the same as leaving it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    /// A text.
    Text,
    /// true or false.
    Flag,
    /// A whole number, not below zero.
    Size,
    /// A number, not below zero.
    Number,
    /// An object with fields of its own.
    Table,
    /// A list of texts.
    Texts,
    /// A list of sizes, or one.
    Sizes,
    /// A list of objects.
    Tables,
}

impl Type {
    fn holds(self, value: &Value) -> bool {
        let all = |is: fn(&Value) -> bool| value.as_array().is_some_and(|items| items.iter().all(is));
        match self {
            Type::Text => value.is_string(),
            Type::Flag => value.is_boolean(),
            Type::Size => value.is_u64(),
            Type::Number => value.as_f64().is_some_and(|n| n.is_finite() && n >= 0.0),
            Type::Table => value.is_object(),
            Type::Texts => all(Value::is_string),
            Type::Sizes => value.is_u64() || all(Value::is_u64),
            Type::Tables => all(Value::is_object),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Type::Text => "a text",
            Type::Flag => "true or false",
            Type::Size => "a whole number, not negative",
            Type::Number => "a number, not negative",
            Type::Table => "an object",
            Type::Texts => "a list of texts",
            Type::Sizes => "a whole number, or a list of them",
            Type::Tables => "a list of objects",
        }
    }
}

type Fields = &'static [(&'static str, Type, &'static [&'static str])];

/// Rows with a `case`: of Megatron ranks and of small stacks.
const OF_A_CASE: Fields = &[
    ("", Type::Table, &["case"]),
    ("case", Type::Text, &["name", "spec", "opt", "recompute", "dispatcher", "fp8", "attention"]),
    (
        "case",
        Type::Size,
        &["world", "rank", "steps", "seq", "mbs", "microbatches", "tp", "pp", "vpp", "cp", "ep", "etp"],
    ),
    ("case", Type::Flag, &["sp", "dist_opt", "grad_fp32", "ce_fusion", "overlap", "compile"]),
    ("case", Type::Number, &["capacity"]),
    ("case", Type::Table, &["model"]),
    ("case.model", Type::Size, &["layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"]),
    ("case.model", Type::Size, &["experts", "topk", "expert_ffn", "shared_expert"]),
    ("case.model", Type::Size, &["mamba_heads", "mamba_state", "mamba_head_dim", "mamba_groups"]),
    ("case.model", Type::Text, &["pattern", "act"]),
    ("case.model", Type::Flag, &["tied", "router_fp32"]),
    ("case.model", Type::Number, &["rope_theta"]),
    ("case.model", Type::Sizes, &["moe_layer_freq"]),
    ("case.model", Type::Table, &["mla"]),
    ("case.model.mla", Type::Size, &["q_lora", "kv_lora", "qk", "rope", "v"]),
    ("", Type::Table, &["context", "model", "ddp", "optimizer"]),
    ("optimizer", Type::Size, &["alloc"]),
    ("", Type::Size, &["params"]),
    ("", Type::Number, &["forward_seconds", "backward_seconds", "step_seconds"]),
];

/// Rows of launches that we wrote.
const EMITTED: Fields = &[
    ("", Type::Text, &["name", "flags", "out_of_memory"]),
    ("", Type::Size, &["world", "rank", "stage", "params"]),
    ("", Type::Texts, &["added", "drop"]),
    ("", Type::Table, &["env", "setup"]),
    ("setup", Type::Size, &["alloc"]),
    ("", Type::Tables, &["steps"]),
];

/// Ranks of the FSDP2 program that we wrote.
const LAUNCHED: Fields = &[
    ("", Type::Text, &["name", "torch", "recipe", "taken", "teacher", "documents"]),
    ("", Type::Size, &["rank", "outside"]),
    (
        "",
        Type::Table,
        &["layout", "ways", "precision", "libraries", "fwdbwd0", "fwdbwd1", "fwdbwd2", "opt0", "opt1", "opt2"],
    ),
    ("layout", Type::Size, &["world", "tp", "pp", "ep", "etp", "mbs", "microbatches", "seq", "forward_prefetch"]),
    ("layout", Type::Flag, &["sp"]),
    ("layout", Type::Text, &["zero", "recompute"]),
    ("ways", Type::Text, &["optimizer", "base", "adapters", "loss", "momentum"]),
    ("ways", Type::Number, &["average"]),
    ("precision", Type::Text, &["main"]),
    ("opt2", Type::Size, &["alloc", "peak", "reserved", "reserved_peak"]),
];

/// Rows that others published.
const PUBLISHED: Fields = &[
    (
        "",
        Type::Text,
        &["id", "source_id", "source", "kind", "precision", "optimizer", "recompute", "features", "notes"],
    ),
    ("", Type::Table, &["ready", "model", "hardware", "layout", "batch", "framework", "measured"]),
    ("ready", Type::Flag, &["memory", "throughput"]),
    ("model", Type::Text, &["name", "activation", "pattern"]),
    ("model", Type::Size, &["layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "seq"]),
    ("model", Type::Size, &["experts", "topk", "expert_ffn", "shared_expert_ffn", "mtp_layers"]),
    ("model", Type::Flag, &["tied_embeddings"]),
    ("model", Type::Table, &["mla", "mamba"]),
    ("model.mla", Type::Size, &["q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_rope_head_dim", "v_head_dim"]),
    ("model.mamba", Type::Size, &["num_heads", "head_dim", "state_dim", "num_groups"]),
    ("hardware", Type::Text, &["gpu"]),
    ("hardware", Type::Size, &["mem_gb", "count", "per_node"]),
    ("layout", Type::Size, &["tp", "cp", "pp", "vpp", "dp", "ep", "etp", "zero", "fsdp"]),
    ("layout", Type::Flag, &["sp"]),
    ("layout", Type::Text, &["schedule"]),
    ("batch", Type::Size, &["micro", "global", "seq", "grad_accum"]),
    ("framework", Type::Text, &["name", "version"]),
    ("measured", Type::Number, &["tokens_per_s_per_gpu", "step_time_s", "peak_memory_gib", "peak_reserved_gib"]),
    ("measured", Type::Number, &["static_memory_gib"]),
    ("measured", Type::Text, &["memory_kind", "memory_rank"]),
    ("measured", Type::Flag, &["oom"]),
];

/// A field that is not what its row's kind has there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistyped {
    /// Its place, as `case.model.hidden`.
    pub field: String,
    /// What it is, and what it should be.
    pub why: String,
}

/// Every field of a row that is of another type than its kind of row has there.
pub fn mistyped(row: &Value) -> Vec<Mistyped> {
    let Value::Object(fields) = row else {
        let why = format!("a row is an object, and this is {}", what(row));
        return vec![Mistyped { field: String::new(), why }];
    };
    let kind = match () {
        () if fields.contains_key("flags") || fields.contains_key("added") => EMITTED,
        () if fields.get("kind").is_some_and(|kind| kind == "launch") => LAUNCHED,
        () if fields.contains_key("case") => OF_A_CASE,
        () if fields.contains_key("ready") => PUBLISHED,
        // Of no kind that is read here, which is said elsewhere.
        () => return Vec::new(),
    };
    let mut wrong = Vec::new();
    for (place, is, names) in kind {
        let table = place.split('.').filter(|part| !part.is_empty()).fold(row, |at, part| &at[part]);
        for name in *names {
            let value = &table[*name];
            if !value.is_null() && !is.holds(value) {
                let field = format!("{place}.{name}").trim_start_matches('.').to_string();
                let why = format!("`{field}` is {}, and should be {}", what(value), is.words());
                wrong.push(Mistyped { field, why });
            }
        }
    }
    wrong
}

/// A value, as one would say what it is.
fn what(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a text".to_string(),
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "an object".to_string(),
    }
}
