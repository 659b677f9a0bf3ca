//! Every field of a recipe, and how its engine is told: by an argument, because it builds it one way
//! only, not at all for a reason, or not: then it is a seam. The list is the one that recipes are written
//! from ([`Recipe::fields`]), so that a new field is a seam of every engine until someone says otherwise.

mod tables;

use crate::emission::Emission;
use crate::job::{Frontend, Job};
use diag::{Blame, Finding};
use layout::Engine;
use recipe::{Field, Mixer, Recipe};
use serde::Serialize;
use tables::{EVERY, Rule};

/// How an engine is told a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// By these arguments, keys or files.
    By(Vec<String>),
    /// The engine builds it this way only, and the recipe says the same.
    Fixed(&'static str),
    /// Nothing depends on it, and why.
    Irrelevant(&'static str),
    /// Not at all.
    Seam(&'static str),
}

/// A field with how its engine is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accounted {
    /// The field: `moe.router.scaling`.
    pub path: String,
    /// Its value as TOML.
    pub value: String,
    /// How the engine is told.
    pub told: Told,
}

/// Every field of the job's recipe, in the order recipes are written.
pub fn account(job: &Job, emission: &Emission) -> Vec<Accounted> {
    let rules = tables::of(emission);
    let one = |field: Field| {
        let told = unused(job.recipe, &field.path)
            .or_else(|| yours(emission, &field.path))
            .or_else(|| by_argument(emission, &field.path))
            .or_else(|| {
                rules
                    .iter()
                    .chain(EVERY)
                    .find(|(path, _)| matches(path, &field.path))
                    .map(|(_, rule)| apply(rule, &field))
            })
            .unwrap_or(Told::Seam("it has no words for it"));
        Accounted { path: field.path, value: field.value, told }
    };
    job.recipe.fields().into_iter().map(one).collect()
}

/// What is not told, each as a refusal that may be allowed as a seam.
pub fn missing(job: &Job, emission: &Emission) -> Vec<Finding> {
    let engine = match job.frontend {
        Frontend::Bridge if emission.engine == Engine::Megatron => "megatron-bridge",
        _ => emission.engine.name(),
    };
    let seam = |field: Accounted| match field.told {
        Told::Seam(why) => {
            let message = format!("{engine} is not told `{} = {}`: {why}", field.path, short(&field.value));
            Some(Finding::error("launch/field", Blame::Missing, field.path, message))
        }
        _ => None,
    };
    let fields = account(job, emission);
    // A kind of scaling that is not told stands for its figures.
    let kind = "rope.scaling.kind";
    let has_kind = fields.iter().any(|field| field.path == kind && !matches!(field.told, Told::Seam(_)));
    let is_said = |path: &str| !has_kind && path.starts_with("rope.scaling.") && path != kind;
    fields.into_iter().filter(|field| !is_said(&field.path)).filter_map(seam).collect()
}

fn short(value: &str) -> String {
    let text: String = value.chars().take(40).collect();
    if text.len() < value.len() { format!("{text}…") } else { text }
}

/// Whether a rule's path is the field's, or the table it stands in.
fn matches(rule: &str, path: &str) -> bool {
    match rule.strip_suffix(".*") {
        Some(table) => path.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')),
        None => rule == path,
    }
}

fn apply(rule: &Rule, field: &Field) -> Told {
    match *rule {
        Rule::Said(names) => Told::By(names.iter().map(|name| name.to_string()).collect()),
        Rule::OneWay(why) if field.is_default => Told::Fixed(why),
        Rule::OneWay(why) => Told::Seam(why),
        Rule::Checked(why) => Told::Fixed(why),
        Rule::Never(why) => Told::Irrelevant(why),
        Rule::Lost(why) => Told::Seam(why),
    }
}

/// Arguments that say where their value comes from.
fn by_argument(emission: &Emission, path: &str) -> Option<Told> {
    let is_from = |from: &str| from.split(", ").any(|part| part.strip_prefix("recipe.").unwrap_or(part) == path);
    let flags: Vec<String> = emission.arguments.iter().filter(|a| is_from(&a.from)).map(|a| a.flag.clone()).collect();
    (!flags.is_empty()).then_some(Told::By(flags))
}

/// Tables of blocks that no layer has, and features that are off.
fn unused(recipe: &Recipe, path: &str) -> Option<Told> {
    let table = path.split('.').next()?;
    if table == "adapters" && recipe.adapters().is_none() {
        return Some(Told::Irrelevant("the feature is off"));
    }
    let mixer = Mixer::ALL.into_iter().find(|mixer| mixer.table() == table);
    if mixer.is_some_and(|mixer| !recipe.uses(mixer)) {
        return Some(Told::Irrelevant("no layer has such a block"));
    }
    if table == "adapters" && recipe.adapters().is_none() {
        return Some(Told::Irrelevant("the feature is off"));
    }
    let feature = path.strip_prefix("features.")?.split('.').next()?;
    let is_off = recipe.features.listed().iter().any(|(known, on)| known.name() == feature && !on);
    is_off.then_some(Told::Irrelevant("the feature is off"))
}

/// Where a model of one's own was allowed to stand, it has to be the recipe's.
fn yours(emission: &Emission, path: &str) -> Option<Told> {
    let own = ["torchtitan/model", "fsdp2/reference-model", "deepspeed/reference-model", "xla-spmd/reference-model"];
    let is_yours = emission.seams.iter().any(|seam| own.contains(&seam.name));
    let is_model = !["precision", "optimizer", "not_carried"].iter().any(|table| path.starts_with(table));
    (is_yours && is_model).then_some(Told::Irrelevant("a model of your own stands here"))
}
