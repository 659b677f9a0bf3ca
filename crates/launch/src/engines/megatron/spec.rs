//! The custom layer spec: Megatron's built-in stack with the places a mode or a person keeps for
//! mixers of their own. Each place is a seam; what stands there is named in the policy, and a
//! place without a name stops the run at import, before any device is touched.

use super::super::list::List;
use super::seam_comments;
use crate::emission::{File, Kind};
use crate::job::Job;
use diag::quote;
use recipe::Seam;

/// The module the custom spec is written as.
const MODULE: &str = "custom_spec";

const BUILT_IN: &str = "megatron.core.models.hybrid.hybrid_layer_specs";

/// Seams that a patch of the layers keeps, as opposed to what a built-in block replaced.
fn kept<'a>(job: &'a Job) -> impl Iterator<Item = &'a Seam> {
    job.seams.iter().filter(|seam| !seam.gives_up && seam.name != super::side::SEAM)
}

/// Whether some seam is kept by a patch.
pub fn is_needed(job: &Job) -> bool {
    kept(job).next().is_some()
}

/// Adds `--spec`: the built-in stack, or the one with patch points.
pub fn argument(job: &Job, list: &mut List) {
    if is_needed(job) {
        let why = "the built-in stack with a patch point for every seam that is kept";
        list.many(Kind::RuntimePatch, "--spec", [MODULE, "hybrid_stack_spec"], "seams", why);
    } else {
        let why = "the engine's own blocks";
        list.many(Kind::RecipeNative, "--spec", [BUILT_IN, "hybrid_stack_spec"], "recipe.pattern", why);
    }
}

/// The module, when it is needed.
pub fn file(job: &Job) -> Option<File> {
    if !is_needed(job) {
        return None;
    }
    let seams: String = kept(job)
        .map(|seam| {
            let target = job.policy.seams.get(seam.name).map_or("None".to_string(), |t| quote::python(t));
            let layers: Vec<String> = seam.layers.iter().map(usize::to_string).collect();
            format!("    ({}, ({}), {target}),\n", quote::python(seam.name), tuple(&layers))
        })
        .collect();
    let text = format!(
        r#""""Megatron's built-in hybrid stack with a patch point for every seam that is kept.

Each seam names a function `patch(spec, layers)` that returns a spec with its own modules at those
layers (counted from zero; none means all): a new one by `dataclasses.replace`, since the built-in
holds functions that cannot be copied. A seam without one stops the run here.
"""
{comments}
import importlib

from {BUILT_IN} import hybrid_stack_spec as built_in

# (seam, layers, "module:function")
SEAMS = (
{seams})


def patched(spec):
    missing = [name for name, _, target in SEAMS if target is None]
    if missing:
        raise NotImplementedError(f"no implementation is named in the policy's [seams] for: {{', '.join(missing)}}")
    for name, layers, target in SEAMS:
        module, _, function = target.partition(":")
        spec = getattr(importlib.import_module(module), function)(spec, layers)
    return spec


hybrid_stack_spec = patched(built_in)
"#,
        comments = seam_comments(job)
    );
    Some(File::new(format!("{MODULE}.py"), text))
}

/// Members of a Python tuple.
fn tuple(members: &[String]) -> String {
    if members.len() == 1 { format!("{},", members[0]) } else { members.join(", ") }
}
