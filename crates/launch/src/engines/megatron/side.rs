//! Side embeddings: `HybridModel` builds its own token table, so no layer spec can add to it. The entry
//! of a job that has them is ours: Megatron-LM's hybrid script with a model and batches that carry them.

use crate::emission::File;
use crate::job::Job;
use diag::{Blame, Finding};
use recipe::kinds::side::{Lookup, OwnerStage, SideEmbedding};
use serde_json::{Value, json};

/// The seam that this fills.
pub const SEAM: &str = "side-embeddings";

/// Where it starts.
pub const ENTRY: &str = "shardwright_megatron/pretrain.py";

const MODULES: [(&str, &str); 4] = [
    ("pretrain.py", include_str!("../../../assets/megatron/pretrain.py")),
    ("side_data.py", include_str!("../../../assets/megatron/side_data.py")),
    ("side_embeddings.py", include_str!("../../../assets/megatron/side_embeddings.py")),
    ("side_model.py", include_str!("../../../assets/megatron/side_model.py")),
];

/// Whether the recipe has any.
pub fn is_on(job: &Job) -> bool {
    job.recipe.features.sides().next().is_some()
}

/// The modules and what they read.
pub fn files(job: &Job) -> Vec<File> {
    if !is_on(job) {
        return Vec::new();
    }
    let settings = serde_json::to_string_pretty(&settings(job)).expect("text and numbers");
    let all = MODULES.iter().map(|(name, text)| (*name, text.to_string()));
    all.chain([("sides.json", settings + "\n")])
        .map(|(name, text)| File::new(format!("shardwright_megatron/{name}"), text))
        .collect()
}

fn settings(job: &Job) -> Value {
    let sides: Vec<Value> = job.recipe.features.sides().map(|(name, one)| side(job, name, one)).collect();
    json!({ "engine_root": job.policy.job.engine_root, "sides": sides, "streams": streams(job) })
}

fn side(job: &Job, name: &str, side: &SideEmbedding) -> Value {
    let lookups = Lookup::all(name, side).into_iter().map(|lookup| {
        let rows = lookup.rows.end - lookup.rows.start;
        json!({ "start": lookup.rows.start, "rows": rows, "factors": lookup.factors, "bias": lookup.bias })
    });
    json!({
        "name": name, "rows": side.rows, "dim": side.dim, "tables": side.tables, "components": side.components(),
        "scaled": side.scales > 0, "from_data": name == "structure" && !job.policy.data.structure.is_empty(),
        "lookups": lookups.collect::<Vec<_>>(),
    })
}

/// Data sets among the paths: a number before one is its share of the blend.
fn tokens<'a>(job: &Job<'a>) -> Vec<&'a String> {
    job.policy.data.paths.iter().filter(|path| path.parse::<f64>().is_err()).collect()
}

/// The streams of ids beside each data set.
fn streams(job: &Job) -> Value {
    let (tokens, all) = (tokens(job), &job.policy.data.structure);
    let each = (all.len() / tokens.len().max(1)).max(1);
    tokens.iter().zip(all.chunks(each)).map(|(path, ids)| (path.to_string(), json!(ids))).collect()
}

/// What of the recipe and the policy cannot be run.
pub fn findings(job: &Job) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, _) in job.recipe.features.sides().filter(|(_, side)| side.stage == OwnerStage::Last) {
        let message = format!("`{name}` belongs to the last stage, and HybridStack keeps the final norm to itself");
        found.push(super::unsayable("features", message).hint("`stage = \"first\"` in the recipe"));
    }
    found.extend(structure(job));
    found
}

/// Whether structure ids come with the tokens, one stream for each lookup.
fn structure(job: &Job) -> Option<Finding> {
    let (count, given) = (tokens(job).len(), job.policy.data.structure.len());
    let side = job.recipe.features.sides().find(|(name, _)| *name == "structure");
    let lookups = side.map_or(0, |(_, side)| side.lookups() as usize);
    if given == count * lookups {
        return None;
    }
    let message = match (lookups, given) {
        (0, _) => format!("{given} streams of structure ids are given, and the recipe reads none"),
        (_, 0) => "the recipe reads structure ids, and none lie beside the data".to_string(),
        _ => format!("{given} streams of structure ids are given; {lookups} for each of {count} data sets are read"),
    };
    let finding = Finding::error("launch/structure", Blame::Environment, "policy.data.structure", message);
    let hint =
        format!("one `.bin` and `.idx` a component, in the order of the data sets: {} prefixes", count * lookups);
    Some(finding.hint(hint))
}
