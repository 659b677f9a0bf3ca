//! What is asked: a model, a cluster, and what was pinned.

use crate::point::Offload;
use case::{Asked, Case, Options};
use hardware::Cluster;
use layout::LayoutRequest;
use memory::fit::Margin;
use recipe::{Mixer, Recipe};
use units::Bytes;
use work::Limit;

/// What is searched, and within which limits.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// What was typed, for the cases that come out.
    pub asked: &'a Asked,
    /// The model as typed, features and optimizers switched.
    pub recipe: &'a Recipe,
    /// What it runs on; its devices are the world.
    pub cluster: &'a Cluster,
    /// What was typed of the layout: a value pins its axis. The engine is part of it.
    pub pinned: &'a LayoutRequest,
    /// What the engine runs besides.
    pub options: Options,
    /// Whether options that are off by default are searched over.
    pub offered: Offered,
    /// Memory to leave free on every rank.
    pub headroom: Bytes,
    /// Copies of tokens that the fullest rank's experts receive, over their even share, under which a layout must fit;
    /// one is balance. Times are those of balanced experts.
    pub overload: f64,
    /// Where AdamW's state may live.
    pub offload: OffloadChoice,
    /// How far tensor parallelism may reach.
    pub reach: Reach,
    /// What the search may take of this machine.
    pub limit: &'a Limit,
}

impl Question<'_> {
    /// What a layout must leave free, and under which routing.
    pub fn margin(&self) -> Margin {
        Margin { headroom: self.headroom, overload: self.overload }
    }

    /// Operations of this machine that a job's replay takes.
    pub fn replay(&self, case: &Case) -> u64 {
        self.margin().work(case).map_or(0, |work| work.operations)
    }

    /// Options with the routing that must fit, under which memory is summed.
    pub(crate) fn overloaded(&self, options: Options) -> Options {
        let overload = if self.recipe.uses(Mixer::Moe) { self.overload } else { 1.0 };
        Options { overload, ..options }
    }
}

/// Where AdamW's state may live.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OffloadChoice {
    /// On the device or on the host, whichever is better.
    Free,
    /// This share on the host.
    Pinned(f64),
}

impl OffloadChoice {
    /// The share on the host.
    pub fn share(self, chosen: Offload) -> f64 {
        match self {
            OffloadChoice::Pinned(share) => share,
            OffloadChoice::Free => chosen.share(),
        }
    }
}

/// Whether options that are off by default are searched over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// Those of `case::offers::bundles`.
    Searched,
    /// The engine runs what was typed.
    Off,
}

/// How far tensor parallelism may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// As far as the rules allow.
    Anywhere,
    /// Over the devices of one node.
    Node,
}

/// Tokens a step has when no batch is typed: what large runs of the last years took, give or take
/// a factor of four (GPT-3: 3.2 M, arXiv 2005.14165; Llama 3: 4 to 16 M, arXiv 2407.21783).
const TOKENS_PER_STEP: u64 = 4 << 20;

/// Tokens a device has at most of such a step: few devices train small models or fine-tune, and a step should be seconds.
const TOKENS_PER_DEVICE: u64 = 128 << 10;

/// Sequences that a step of fine-tuning takes, at least one a device: recipes of adapters take 16 to 128 (Hu et al., LoRA,
/// arXiv 2106.09685, table 11 and after; Dettmers et al., QLoRA, arXiv 2305.14314, table 9).
const TUNED: u64 = 64;

/// Sequences of a step when none are typed, for a model that is trained whole or through adapters.
pub fn usual_batch_of(recipe: &Recipe, world: u64, sequence: u64) -> u64 {
    let usual = usual_batch(world, sequence);
    match recipe.adapters() {
        Some(_) if usual > TUNED => world << (TUNED / world.max(1)).max(1).ilog2(),
        _ => usual,
    }
}

/// Sequences of a step when none are typed: near [`TOKENS_PER_STEP`] tokens or what [`TOKENS_PER_DEVICE`] makes of few
/// devices, at least one a device, and a power of two on each, so that many degrees divide it.
fn usual_batch(world: u64, sequence: u64) -> u64 {
    let tokens = TOKENS_PER_STEP.min(TOKENS_PER_DEVICE.saturating_mul(world.max(1)));
    let each = tokens as f64 / sequence.max(1) as f64 / world.max(1) as f64;
    let power = each.max(1.0).log2().round() as u32;
    world << power.min(24)
}

#[cfg(test)]
mod tests {
    use super::usual_batch;

    #[test]
    fn the_usual_batch_divides_well() {
        assert_eq!(usual_batch(1, 4096), 32);
        assert_eq!(usual_batch(8, 4096), 256);
        assert_eq!(usual_batch(64, 8192), 512);
        assert_eq!(usual_batch(24, 4096), 768);
        assert_eq!(usual_batch(4096, 2048), 4096);
    }
}
