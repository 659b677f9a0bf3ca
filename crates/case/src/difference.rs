//! In what two jobs differ, as a list that can be counted and matched on.

use crate::render::whole_layout_json;
use crate::{Case, Options, words};
use serde_json::Value;
use units::named;

named! {
    /// The part of a job a difference is in.
    pub enum Part {
        /// What the model is.
        Recipe = "recipe",
        /// How it is split.
        Layout = "layout",
        /// Where the pipeline cuts.
        Stages = "stages",
        /// What the engine is told besides.
        Options = "options",
        /// What it runs on.
        Cluster = "cluster",
    }
}

/// One value that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where.
    pub part: Part,
    /// The value's name: a key of the recipe, a flag of ours, a word of the engine.
    pub key: String,
    /// In the first job; empty where it has none.
    pub old: String,
    /// In the second.
    pub new: String,
}

impl Case {
    /// In what another job differs from this one.
    pub fn differences(&self, other: &Case) -> Vec<Difference> {
        let mut list = Vec::new();
        let read = |recipe: &recipe::Recipe| recipe.to_toml().parse::<toml::Table>().map(toml::Value::Table);
        if let (Ok(old), Ok(new)) = (read(&self.source), read(&other.source)) {
            tables(Some(&old), Some(&new), "", &mut list);
        }
        let (old, new) = (whole_layout_json(&self.layout), whole_layout_json(&other.layout));
        values(Part::Layout, &old, &new, &mut list);
        let cuts = |case: &Case| format!("{:?}", case.stages.layer_counts());
        push(Part::Stages, "layers", cuts(self), cuts(other), &mut list);
        let (one, two) = (words::of(self.layout.engine).words, words::of(other.layout.engine).words);
        for word in one.iter().chain(two.iter().filter(|word| !one.iter().any(|known| known.name == word.name))) {
            let value = |case: &Case, words: &[words::Word]| {
                words
                    .iter()
                    .find(|known| known.name == word.name)
                    .map_or_else(String::new, |word| (word.get)(&case.options))
            };
            push(Part::Options, word.name, value(self, one), value(other, two), &mut list);
        }
        for (key, get) in UNWORDED {
            push(Part::Options, key, get(&self.options), get(&other.options), &mut list);
        }
        let passed = |case: &Case| case.passed.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        push(Part::Options, "engine-args", passed(self), passed(other), &mut list);
        let cluster = |case: &Case| case.cluster.as_ref().map_or(Value::Null, |cluster| serde_json::json!(cluster));
        values(Part::Cluster, &cluster(self), &cluster(other), &mut list);
        list
    }
}

/// An option's value in words.
type Get = fn(&Options) -> String;

/// Options that no engine has a word for: flags of ours, and what only measured rows say.
const UNWORDED: [(&str, Get); 11] = [
    ("precision", |o| match o.scaling {
        Some(scaling) => scaling.name().to_string(),
        None if o.format.bytes() >= 2.0 => o.format.name().to_string(),
        None => format!("{}, as the recipe has its weights", o.format),
    }),
    ("gradients", |o| o.state.gradients.to_string()),
    ("fp8-param-gather", |o| o.fp8_param_gather.to_string()),
    ("offload-optimizer", |o| o.offload.to_string()),
    ("offload-activations", |o| o.offload_activations.to_string()),
    ("documents", |o| o.documents.map_or_else(String::new, |documents| documents.to_string())),
    ("overload", |o| o.overload.to_string()),
    ("shard-group", |o| o.shard_group.map_or_else(String::new, |size| size.to_string())),
    ("ring", |o| o.overlap.ring.to_string()),
    ("blocking", |o| o.kernels.blocking.to_string()),
    ("gathered", |o| o.kernels.gathered.name().to_string()),
];

fn push(part: Part, key: &str, old: String, new: String, list: &mut Vec<Difference>) {
    if old != new {
        list.push(Difference { part, key: key.to_string(), old, new });
    }
}

fn values(part: Part, old: &Value, new: &Value, list: &mut Vec<Difference>) {
    let text = |value: Option<&Value>| match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let keys = |value: &Value| value.as_object().map_or_else(Vec::new, |map| map.keys().cloned().collect::<Vec<_>>());
    let mut all = keys(old);
    all.extend(keys(new).into_iter().filter(|key| old.get(key).is_none()));
    for key in all {
        push(part, &key, text(old.get(&key)), text(new.get(&key)), list);
    }
}

/// Keys of two recipes, dotted, in order.
fn tables(old: Option<&toml::Value>, new: Option<&toml::Value>, path: &str, list: &mut Vec<Difference>) {
    let table = |value: Option<&toml::Value>| value.and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let is_table = |value: Option<&toml::Value>| value.is_some_and(toml::Value::is_table);
    if !is_table(old) && !is_table(new) {
        let text = |value: Option<&toml::Value>| {
            value.map_or_else(String::new, |value| match value.as_str() {
                Some(text) => text.to_string(),
                None => serde_json::json!(value).to_string(),
            })
        };
        return push(Part::Recipe, path, text(old), text(new), list);
    }
    let (one, two) = (table(old), table(new));
    let keys: std::collections::BTreeSet<&String> = one.keys().chain(two.keys()).collect();
    for key in keys {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        tables(one.get(key), two.get(key), &path, list);
    }
}
