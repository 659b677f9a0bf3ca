//! What an engine is asked to run: a case, and where it keeps things.

use crate::identity::Identity;
use crate::policy::Policy;
use case::{Case, Seams};
use hardware::Cluster;
use layout::{Layout, StagePlan};
use recipe::{Recipe, Seam};
use units::named;

named! {
    /// How Megatron-Core is reached.
    pub enum Frontend {
        /// Megatron-LM's own scripts and argument list.
        MegatronLm = "megatron-lm",
        /// A recipe module of Megatron-Bridge, as NeMo runs it.
        Bridge = "bridge",
    }
}

/// A case ready to be written down for its engine. The references are the case's own.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The job that was priced.
    pub case: &'a Case,
    /// The recipe as typed: its name and pattern are the model's identity.
    pub source: &'a Recipe,
    /// The recipe as its mode runs it.
    pub recipe: &'a Recipe,
    /// How it is split; legal, seams apart.
    pub layout: &'a Layout,
    /// Which layers each chunk holds.
    pub stages: &'a StagePlan,
    /// What it runs on.
    pub cluster: &'a Cluster,
    /// Where recipe and run differ already: the mode's seams, and those that were allowed.
    pub seams: &'a [Seam],
    /// Where it keeps things.
    pub policy: &'a Policy,
    /// How Megatron-Core is reached.
    pub frontend: Frontend,
    /// What tells two launches of the same job apart, where somebody says so.
    pub attempt: Option<&'a str>,
}

impl<'a> Job<'a> {
    /// A case with its policy.
    pub fn new(case: &'a Case, policy: &'a Policy, frontend: Frontend) -> Job<'a> {
        Job {
            case,
            source: &case.source,
            recipe: &case.recipe,
            layout: &case.layout,
            stages: &case.stages,
            cluster: case.on(),
            seams: &case.seams,
            policy,
            frontend,
            attempt: None,
        }
    }

    /// Where its checkpoints are: a folder that no other mode, feature bundle or engine has.
    pub fn checkpoints(&self) -> String {
        below(&self.policy.storage.checkpoints, &Identity::of(self).checkpoint_name)
    }

    /// Where its logs are: a folder of this launch alone.
    pub fn logs(&self) -> String {
        below(&self.policy.storage.logs, &Identity::of(self).job_name)
    }

    /// Those of an emission's seams that neither a module of ours nor the policy's `[seams]` fills. A policy names patches
    /// of Megatron's by the seam, and one `model` for all of torchtitan's; other programs have no place for either.
    pub fn unfilled<'s>(&self, seams: impl Iterator<Item = &'s Seam>) -> Vec<&'static str> {
        let names = |name: &str| self.policy.seams.contains_key(name);
        let named = |seam: &Seam| match self.case.engine() {
            layout::Engine::Megatron => names(seam.name),
            layout::Engine::Torchtitan => names("model"),
            _ => false,
        };
        seams.filter(|seam| seam.is_unfilled() && !named(seam)).map(|seam| seam.name).collect()
    }

    /// Whether blocks an engine does not have may be left to a patch.
    pub fn allows_seams(&self) -> bool {
        self.case.terms().seams == Seams::Allow
    }
}

/// A folder below another.
fn below(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}
