//! What an engine is asked to run: everything settled and checked before.

use crate::policy::Policy;
use diag::{Blame, Finding, Severity};
use hardware::Cluster;
use layout::{Checked, Layout, StagePlan};
use ledger::Ledger;
use memory::fit::OffloadRequest;
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

/// A model, a legal layout and a cluster, ready to be written down for an engine.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
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
    /// Where it keeps things.
    pub policy: &'a Policy,
    /// What the engine is told about precision and state, as it was priced; the engine's usual
    /// when no ledger prices it.
    pub told: Option<&'a Ledger>,
    /// What stays on the host.
    pub offload: OffloadRequest,
    /// Where recipe and run differ already: the mode's seams, and those that were allowed.
    pub seams: &'a [Seam],
    /// Whether blocks an engine does not have may be left to a patch.
    pub allowed: Seams,
    /// How Megatron-Core is reached.
    pub frontend: Frontend,
}

/// Layout keys: an engine that refuses one of these wants another layout, not a patch.
const LAYOUT_KEYS: &[&str] = &[
    "world",
    "tp",
    "sp",
    "cp",
    "pp",
    "vpp",
    "ep",
    "etp",
    "dp",
    "zero",
    "mbs",
    "gbs",
    "microbatches",
    "seq",
    "schedule",
    "recompute",
    "boundaries",
    "batch",
];

/// Whether a refusal is a block or feature the engine does not have, so that a patch of one's own
/// could stand there. A refusal that another layout would remove is none.
pub fn is_seam(finding: &Finding) -> bool {
    finding.severity == Severity::Error
        && finding.blame == Blame::Engine
        && finding.fix.is_none()
        && !LAYOUT_KEYS.contains(&finding.object.as_str())
}

/// A refusal as the seam it becomes when allowed.
pub(crate) fn as_seam(finding: &Finding) -> Seam {
    Seam {
        name: finding.rule,
        layers: Vec::new(),
        wanted: finding.message.clone(),
        runs: "nothing built in: a patch of your own must stand here".to_string(),
        gives_up: false,
    }
}

/// What to do about blocks an engine does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seams {
    /// Refuse them.
    Refuse,
    /// Emit, and mark each.
    Allow,
}

/// The seams of a checked layout: the mode's, and the engine's where they are allowed. Refused
/// with every finding otherwise.
pub fn seams(checked: &Checked, policy: Seams) -> Result<Vec<Seam>, Vec<Finding>> {
    let refusals: Vec<&Finding> = checked.findings.iter().filter(|f| f.severity == Severity::Error).collect();
    let all_seams = refusals.iter().all(|f| is_seam(f));
    if refusals.is_empty() || (policy == Seams::Allow && all_seams) {
        let engine = refusals.into_iter().map(as_seam);
        return Ok(checked.seams.iter().cloned().chain(engine).collect());
    }
    Err(checked.findings.clone())
}

/// Refusals with what lets them pass as seams, for a caller who has seen that it does.
pub fn offer_seams(mut findings: Vec<Finding>) -> Vec<Finding> {
    for finding in findings.iter_mut().filter(|f| is_seam(f)) {
        let hint = "--allow-seams emits the rest and marks this place";
        finding.hint = Some(finding.hint.take().map_or(hint.to_string(), |own| format!("{own}; {hint}")));
    }
    findings
}
