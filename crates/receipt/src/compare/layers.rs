//! In what two runs differ, and in which layer: recipe, mode, feature bundle or infrastructure. A change that may be
//! nothing but the consequence of another is kept and marked.

use super::Subject;
use crate::{Argument, Receipt};
use case::{Case, Difference, Part};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use units::named;

named! {
    /// Where a difference lies, from what the model is outwards.
    pub enum Layer {
        /// What the model is: its shape and its pattern.
        Recipe = "recipe",
        /// Which implementations of its blocks run, and the seams they leave.
        Mode = "mode",
        /// What is switched on besides.
        Features = "feature bundle",
        /// Everything it runs on and with: engine, lane, versions, hardware, layout, precision, environment, batch.
        Infrastructure = "infrastructure",
    }
}

/// One value that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Where.
    #[serde(serialize_with = "by_name")]
    pub layer: Layer,
    /// The part of the layer: `pattern`, `layout`, `batch`, `precision`, `environment`, …
    pub part: &'static str,
    /// The value's name.
    pub key: String,
    /// In the first run; empty where it has none.
    pub old: String,
    /// In the second.
    pub new: String,
    /// It may be the consequence of another change: nobody typed it, or it is written down from the job.
    pub may_follow: bool,
}

fn by_name<S: serde::Serializer>(layer: &Layer, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(layer.name())
}

/// The layer that a list of changes comes down to: the outermost explanation is tried last.
pub fn localised(changes: &[Change]) -> Option<Layer> {
    let causes = changes.iter().filter(|change| !change.may_follow).map(|change| change.layer);
    causes.min().or_else(|| changes.iter().map(|change| change.layer).min())
}

/// In what the second run differs from the first.
pub fn changes(old: &Subject, new: &Subject) -> Vec<Change> {
    let mut list = Vec::new();
    match (&old.case, &new.case) {
        (Some(a), Some(b)) => of_cases(a, b, &derived(old.receipt, new.receipt), &mut list),
        _ => of_identities(old.receipt, new.receipt, &mut list),
    }
    let causes = list.iter().any(|change| !change.may_follow);
    around(old.receipt, new.receipt, causes, &mut list);
    list.sort_by_key(|change| (change.may_follow, change.layer));
    list
}

/// Keys of the layout that nobody typed in either job.
fn derived(old: &Receipt, new: &Receipt) -> BTreeSet<String> {
    let keys = |receipt: &Receipt| -> BTreeSet<String> {
        let defaults = receipt.case.as_ref().and_then(|case| case["defaults"].as_array());
        let keys = defaults.into_iter().flatten().filter_map(|default| default["key"].as_str());
        keys.map(|key| key.replace('-', "_")).collect()
    };
    let (before, after) = (keys(old), keys(new));
    // Of these a default is always written down, so that a side without one typed it.
    let typed = |key: &String| {
        let has_default = ["engine", "dp", "microbatches", "seq", "zero", "vocab_multiple"].contains(&key.as_str());
        has_default && before.contains(key) != after.contains(key)
    };
    // What follows from a degree is never typed at all.
    let always = ["edp", "gbs"].map(str::to_string);
    before.union(&after).filter(|key| !typed(key)).cloned().chain(always).collect()
}

fn of_cases(old: &Case, new: &Case, derived: &BTreeSet<String>, list: &mut Vec<Change>) {
    let bundle = |case: &Case| -> BTreeMap<&'static str, bool> {
        case.source.bundle().into_iter().map(|(feature, on)| (feature.name(), on)).collect()
    };
    let (before, after) = (bundle(old), bundle(new));
    let moe_switched = before.get("moe").copied().unwrap_or(false) != after.get("moe").copied().unwrap_or(false);
    let named = old.source.name == new.source.name;
    let mut follows = Vec::new();
    for difference in old.differences(new) {
        let Some((layer, part)) = place(&difference, named && moe_switched) else { continue };
        let key = difference.key.trim_start_matches("--");
        let is_derived = match difference.part {
            Part::Layout => derived.contains(key),
            Part::Stages => true,
            _ => false,
        };
        // A feature with values is on unless it says otherwise.
        let value = |text: String| match difference.key.ends_with(".enabled") && text.is_empty() {
            true => "true".to_string(),
            false => text,
        };
        let (old, new) = (value(difference.old.clone()), value(difference.new.clone()));
        let change = Change { layer, part, key: difference.key.clone(), old, new, may_follow: is_derived };
        if is_derived { follows.push(change) } else { list.push(change) }
    }
    // Another engine has other words for its options.
    if list.iter().any(|change| change.part == "engine") {
        let is_word = |change: &Change| ["options", "overlap", "compile"].contains(&change.part);
        list.iter_mut().filter(|change| is_word(change)).for_each(|change| change.may_follow = true);
    }
    // Options that an engine's defaults change with the recipe or the layout were not typed either.
    if list.iter().any(|change| change.layer < Layer::Infrastructure) {
        let typed = |change: &Change| change.layer < Layer::Infrastructure || change.part == "layout";
        list.iter_mut().filter(|change| !typed(change)).for_each(|change| change.may_follow = true);
        // A mode is pinned to degrees.
        let by_mode = list.iter().any(|change| change.layer == Layer::Mode);
        list.iter_mut().filter(|change| by_mode && change.part == "layout").for_each(|change| change.may_follow = true);
    }
    // Where nothing was typed, what was derived is all there is.
    let alone = list.is_empty();
    list.extend(follows.into_iter().map(|change| Change { may_follow: !alone, ..change }));
}

/// The layer and part of a job's difference; none where it says nothing of the run.
fn place(difference: &Difference, moe_switched: bool) -> Option<(Layer, &'static str)> {
    let key = difference.key.as_str();
    let table = key.split('.').next().unwrap_or(key);
    Some(match difference.part {
        Part::Recipe => match table {
            "source" | "modes" => return None,
            "features" | "adapters" => (Layer::Features, "features"),
            "moe" | "pattern" | "depth" | "mlp" if moe_switched => (Layer::Features, "features"),
            "pattern" | "depth" => (Layer::Recipe, "pattern"),
            "name" => (Layer::Recipe, "name"),
            "precision" => (Layer::Infrastructure, "precision"),
            "optimizer" => (Layer::Infrastructure, "optimizer"),
            _ => (Layer::Recipe, "shape"),
        },
        Part::Layout => match key {
            "mode" => (Layer::Mode, "mode"),
            "engine" => (Layer::Infrastructure, "engine"),
            "mbs" | "gbs" | "microbatches" | "seq" => (Layer::Infrastructure, "batch"),
            _ => (Layer::Infrastructure, "layout"),
        },
        Part::Stages => (Layer::Infrastructure, "layout"),
        Part::Options => match key {
            "precision" | "gradients" | "fp8-param-gather" => (Layer::Infrastructure, "precision"),
            key if key.contains("overlap") => (Layer::Infrastructure, "overlap"),
            key if key.contains("compile") || key.contains("graph") => (Layer::Infrastructure, "compile"),
            _ => (Layer::Infrastructure, "options"),
        },
        Part::Cluster => (Layer::Infrastructure, "hardware"),
    })
}

fn push(list: &mut Vec<Change>, at: (Layer, &'static str), key: &str, old: String, new: String, may_follow: bool) {
    let (layer, part) = at;
    // What a job says is said once.
    let is_known = list.iter().any(|known| (known.layer, known.part, known.key.as_str()) == (layer, part, key));
    if old != new && !is_known {
        list.push(Change { layer, part, key: key.to_string(), old, new, may_follow });
    }
}

/// What identities say, where a run has no job to compare.
fn of_identities(old: &Receipt, new: &Receipt, list: &mut Vec<Change>) {
    let (a, b) = (&old.identity, &new.identity);
    push(list, (Layer::Recipe, "name"), "recipe", a.recipe.clone(), b.recipe.clone(), false);
    push(list, (Layer::Recipe, "pattern"), "pattern", a.pattern.clone(), b.pattern.clone(), false);
    let short = |hash: &str| hash.chars().take(12).collect::<String>();
    push(list, (Layer::Recipe, "shape"), "shape", short(&a.shape_sha256), short(&b.shape_sha256), false);
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_default();
    push(list, (Layer::Mode, "mode"), "mode", mode(&a.mode), mode(&b.mode), false);
    push(list, (Layer::Features, "features"), "features", a.features.join(" "), b.features.join(" "), false);
    let at = (Layer::Features, "features");
    if a.features == b.features {
        push(list, at, "values", short(&a.features_sha256), short(&b.features_sha256), false);
    }
    let engine = |engine: &Option<String>| engine.clone().unwrap_or_default();
    push(list, (Layer::Infrastructure, "engine"), "engine", engine(&a.engine), engine(&b.engine), false);
}

/// What stands around the job: lane, seams, what was asked of the runtime, versions, machine, arguments. `caused` says
/// that the jobs themselves differ, so that what is written down from them may differ for that reason.
fn around(old: &Receipt, new: &Receipt, caused: bool, list: &mut Vec<Change>) {
    let infrastructure = |part| (Layer::Infrastructure, part);
    let (a, b) = (&old.identity, &new.identity);
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    push(list, infrastructure("lane"), "lane", word(&a.lane), word(&b.lane), caused);
    push(list, (Layer::Mode, "seams"), "seams", a.seams.join(", "), b.seams.join(", "), caused);
    push(list, infrastructure("topology"), "topology", word(&a.topology), word(&b.topology), caused);
    let empty = Map::new();
    let overlay = |receipt: &Receipt| receipt.overlay.as_object().cloned().unwrap_or_default();
    let (before, after) = (overlay(old), overlay(new));
    let parts = [
        ("compile", "compile"),
        ("precision", "precision"),
        ("dispatcher", "options"),
        ("overlap", "overlap"),
        ("wrapper", "engine"),
        ("optimizer", "optimizer"),
        ("attention_backend", "options"),
    ];
    for (key, part) in parts {
        push(list, infrastructure(part), key, text(before.get(key)), text(after.get(key)), caused);
    }
    let variables = |overlay: &Map<String, Value>| {
        let map = overlay.get("environment").and_then(Value::as_object).unwrap_or(&empty).clone();
        map.into_iter().map(|(key, value)| (key, text(Some(&value)))).collect::<BTreeMap<_, _>>()
    };
    maps(list, "environment", &variables(&before), &variables(&after), caused, Absent::Differs);
    maps(list, "versions", &old.versions, &new.versions, caused, Absent::Differs);
    let (seen, now) = (&old.evidence, &new.evidence);
    maps(list, "versions", &seen.versions, &now.versions, false, Absent::Unknown);
    maps(list, "hardware", &seen.machine, &now.machine, false, Absent::Unknown);
    maps(list, "backend", &seen.ran, &now.ran, caused, Absent::Unknown);
    maps(list, "arguments", &arguments(old), &arguments(new), caused, Absent::Differs);
}

/// What a key that stands on one side only means.
#[derive(Clone, Copy, PartialEq)]
enum Absent {
    /// It was not set.
    Differs,
    /// Nobody wrote it down.
    Unknown,
}

fn maps(
    list: &mut Vec<Change>,
    part: &'static str,
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
    may_follow: bool,
    absent: Absent,
) {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let value = |map: &BTreeMap<String, String>| map.get(key).cloned().unwrap_or_default();
        let is_known = old.contains_key(key) && new.contains_key(key);
        if is_known || absent == Absent::Differs {
            push(list, (Layer::Infrastructure, part), key, value(old), value(new), may_follow);
        }
    }
}

/// Arguments by flag. A launch's own id, which names folders, is no difference.
fn arguments(receipt: &Receipt) -> BTreeMap<String, String> {
    let id = receipt.identity.launch_id.as_deref().and_then(|id| id.get(..8));
    let mut out: BTreeMap<String, String> = BTreeMap::new();
    for Argument { flag, values } in &receipt.arguments {
        let mut value = values.join(" ");
        if let Some(id) = id {
            value = value.replace(id, "LAUNCH");
        }
        let entry = out.entry(flag.clone()).or_default();
        *entry = if entry.is_empty() { value } else { format!("{entry} {value}") };
    }
    out
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(all)) => all.iter().map(|one| text(Some(one))).collect::<Vec<_>>().join(" "),
        Some(other) => other.to_string(),
    }
}
