//! Whether a layout is legal for a recipe: every finding at once, each with the rule, the object,
//! the values, why, and which values would do. A folder a family, a file a rule; engines add theirs.
//!
//! A layout that passes here never fails later in ownership, stages or mesh.

mod adapters;
mod batch;
mod context;
pub(crate) mod depth;
#[cfg(test)]
pub(crate) mod example;
mod experts;
mod heads;
mod joint;
mod mixers;
mod modes;
mod reads;
mod recompute;
mod rule;
mod schedules;
mod sequence;
mod widths;
pub mod world;

pub use context::recurrence::RULE as UNCARRIED_STATE;
pub use heads::kv_shared::RULE as SHARED_KV_HEADS;
pub use joint::joint_fixes;
pub use reads::Reads;
pub use rule::{Check, Rule};
pub use widths::aligned::RULE as UNALIGNED;

use crate::engines;
use crate::layout::{Derived, Layout, Needs, settle};
use crate::request::{Engine, LayoutRequest};
use crate::size::Sizes;
use diag::{Finding, Severity, refuses};
use recipe::kinds::attention::{Attention, AttentionKind};
use recipe::kinds::gated_delta::GatedDelta;
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::moe::Moe;
use recipe::{Mixer, Recipe, Seam};

/// A recipe, as its mode runs it, under a layout.
pub struct Case<'a> {
    /// What the model is.
    pub recipe: &'a Recipe,
    /// How it is split.
    pub layout: &'a Layout,
    /// What was typed: a hint never contradicts it.
    pub request: &'a LayoutRequest,
}

/// Kinds that some layer or the prediction suffix uses; tables of a recipe that nothing uses do not
/// count.
impl Case<'_> {
    pub(crate) fn attention(&self) -> Option<Attention> {
        self.recipe.attention().filter(|_| self.recipe.uses(Mixer::Attention))
    }

    /// KV heads of grouped-query attention.
    pub(crate) fn kv_heads(&self) -> Option<u64> {
        match self.attention()?.kind {
            AttentionKind::Gqa { kv_heads, .. } => Some(kv_heads),
            AttentionKind::Mla(_) => None,
        }
    }

    pub(crate) fn moe(&self) -> Option<&Moe> {
        self.recipe.moe.as_ref().filter(|_| self.recipe.uses(Mixer::Moe))
    }

    pub(crate) fn mamba(&self) -> Option<&Mamba> {
        self.recipe.mamba.as_ref().filter(|_| self.recipe.uses(Mixer::Mamba))
    }

    fn recurrent(&self) -> Option<&M2rnn> {
        self.recipe.recurrent.as_ref().filter(|_| self.recipe.uses(Mixer::Recurrent))
    }

    fn gated_delta(&self) -> Option<&GatedDelta> {
        self.recipe.gated_delta.as_ref().filter(|_| self.recipe.uses(Mixer::GatedDelta))
    }
}

/// The rules of every engine, in the order their findings are listed.
const FAMILIES: &[&[&Rule]] = &[
    world::RULES,
    heads::RULES,
    mixers::RULES,
    widths::RULES,
    experts::RULES,
    sequence::RULES,
    context::RULES,
    depth::RULES,
    schedules::RULES,
    &[&batch::RULE],
    modes::RULES,
    &[&recompute::RULE],
    &[&adapters::RULE],
];

/// The rules that hold under an engine: the general ones, then its own.
pub fn rules(engine: Option<Engine>) -> impl Iterator<Item = &'static Rule> {
    let own = engine.map_or(&[][..], engines::rules);
    FAMILIES.iter().copied().flatten().chain(own).copied()
}

/// What checking a request came to.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The recipe as the mode runs it.
    pub recipe: Recipe,
    /// The settled layout, unless sizes made none.
    pub layout: Option<Layout>,
    /// What was filled in.
    pub derived: Vec<Derived>,
    /// Where recipe and run differ under the mode.
    pub seams: Vec<Seam>,
    /// Everything found: errors first, in the order of the rules.
    pub findings: Vec<Finding>,
}

impl Checked {
    /// Whether nothing refuses.
    pub fn is_legal(&self) -> bool {
        self.layout.is_some() && !refuses(&self.findings)
    }
}

/// Checks a request against a recipe.
pub fn check(recipe: &Recipe, request: &LayoutRequest) -> Checked {
    let (recipe, seams, mut findings) = match request.mode.map(|mode| recipe.in_mode(mode)) {
        None => (recipe.clone(), Vec::new(), Vec::new()),
        Some(Ok((recipe, seams))) => (recipe, seams, Vec::new()),
        Some(Err(finding)) => (recipe.clone(), Vec::new(), vec![finding]),
    };
    let seams = seams_of(request.engine, seams);
    let (layout, derived) = match settle(request, Needs::of(&recipe)) {
        Ok((layout, derived)) => (Some(layout), derived),
        Err(refusals) => {
            findings.extend(refusals);
            (None, Vec::new())
        }
    };
    if let Some(layout) = &layout {
        let case = Case { recipe: &recipe, layout, request };
        findings.extend(rules(layout.engine).flat_map(|rule| rule.findings(&case)));
        findings.extend(Sizes::of(&recipe).refusal(layout, 1.0));
    }
    findings.extend(recipe.notes.iter().cloned());
    findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
    debug_assert!(findings.iter().all(|f| f.severity <= Severity::Error));
    Checked { recipe, layout, derived, seams, findings }
}

/// Seams of a mode as an engine has them. A mode's are Megatron's: our modules fill them there. The FSDP2 program and
/// those that share its model have the blocks themselves; elsewhere a module of the user's has to.
pub fn seams_of(engine: Option<Engine>, mut seams: Vec<Seam>) -> Vec<Seam> {
    match engine {
        None | Some(Engine::Megatron | Engine::Shardwright) => {}
        Some(Engine::Fsdp2 | Engine::XlaSpmd | Engine::Deepspeed) => seams.retain(|seam| seam.gives_up),
        Some(Engine::Torchtitan | Engine::Maxtext | Engine::Nanotron) => {
            seams.iter_mut().for_each(|seam| seam.filled_by = None);
        }
    }
    seams
}

/// The multiples of `step` next below and above `n`, and a few more above.
fn multiples_near(n: u64, step: u64) -> Vec<u64> {
    let below = n / step * step;
    (0..4).map(|i| below.saturating_add(i * step)).filter(|m| *m > 0).collect()
}

/// Every rule of every engine, once.
#[cfg(test)]
fn every_rule() -> impl Iterator<Item = &'static Rule> {
    rules(None).chain(Engine::ALL.iter().flat_map(|(_, engine)| engines::rules(*engine)).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    /// Files that make a finding outside a rule, each with a test of its own: sizes that are none or too
    /// many together, units that would be cut, meshes that do not fill a world, orders that cannot be.
    const OTHERS: [&str; 5] = ["layout.rs", "ownership.rs", "mesh.rs", "order/mod.rs", "size.rs"];

    /// Source files of a folder that make a finding by themselves.
    fn makers(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                makers(&path, found);
            } else if std::fs::read_to_string(&path).unwrap().contains(concat!("Finding::", "error(")) {
                found.push(path);
            }
        }
    }

    #[test]
    fn findings_are_made_by_rules() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        makers(&source, &mut found);
        found.retain(|path| *path != source.join("legality/rule.rs"));
        let others: BTreeSet<_> = OTHERS.iter().map(|name| source.join(name)).collect();
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), others);
    }

    #[test]
    fn every_rule_holds_its_examples_and_has_an_id_of_its_own() {
        let rules: Vec<_> = every_rule().collect();
        rules.iter().for_each(|rule| rule.hold());
        let ids: BTreeSet<_> = rules.iter().map(|rule| rule.id).collect();
        assert_eq!((ids.len(), rules.len()), (128, 128));
    }
}
