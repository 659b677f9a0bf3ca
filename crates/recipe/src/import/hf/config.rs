//! Typed access to a `config.json`: a present key is its value, an absent one the class default,
//! and a wrong type or size is a finding.

use crate::features::Features;
use crate::kinds::Norm;
use crate::kinds::attention::{Attention, Window};
use crate::limits;
use crate::pattern::{Layer, Pattern};
use crate::precision::{OptimizerPolicy, Precision};
use crate::recipe::Recipe;
use crate::rope::{Positions, Rope};
use diag::{Blame, Finding};
use serde_json::{Map, Value};

/// A config being read.
pub struct Config<'a> {
    map: &'a Map<String, Value>,
    name: String,
    model_type: String,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

impl<'a> Config<'a> {
    /// Starts reading.
    pub fn new(map: &'a Map<String, Value>, name: &str, model_type: &str) -> Config<'a> {
        Config { map, name: name.to_string(), model_type: model_type.to_string(), findings: Vec::new() }
    }

    /// Reports a refusal about `key`.
    pub fn refuse(&mut self, key: &str, message: impl Into<String>) {
        self.findings.push(Finding::error("import/value", Blame::Recipe, key, message));
    }

    fn largest(key: &str) -> u64 {
        match key {
            "num_hidden_layers" => limits::DEPTH,
            "vocab_size" => limits::VOCAB,
            "max_position_embeddings" | "sliding_window" => limits::SEQUENCE,
            "num_experts" | "num_local_experts" | "n_routed_experts" | "num_experts_per_tok" => limits::EXPERTS,
            "num_attention_heads" | "num_key_value_heads" => limits::HEADS,
            _ => limits::WIDTH,
        }
    }

    fn number(&mut self, key: &str, value: &Value) -> Option<u64> {
        let most = Config::largest(key);
        match value.as_u64() {
            Some(n) if n <= most => Some(n),
            Some(n) => {
                self.refuse(key, format!("`{key}` is {n}, more than {most}"));
                None
            }
            None => {
                let shown: String = value.to_string().chars().take(40).collect();
                self.refuse(key, format!("`{key}` must be a whole number, found `{shown}`"));
                None
            }
        }
    }

    /// Whether the key stands in the config.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// A whole number, zero allowed; absent is the class default.
    pub fn natural(&mut self, key: &str, default: u64) -> Option<u64> {
        match self.map.get(key) {
            None => Some(default),
            Some(value) => self.number(key, value),
        }
    }

    /// A whole number of at least one; absent is the class default.
    pub fn count(&mut self, key: &str, default: u64) -> Option<u64> {
        let n = self.natural(key, default)?;
        if n == 0 {
            self.refuse(key, format!("`{key}` is 0"));
        }
        (n > 0).then_some(n)
    }

    /// A whole number where null and absent mean different things: `None` inside is null.
    pub fn nullable(&mut self, key: &str, default: Option<u64>) -> Option<Option<u64>> {
        match self.map.get(key) {
            None => Some(default),
            Some(Value::Null) => Some(None),
            Some(value) => self.number(key, value).map(Some),
        }
    }

    /// Like [`Config::natural`] under the first of several names that is present.
    pub fn either(&mut self, keys: &[&str], default: u64) -> Option<u64> {
        let key = keys.iter().find(|k| self.has(k)).unwrap_or(&keys[0]);
        self.natural(key, default)
    }

    /// A flag; absent is the class default, null is false.
    pub fn flag(&mut self, key: &str, default: bool) -> bool {
        match self.map.get(key) {
            None => default,
            Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.refuse(key, format!("`{key}` must be true or false"));
                default
            }
        }
    }

    /// A text, if the key holds one.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.map.get(key).and_then(Value::as_str)
    }

    /// A list, unless absent or null.
    pub fn list(&mut self, key: &str) -> Option<&'a [Value]> {
        match self.map.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::Array(items)) => Some(items),
            Some(_) => {
                self.refuse(key, format!("`{key}` must be a list"));
                None
            }
        }
    }

    /// A list of whole numbers; empty when absent or null.
    pub fn naturals(&mut self, key: &str) -> Vec<u64> {
        let items = self.list(key).unwrap_or_default();
        items.iter().filter_map(|item| self.number(key, item)).collect()
    }

    /// Layer kinds by name under the first present key, older names translated. Exactly `depth`
    /// of them when a depth is given.
    pub fn layer_kinds(&mut self, keys: &[&'static str], depth: Option<u64>) -> Option<Vec<&'a str>> {
        let key = *keys.iter().find(|k| self.has(k))?;
        let items = self.list(key)?;
        if items.len() as u64 > limits::DEPTH || depth.is_some_and(|d| d != items.len() as u64) {
            self.refuse(key, format!("`{key}` lists {} layers, and the model has {depth:?}", items.len()));
            return Some(Vec::new());
        }
        let kinds: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
        if kinds.is_none() {
            self.refuse(key, format!("`{key}` must list names"));
        }
        let modern = |kind| match kind {
            "mamba" => "linear_attention",
            "attention" => "full_attention",
            other => other,
        };
        Some(kinds.unwrap_or_default().into_iter().map(modern).collect())
    }

    /// Keys that change the model in ways we do not import.
    pub fn refuse_unsupported(&mut self) {
        if self.map.get("per_layer_config").is_some_and(|v| !v.is_null()) {
            self.refuse("per_layer_config", "heterogeneous layers (`per_layer_config`) are not supported");
        }
    }

    /// Query heads and KV heads, where null KV heads mean one a query head.
    pub fn heads(&mut self, heads: u64, kv_default: Option<u64>) -> Option<(u64, u64)> {
        let heads = self.count("num_attention_heads", heads)?;
        let kv_heads = self.nullable("num_key_value_heads", kv_default)?.unwrap_or(heads);
        if kv_heads == 0 || heads % kv_heads != 0 {
            self.refuse("num_key_value_heads", format!("{heads} query heads do not share {kv_heads} KV heads evenly"));
            return None;
        }
        Some((heads, kv_heads))
    }

    /// A head's width: the key if it is there, `hidden / heads` otherwise.
    pub fn head_dim(&mut self, hidden: u64, heads: u64) -> Option<u64> {
        let width = self.nullable("head_dim", None)?.filter(|d| *d > 0).unwrap_or(hidden / heads);
        if width == 0 {
            self.refuse("head_dim", format!("hidden {hidden} leaves no width for {heads} heads"));
        }
        (width > 0).then_some(width)
    }

    /// The sliding window, with the attention layers that `layer_types` leaves full.
    pub fn window(&mut self, attention: &mut Attention, enabled: bool) {
        let Some(Some(tokens)) = self.nullable("sliding_window", None) else { return };
        if !enabled || tokens == 0 {
            return;
        }
        let kinds = self.layer_kinds(&["layer_types"], None).unwrap_or_default();
        let attends = kinds.iter().filter(|k| k.ends_with("_attention") && !k.starts_with("linear"));
        let full_layers: Vec<u64> =
            attends.enumerate().filter(|(_, kind)| **kind == "full_attention").map(|(i, _)| i as u64).collect();
        if kinds.is_empty() || full_layers.len() < kinds.len() {
            attention.window = Some(Window { tokens, full_layers });
        }
    }

    /// A recipe with the fields every config has; the caller fills in its kinds.
    pub fn recipe(&mut self, layers: Vec<Layer>, hidden: u64, vocab: u64, theta: f64) -> Option<Recipe> {
        let vocab = self.count("vocab_size", vocab)?;
        let sequence = self.count("max_position_embeddings", 4096)?;
        if layers.is_empty() {
            self.refuse("num_hidden_layers", "the model has no layers");
            return None;
        }
        Some(Recipe {
            name: self.name.clone(),
            source: format!("imported from a Hugging Face config.json, model type {}", self.model_type),
            pattern: Pattern::describe(&layers),
            layers,
            hidden,
            vocab,
            tied: self.flag("tie_word_embeddings", false),
            sequence,
            norm: Norm::RmsNorm,
            norm_eps: crate::NORM_EPS,
            init_std: None,
            dropout: 0.0,
            positions: Positions::Rope(Rope::plain(self.rope_theta().unwrap_or(theta))),
            multipliers: Default::default(),
            modes: Vec::new(),
            attention: None,
            moe: None,
            mamba: None,
            recurrent: None,
            gated_delta: None,
            mlp: None,
            features: Features::default(),
            precision: Precision::default(),
            optimizer: OptimizerPolicy::default(),
            not_carried: Vec::new(),
            notes: Vec::new(),
        })
    }

    fn rope_theta(&self) -> Option<f64> {
        let nested = self.map.get("rope_parameters").and_then(|v| v.get("rope_theta"));
        nested.or_else(|| self.map.get("rope_theta")).and_then(Value::as_f64).filter(|t| t.is_finite() && *t > 0.0)
    }
}
