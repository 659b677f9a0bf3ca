//! The package `shardwright_megatron`: blocks that Megatron-Core has none of, written beside the arguments with only
//! the modules a job needs. `blocks.json` says which layers are which and how wide; the policy's `[seams]` name
//! patches that run after ours. A seam that neither fills stops the run at import, before any device is touched.

use super::super::list::List;
use crate::emission::{File, Kind};
use crate::job::Job;
use crate::tree;
use recipe::kinds::mamba::Mamba;
use recipe::{Layer, Mixer, Seam};
use serde_json::{Value, json};

/// The package, which `launch.sh` puts on Python's path with the launch directory.
pub const PACKAGE: &str = "shardwright_megatron";

/// The module that builds the stack.
pub const MODULE: &str = "shardwright_megatron.spec";

const BUILT_IN: &str = "megatron.core.models.hybrid.hybrid_layer_specs";

macro_rules! asset {
    ($path:literal) => {
        include_str!(concat!("../../../assets/", $path))
    };
}

/// Files of the package, and the seam that needs each; every package has those without one.
const MODULES: &[(&str, &str, Option<&str>)] = &[
    ("__init__.py", asset!("megatron/__init__.py"), None),
    ("spec.py", asset!("megatron/spec.py"), None),
    ("chosen.py", asset!("megatron/chosen.py"), None),
    ("mamba3.py", asset!("megatron/mamba3.py"), Some("mamba3-mixer")),
    ("mamba3_scan.py", asset!("megatron/mamba3_scan.py"), Some("mamba3-mixer")),
    ("m2rnn.py", asset!("megatron/m2rnn.py"), Some("recurrent-mixer")),
    // One recurrence for this package and the FSDP2 program.
    ("recurrence.py", asset!("fsdp2/recurrence.py"), Some("recurrent-mixer")),
    ("walk.py", asset!("fsdp2/walk.py"), Some("recurrent-mixer")),
    ("shared_expert.py", asset!("megatron/shared_expert.py"), Some("shared-expert-activation")),
    ("sparse.py", asset!("megatron/sparse.py"), Some("sparse-kernels")),
    ("sparse_kernels.py", asset!("megatron/sparse_kernels.py"), Some("sparse-kernels")),
];

/// Seams that a patch of the layers keeps, as opposed to what a built-in block replaced.
fn kept<'a>(job: &'a Job) -> impl Iterator<Item = &'a Seam> {
    job.seams.iter().filter(|seam| !seam.gives_up && seam.name != super::side::SEAM)
}

/// Whether some seam is kept by a patch.
pub fn is_needed(job: &Job) -> bool {
    kept(job).next().is_some()
}

/// Adds `--spec`: the built-in stack, or the one with our modules.
pub fn argument(job: &Job, list: &mut List) {
    if is_needed(job) {
        let why = "the built-in stack with our modules where the recipe has blocks of its own";
        list.many(Kind::RuntimePatch, "--spec", [MODULE, "hybrid_stack_spec"], "seams", why);
    } else {
        let why = "the engine's own blocks";
        list.many(Kind::RecipeNative, "--spec", [BUILT_IN, "hybrid_stack_spec"], "recipe.pattern", why);
    }
}

/// The package, when it is needed.
pub fn files(job: &Job) -> Vec<File> {
    if !is_needed(job) {
        return Vec::new();
    }
    let has = |name: &str| kept(job).any(|seam| seam.name == name);
    let modules = MODULES.iter().filter(|(.., seam)| seam.is_none_or(has));
    let written = modules.map(|(name, text, _)| File::new(format!("{PACKAGE}/{name}"), *text));
    let blocks = File::new(format!("{PACKAGE}/blocks.json"), tree::json(&blocks(job)));
    written.chain([blocks]).collect()
}

/// What `spec.py` reads.
fn blocks(job: &Job) -> Value {
    let recipe = job.recipe;
    let eps = recipe.norm_eps;
    let has = |name: &str| kept(job).any(|seam| seam.name == name);
    let mamba3 = match &recipe.mamba {
        Some(Mamba::Three(m)) if has("mamba3-mixer") => json!({
            "layers": places(job, Mixer::Mamba), "mtp_layers": suffix_places(job, Mixer::Mamba),
            "heads": m.heads, "head_dim": m.head_dim, "state": m.state, "groups": m.groups, "angles": m.angles,
            "chunk": m.chunk, "norm_eps": eps,
        }),
        _ => Value::Null,
    };
    let m2rnn = recipe.recurrent.as_ref().filter(|_| has("recurrent-mixer")).map(|r| {
        json!({
            "layers": places(job, Mixer::Recurrent), "mtp_layers": suffix_places(job, Mixer::Recurrent),
            "heads": r.heads, "qk_heads": r.qk_heads, "key_dim": r.key_dim, "value_dim": r.value_dim,
            "conv": r.conv, "conv_bias": r.conv_bias, "gradient_clip": r.gradient_clip, "norm_eps": eps,
        })
    });
    let shared = recipe.moe.as_ref().and_then(|moe| moe.shared.as_ref());
    let shared = shared.filter(|_| has("shared-expert-activation"));
    json!({
        "mamba3": mamba3,
        "m2rnn": m2rnn,
        "sparse": kept(job).any(|seam| seam.name == "sparse-kernels" && seam.filled_by.is_some()),
        "shared_expert": shared.map(|s| json!({"ffn": s.ffn, "activation": s.activation.name()})),
        "patches": kept(job).filter_map(|seam| patch(job, seam)).collect::<Vec<_>>(),
        "unfilled": job.unfilled(kept(job)),
    })
}

/// The policy's own patch of a seam.
fn patch(job: &Job, seam: &Seam) -> Option<Value> {
    let function = job.policy.seams.get(seam.name)?;
    Some(json!({"seam": seam.name, "layers": symbols_of(job, &seam.layers), "function": function}))
}

/// The first symbol of every layer: a layer is as many symbols as it has blocks.
fn first_symbols(layers: &[Layer]) -> Vec<usize> {
    let mut next = 0;
    let first = |layer: &Layer| {
        let first = next;
        next += layer.mixers().count();
        first
    };
    layers.iter().map(first).collect()
}

/// Layers of the recipe as symbols of Megatron's pattern.
fn symbols_of(job: &Job, layers: &[usize]) -> Vec<usize> {
    let first = first_symbols(&job.recipe.layers);
    let of = |&layer: &usize| first[layer]..first[layer] + job.recipe.layers[layer].mixers().count();
    layers.iter().flat_map(of).collect()
}

fn of_kind(layers: &[Layer], wanted: Mixer) -> Vec<usize> {
    let mixers = layers.iter().flat_map(Layer::mixers).enumerate();
    mixers.filter(|(_, mixer)| *mixer == wanted).map(|(place, _)| place).collect()
}

/// Where a mixer is in the pattern, from zero.
fn places(job: &Job, mixer: Mixer) -> Vec<usize> {
    of_kind(&job.recipe.layers, mixer)
}

/// Where a mixer is in a prediction depth, which Megatron numbers from its own start.
fn suffix_places(job: &Job, mixer: Mixer) -> Vec<usize> {
    job.recipe.features.mtp().map_or(Vec::new(), |mtp| of_kind(std::slice::from_ref(&mtp.layer), mixer))
}
