//! One job: from what was asked to what is priced, launched, run and recorded. Every command that
//! prices or starts anything takes a [`Case`], and there is no other way to one than [`Case::new`].
//!
//! A case holds no figure: bytes are `memory`'s, seconds `cost`'s, an engine's arguments `launch`'s.
//! It reads no file: recipe and cluster come loaded.

pub mod asked;
mod build;
mod choices;
mod conditions;
mod difference;
pub mod documents;
pub mod kinds;
pub mod machines;
pub mod offers;
pub mod options;
mod pools;
mod render;
pub mod swap;
pub mod ways;
pub mod words;

pub use asked::Asked;
pub use build::{
    Purpose, Seams, Terms, as_seam, modes_of, offer_seams, options as options_of, settle_mode, wrong_world,
};
pub use choices::{Axis, Choices, Tried, useful_modules};
pub use conditions::precision_aware::is_used as is_precision_aware;
pub use conditions::{SparseKernels, is_about_widths, sparse_kernels, unmet};
pub use difference::{Difference, Part};
pub use documents::Documents;
pub use kinds::{KindId, LayerKinds, PerKind};
pub use options::Options;
pub use pools::{Pooled, common_devices, stages_of};
pub use render::layout_json;
pub use ways::Ways;

use diag::Finding;
use hardware::Cluster;
use layout::{Derived, Layout, OwnershipTable, StagePlan};
use recipe::{Recipe, Seam};

/// A job: what runs, how it is split, on what, and what its engine is told.
#[derive(Clone, Debug)]
pub struct Case {
    /// What was typed, nothing derived.
    pub asked: Asked,
    /// The recipe as typed, features and optimizers switched: its name and pattern are the model's
    /// identity.
    pub source: Recipe,
    /// The recipe as its mode runs it.
    pub recipe: Recipe,
    /// How it is split.
    pub layout: Layout,
    /// Which layers each chunk holds.
    pub stages: StagePlan,
    /// Who owns what.
    pub table: OwnershipTable,
    /// Kinds of layers.
    pub kinds: LayerKinds,
    /// What it runs on; none where nothing is priced.
    pub cluster: Option<Cluster>,
    /// What the engine runs besides recipe and layout.
    pub options: Options,
    /// Words that its engine is told as they stand.
    pub passed: Vec<Vec<String>>,
    /// What nobody typed, each with the reason for its value.
    pub defaults: Vec<Derived>,
    /// Where recipe and run differ: the mode's seams, and the engine's that were allowed.
    pub seams: Vec<Seam>,
    /// What checking it found besides: warnings, notes, and refusals that became seams.
    pub findings: Vec<Finding>,
    terms: Terms,
}

impl Case {
    /// What is said beside every figure of a job whose engine is told something that has no price here; nothing otherwise.
    pub fn beside_figures(&self) -> String {
        let names = words::not_priced(self.layout.engine, &self.passed);
        if names.is_empty() { String::new() } else { format!(" (not priced: {})", names.join(", ")) }
    }
}

/// Two cases are equal when they are the same job, however it was typed.
impl PartialEq for Case {
    fn eq(&self, other: &Case) -> bool {
        self.source == other.source
            && self.layout == other.layout
            && self.stages == other.stages
            && self.cluster == other.cluster
            && self.options == other.options
            && self.passed == other.passed
    }
}
