//! Whether a checkpoint is whole, and of the recipe it is said to be of.

use crate::about;
use crate::cover::{self, Flaw};
use crate::damaged;
use crate::index::{Kind, check_identity, check_mode};
use crate::open::{Checkpoint, Tensor};
use crate::own;
use crate::reader::{BUFFER, Reader};
use diag::{Blame, Finding};
use recipe::{Mode, Optimizer, Recipe};
use std::collections::{BTreeMap, HashSet};

/// A recipe as its mode runs it, and the mode.
pub struct Against<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// The mode.
    pub mode: Option<Mode>,
}

/// Everything that is wrong: as found on opening, boxes that do not cover their tensor, bytes that
/// cannot be read or do not have their checksum, and what is not the recipe's.
pub fn verify(checkpoint: &Checkpoint, against: Option<&Against>) -> Vec<Finding> {
    let mut findings = checkpoint.findings.clone();
    findings.extend(against.into_iter().flat_map(|against| contents(checkpoint, against)));
    let mut reader = Reader::new(checkpoint, BUFFER);
    for (name, tensor) in &checkpoint.tensors {
        findings.extend(covered(name, tensor));
        findings.extend(tensor.chunks.iter().filter_map(|chunk| reader.check(name, tensor, chunk).err()));
    }
    // A file that is missing or short is said once.
    let mut said = HashSet::new();
    findings.retain(|f| said.insert((f.rule, f.message.clone())));
    findings
}

fn covered(name: &str, tensor: &Tensor) -> Option<Finding> {
    let boxes: Vec<_> = tensor.chunks.iter().map(|chunk| &chunk.at).collect();
    let (name, whole) = (name.escape_debug(), crate::shape_text(&tensor.shape));
    let message = match cover::check(&tensor.shape, &boxes).err()? {
        Flaw::Gap(gap) => format!("no piece of `{name}` {whole} holds {gap} of its elements"),
        Flaw::Overlap(a, b) => format!("pieces {a} and {b} of `{name}` {whole} share elements"),
    };
    let finding = damaged("checkpoint/coverage", &name.to_string(), message);
    Some(finding.hint("pieces are missing or of two saves: restore the folder from a copy"))
}

/// Where names, shapes, mode or recipe differ.
pub fn contents(checkpoint: &Checkpoint, against: &Against) -> Vec<Finding> {
    let (recipe, about) = (against.recipe, &checkpoint.about);
    let mut findings = Vec::new();
    if let Some(of) = &about.recipe {
        findings.extend(check_mode(about.mode.as_deref(), against.mode).err());
        findings.extend(match of.lines.is_empty() {
            false => check_identity(&of.lines, recipe).err(),
            true if of.sha256 == about::Of::new(recipe).sha256 => None,
            true => {
                let message = format!(
                    "the checkpoint is of another recipe than `{}`: `{}` by another hash",
                    recipe.name.terminal(),
                    of.name.terminal()
                );
                Some(Finding::error("checkpoint/recipe", Blame::Recipe, recipe.name.terminal(), message))
            }
        });
    }
    let say = |key: &str, message: String| {
        let finding = Finding::error("checkpoint/tensors", Blame::Recipe, key, message);
        finding.hint("give the recipe and mode it was saved from")
    };
    let mut wanted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let has_state = checkpoint.tensors.keys().any(|key| key.starts_with("optimizer."));
    for tensor in recipe.tensors() {
        let is_muon = tensor.optimizer == Optimizer::Muon;
        for (_, kind) in Kind::ALL.iter().filter(|(_, kind)| has_state || *kind == Kind::Weight) {
            if !(is_muon && *kind == Kind::Second) {
                wanted.insert(own::key(&tensor.path, *kind, is_muon), tensor.shape());
            }
        }
    }
    for (key, shape) in &wanted {
        match checkpoint.tensors.get(key) {
            None => findings.push(say(key, format!("the checkpoint lacks `{key}` of `{}`", recipe.name.terminal()))),
            Some(tensor) if tensor.shape != *shape => {
                let (here, there) = (crate::shape_text(shape), crate::shape_text(&tensor.shape));
                findings.push(say(
                    key,
                    format!("`{key}` is {there} in the checkpoint and {here} in `{}`", recipe.name.terminal()),
                ));
            }
            Some(_) => {}
        }
    }
    for (key, tensor) in checkpoint.tensors.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
        let of_known = own::parse(key).is_some_and(|(path, kind)| {
            kind.is_none() && tensor.shape.is_empty() && wanted.contains_key(&format!("model.{path}"))
        });
        if !of_known {
            findings.push(say(
                key,
                format!("the checkpoint has `{}`, which `{}` has not", key.escape_debug(), recipe.name.terminal()),
            ));
        }
    }
    findings
}
