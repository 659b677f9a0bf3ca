//! How a job is changed so that one device can be a rank of it: a smaller world, and routing that is even.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

use case::Case;
use layout::Engine;
use recipe::Mixer;
use serde::{Deserialize, Serialize};

/// Groups of a larger world take minutes to make, in one process as in many.
pub const MOST_RANKS: u64 = 128;

/// Megatron's word for routing that is even, whatever the scores (`megatron/training/arguments.py`).
pub const BALANCED: &str = "--moe-router-force-load-balancing";

/// One thing that is not as asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub what: String,
    pub why: String,
}

/// What the engine is told besides, so that a rank without others can run.
pub fn engine_words(case: &Case) -> Option<&'static str> {
    let is_routed = case.recipe.uses(Mixer::Moe) && case.layout.engine == Some(Engine::Megatron);
    is_routed.then_some(BALANCED)
}

/// Worlds that the job may be probed in, best first: as asked, or with fewer replicas. A replica count divides the one
/// asked for, so that whatever was divided over replicas still is.
pub fn worlds(case: &Case) -> Vec<(u64, u64)> {
    let layout = &case.layout;
    let dp = layout.dp.get();
    if layout.world <= MOST_RANKS {
        return vec![(layout.world, dp)];
    }
    let each = layout.world / dp;
    let divisors = (1..=dp).rev().filter(|count| dp.is_multiple_of(*count));
    let (mut few, many): (Vec<u64>, Vec<u64>) = divisors.partition(|count| each * count <= MOST_RANKS);
    // Where no count is small enough or legal, the smallest that is.
    few.extend(many.into_iter().rev());
    few.into_iter().map(|count| (each * count, count)).collect()
}

/// How the job that is probed differs from the one asked for.
pub fn changes(asked: &Case, probed: &Case) -> Vec<Change> {
    let mut changes = Vec::new();
    let (before, after) = (&asked.layout, &probed.layout);
    if before.world != after.world {
        let what = format!("dp {} -> {}, world {} -> {}", before.dp, after.dp, before.world, after.world);
        let why = format!(
            "groups of more than {MOST_RANKS} ranks take minutes to make; state that replicas share out is larger, and \
             `correction` says by how much"
        );
        changes.push(Change { what, why });
    }
    if let Some(word) = engine_words(probed) {
        let why = "scores of a rank whose collectives nobody answers mean nothing, and even routing is what is priced";
        changes.push(Change { what: word.to_string(), why: why.to_string() });
    } else if probed.recipe.uses(Mixer::Moe) && probed.layout.engine == Some(Engine::Fsdp2) {
        let what = "every expert is handed the same number of tokens".to_string();
        changes.push(Change { what, why: "even routing is what is priced".to_string() });
    }
    changes
}
