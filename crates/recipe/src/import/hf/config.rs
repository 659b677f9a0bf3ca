//! Typed access to a `config.json`: a present key is its value, an absent one the class default,
//! and a wrong type or size is a finding.

use super::described::Model;
use super::keys::{Fate, Key, place, unread};
use crate::kinds::Activation;
use crate::kinds::attention::{Attention, Window};
use crate::limits;
use crate::recipe::Recipe;
use diag::{Blame, Finding};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A config being read.
pub struct Config<'a> {
    map: &'a Map<String, Value>,
    pub(super) model_type: String,
    /// Sequence to train on, where the user said it.
    pub(super) asked_sequence: Option<u64>,
    /// The description it is read by, if there is one.
    pub(super) described: Option<&'static Model>,
    /// What became of the keys that were read.
    fates: BTreeMap<String, Fate>,
    /// What the class builds and neither its config nor a recipe says, or what stands inside another key.
    implied: Vec<Key>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

impl<'a> Config<'a> {
    /// Starts reading.
    pub fn new(map: &'a Map<String, Value>, model_type: &str, sequence: Option<u64>) -> Config<'a> {
        let model_type = model_type.to_string();
        let (fates, implied, findings) = (BTreeMap::new(), Vec::new(), Vec::new());
        let asked_sequence = sequence;
        let mut config = Config { map, model_type, asked_sequence, described: None, fates, implied, findings };
        config.value("model_type");
        config
    }

    /// What this config calls a key.
    fn own<'k>(&self, key: &'k str) -> &'k str {
        let names = self.described.map_or(&[][..], |model| model.names);
        let Some((_, own)) = names.iter().find(|(ours, _)| *ours == key) else { return key };
        let present = own.iter().find(|name| self.map.contains_key(**name)).copied();
        // A key that means another thing under our name is not looked for there.
        let taken = names.iter().any(|(_, own)| own.contains(&key));
        present.unwrap_or(if self.map.contains_key(key) && !taken { key } else { own[0] })
    }

    /// A key's value; whoever asks for it carries it.
    fn value(&mut self, key: &str) -> Option<&'a Value> {
        let own = self.own(key);
        let value = self.map.get(own)?;
        if !self.fates.contains_key(own) {
            let fate = place(&self.model_type, key).map_or(Fate::NotCarried, Fate::Carried);
            self.fates.insert(own.to_string(), fate);
        }
        Some(value)
    }

    /// An object or list that the caller takes apart; whatever it does not carry it says.
    pub fn raw(&mut self, key: &str) -> Option<&'a Value> {
        self.value(key)
    }

    /// Records that a key says what no recipe says.
    pub fn not_carried(&mut self, key: &str) {
        let key = self.own(key);
        if self.map.contains_key(key) {
            self.fates.insert(key.to_string(), Fate::NotCarried);
        }
    }

    /// The same of a key inside another.
    pub fn not_carried_inside(&mut self, object: &str, key: &str, value: &Value) {
        self.implied.push(Key { name: format!("{object}.{key}"), value: value.to_string(), fate: Fate::NotCarried });
    }

    /// Records what the class builds and no recipe says: the config's value, or the class default.
    pub fn implies(&mut self, key: &str, default: &str) {
        match self.map.contains_key(key) {
            true => self.not_carried(key),
            false => {
                let (name, value) = (key.to_string(), default.to_string());
                self.implied.push(Key { name, value, fate: Fate::NotCarried });
            }
        }
    }

    /// Records that a key has no use in this model, and why.
    pub fn unused(&mut self, keys: &[&str], why: &'static str) {
        for key in keys.iter().map(|key| self.own(key)).collect::<Vec<_>>() {
            if self.map.contains_key(key) {
                self.fates.insert(key.to_string(), Fate::Irrelevant(why));
            }
        }
        self.implied.retain(|known| !keys.iter().any(|key| known.name.starts_with(&format!("{key}."))));
    }

    /// Records that a key has to say what is known already; not carried where it says another thing.
    pub fn agrees(&mut self, key: &str, known: &Value) {
        let is_same = |given: &Value| {
            given == known || given.is_null() || given.as_f64().is_some_and(|x| Some(x) == known.as_f64())
        };
        match self.value(key) {
            Some(given) if !is_same(given) => self.not_carried(key),
            _ => {}
        }
    }

    /// What became of every key, by name. A key that describes blocks which the model does not have is of
    /// no use, read or not.
    pub fn keys(&self, recipe: &Recipe) -> Vec<Key> {
        let absent = |place: &str| match place.split('.').next() {
            Some("moe") => recipe.moe.is_none(),
            Some("mamba") => recipe.mamba.is_none(),
            Some("attention") => recipe.attention.is_none(),
            Some("gated_delta") => recipe.gated_delta.is_none(),
            Some("linear") => recipe.linear.is_none(),
            Some("mlp") => recipe.mlp.is_none(),
            Some("shared") => recipe.shared.is_none(),
            _ => false,
        };
        let fate = |key: &str, value: &Value| match (self.fates.get(key), place(&self.model_type, key)) {
            (Some(Fate::Carried(place)), _) if absent(place) => Fate::Irrelevant("the model has no such blocks"),
            (None, Some(place)) if absent(place) => Fate::Irrelevant("the model has no such blocks"),
            (Some(fate), _) => fate.clone(),
            (None, _) => unread(&self.model_type, key, value),
        };
        let own = self.map.iter().map(|(name, value)| Key {
            name: name.clone(),
            value: value.to_string(),
            fate: fate(name, value),
        });
        let mut keys: Vec<Key> = own.chain(self.implied.iter().cloned()).collect();
        keys.sort_by(|a, b| a.name.cmp(&b.name));
        keys
    }

    /// A positive number, if the key holds one.
    pub fn positive(&mut self, key: &str) -> Option<f64> {
        let value = self.value(key).filter(|v| !v.is_null())?;
        let number = value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
        if number.is_none() {
            let shown: String = value.to_string().chars().take(40).collect();
            self.refuse(key, format!("`{key}` must be a positive number, found `{shown}`"));
        }
        number
    }

    /// A number of at least zero; absent and null are the class default.
    pub fn share(&mut self, key: &str, default: f64) -> f64 {
        let Some(value) = self.value(key).filter(|v| !v.is_null()) else { return default };
        let number = value.as_f64().filter(|x| x.is_finite() && *x >= 0.0);
        if number.is_none() {
            let shown: String = value.to_string().chars().take(40).collect();
            self.refuse(key, format!("`{key}` must be a number of at least zero, found `{shown}`"));
        }
        number.unwrap_or(default)
    }

    /// Exactly `N` positive numbers; ones when absent or null.
    pub fn positives<const N: usize>(&mut self, key: &str) -> [f64; N] {
        let Some(items) = self.list(key) else { return [1.0; N] };
        let numbers: Vec<f64> = items.iter().filter_map(Value::as_f64).filter(|x| x.is_finite() && *x > 0.0).collect();
        numbers.try_into().unwrap_or_else(|_| {
            self.refuse(key, format!("`{key}` must list {N} positive numbers"));
            [1.0; N]
        })
    }

    /// The activation of gated feed-forward blocks under `key`; another one is not carried.
    pub fn gated(&mut self, key: &str) -> Activation {
        match self.text(key) {
            None | Some("silu" | "swish") => Activation::SwiGlu,
            Some("gelu") => Activation::GeGlu,
            Some(_) => {
                self.not_carried(key);
                Activation::SwiGlu
            }
        }
    }

    /// The longest sequence the config names; does not decide what is trained on.
    pub fn longest(&mut self) -> Option<u64> {
        self.map.get(self.own("max_position_embeddings")).and_then(Value::as_u64).filter(|n| *n > 0)
    }

    /// Reports a refusal about `key`.
    pub fn refuse(&mut self, key: &str, message: impl Into<String>) {
        let key = self.own(key).to_string();
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
        self.map.contains_key(self.own(key))
    }

    /// A whole number, zero allowed; absent is the class default.
    pub fn natural(&mut self, key: &str, default: u64) -> Option<u64> {
        match self.value(key) {
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
        match self.value(key) {
            None => Some(default),
            Some(Value::Null) => Some(None),
            Some(value) => self.number(key, value).map(Some),
        }
    }

    /// Like [`Config::natural`] under the first of several names that is present.
    pub fn either(&mut self, keys: &[&str], default: u64) -> Option<u64> {
        let key = keys.iter().find(|k| self.has(k)).unwrap_or(&keys[0]);
        let number = self.natural(key, default);
        for other in keys.iter().filter(|k| *k != key) {
            self.agrees(other, &number.into());
        }
        number
    }

    /// A flag; absent is the class default, null is false.
    pub fn flag(&mut self, key: &str, default: bool) -> bool {
        match self.value(key) {
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
    pub fn text(&mut self, key: &str) -> Option<&'a str> {
        self.value(key).and_then(Value::as_str)
    }

    /// A table inside the config, unless absent or null.
    pub fn table(&mut self, key: &str) -> Option<&'a serde_json::Map<String, Value>> {
        self.value(key).and_then(Value::as_object)
    }

    /// A list, unless absent or null.
    pub fn list(&mut self, key: &str) -> Option<&'a [Value]> {
        match self.value(key) {
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
        if self.value("per_layer_config").is_some_and(|v| !v.is_null()) {
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
        attention.dropout = self.share("attention_dropout", 0.0);
        let Some(tokens) = self.nullable("sliding_window", None) else { return };
        let (depth, dense) = (self.natural("num_hidden_layers", 0), self.natural("max_window_layers", 28));
        let mut kinds = self.layer_kinds(&["layer_types"], None).unwrap_or_default();
        let Some(tokens) = tokens.filter(|tokens| enabled && *tokens > 0) else { return };
        // `configuration_*.py`: Qwen's first layers see everything, every second of gpt-oss does.
        let usual = |i: u64| match self.model_type.as_str() {
            "gpt_oss" => i % 2 == 1,
            name => name.starts_with("qwen") && i < dense.unwrap_or(0),
        };
        if kinds.is_empty() && (self.model_type == "gpt_oss" || self.model_type.starts_with("qwen")) {
            let kind = |i| if usual(i) { "full_attention" } else { "sliding_attention" };
            kinds = (0..depth.unwrap_or(0)).map(kind).collect();
        }
        let attends = kinds.iter().filter(|k| k.ends_with("_attention") && !k.starts_with("linear"));
        let full_layers: Vec<u64> =
            attends.enumerate().filter(|(_, kind)| **kind == "full_attention").map(|(i, _)| i as u64).collect();
        if kinds.is_empty() || full_layers.len() < kinds.len() {
            attention.window = Some(Window::sliding(tokens, full_layers));
        }
    }
}
