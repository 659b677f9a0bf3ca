//! The replay as other ledgers give theirs.

use super::phase::walked;
use super::{Held, InPhase};
use crate::Job;
use ::replay::line::Origin;
use ::replay::tape::Peak;
use ::replay::{Phase, PhaseKind, Replay, Unmodelled};
use layout::activations::Routing;
use layout::{Mesh, Order, OwnershipTable};
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Recipe};

/// What the runtime is told besides the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardwrightOptions {
    /// Bytes of a number: four or eight.
    pub bytes_each: u64,
}

impl ShardwrightOptions {
    /// Numbers of 32 bits.
    pub fn defaults() -> ShardwrightOptions {
        ShardwrightOptions { bytes_each: 4 }
    }
}

/// What the runtime refuses to run, it has no bytes for.
fn supported(recipe: &Recipe) -> Result<(), Unmodelled> {
    let mimo = match &recipe.mamba {
        Some(Mamba::Three(mamba)) => mamba.mimo_rank,
        _ => 1,
    };
    let missing = [(recipe.uses(Mixer::Mamba) && mimo > 1, "Mamba-3 with several inputs a head")];
    match missing.iter().find(|(is_there, _)| *is_there) {
        Some((_, what)) => Err(Unmodelled::new(*what, "this project's runtime does not run it")),
        None => Ok(()),
    }
}

/// Replays a step of one rank: state, passes, and the optimizer's step.
pub fn replay(job: &Job<ShardwrightOptions>) -> Result<Replay, Unmodelled> {
    supported(job.recipe)?;
    let table = OwnershipTable::new(job.recipe, job.layout).map_err(|findings| {
        Unmodelled::new("this layout", findings.iter().map(|f| f.message.as_str()).collect::<String>())
    })?;
    let refuse = |finding: diag::Finding| Unmodelled::new("this layout", finding.message);
    let has_experts = job.layout.ep.splits() || job.layout.etp.splits();
    let mesh = Mesh::new(job.layout, Order::Megatron, has_experts).map_err(refuse)?;
    let walked = walked(job.recipe, job.layout, &table, job.rank, job.options.bytes_each, Routing::Balanced);
    let (phases, operations) = walked.map_err(refuse)?;
    let params = table.rank_params(job.layout, &mesh, job.rank);
    Ok(Replay {
        params,
        phases: phases.iter().map(phase).collect(),
        operations,
        holders: Vec::new(),
        retained: Vec::new(),
    })
}

/// Nothing is reserved beyond what is allocated: the system's allocator is not modelled.
fn phase(of: &InPhase) -> Phase {
    let (kind, origin) = match of.phase {
        // A step in which moments exist already: our engine makes all its state at once.
        super::Phase::State => (PhaseKind::State, Origin::Setup),
        super::Phase::Passes => (PhaseKind::Passes(1), Origin::Pipeline),
        super::Phase::Reduce => (PhaseKind::Reduce, Origin::Optimizer),
        super::Phase::Step => (PhaseKind::Update(1), Origin::Optimizer),
    };
    let allocated = of.peak_bytes();
    Phase {
        kind,
        allocated: Held { saved: 0, ..of.held }.bytes(),
        peak: Peak { allocated, event: 0, by_line: of.peak, origin },
        requested_peak: allocated,
        by_part: [0; 3],
        reserved: allocated,
        reserved_peak: allocated,
        inactive_split_peak: 0,
    }
}
