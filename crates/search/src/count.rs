//! How many layouts there are, and how many each rule refuses. Nothing is priced here, and few
//! layouts are looked at one by one: what refuses an order or a policy does not depend on the
//! degrees inside a layer.

use crate::point::Key;
use crate::rules::Mask;
use crate::space::{ModeSpace, Space};
use diag::RuleId;
use layout::ZeroStage;
use std::collections::{BTreeMap, HashMap};

/// The layouts of a space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub enumerated: u64,
    /// Those no rule refuses.
    pub legal: u64,
    /// How many each rule refuses; one layout may be refused by several.
    pub refused: BTreeMap<RuleId, u64>,
}

/// Layouts by what refuses them.
type Histogram = Vec<(Mask, u64)>;

/// Counts every layout of a space.
pub fn count(space: &Space) -> Counts {
    let mut counts = Counts::default();
    for mode in &space.modes {
        count_mode(space, mode, &mut counts);
    }
    counts
}

fn count_mode(space: &Space, mode: &ModeSpace, counts: &mut Counts) {
    let mut by_pipeline: HashMap<(u64, bool, u64), Histogram> = HashMap::new();
    let mut by_mask: HashMap<Mask, u64> = HashMap::new();
    for key in &mode.keys {
        for &pp in mode.orders.keys() {
            let Some(dp) = space.replicas(key, pp) else { continue };
            let microbatches = space.microbatches(key, dp);
            let pipeline = by_pipeline
                .entry((pp, key.ep > 1, microbatches))
                .or_insert_with(|| histogram(space, mode, [pp, key.ep], microbatches));
            let mesh = mode.rules.mesh(key, pp, dp);
            for (mask, number) in pipeline.iter() {
                *by_mask.entry(mesh | mask).or_default() += number;
            }
        }
    }
    for (mask, number) in by_mask {
        counts.enumerated += number;
        if mask == 0 {
            counts.legal += number;
        }
        for rule in mode.rules.names(mask) {
            *counts.refused.entry(rule).or_default() += number;
        }
    }
}

/// Everything that varies under fixed degrees, by what refuses it.
fn histogram(space: &Space, mode: &ModeSpace, [pp, ep]: [u64; 2], microbatches: u64) -> Histogram {
    let mut found: BTreeMap<Mask, u64> = BTreeMap::new();
    for &order in &mode.orders[&pp] {
        let here = mode.rules.order(pp, order, microbatches);
        let shapes = mode.shapes.get(&pp).into_iter().flatten().filter(|shape| shape.order == order).count();
        for &zero in &space.zero {
            for policy in 0..mode.recompute.len() {
                let mask = here | mode.rules.state(pp, ep, zero) | mode.rules.recompute(policy);
                // An order that has too few layers is still one layout, refused.
                *found.entry(mask).or_default() += shapes.max(1) as u64 * space.offload_under(zero).len() as u64;
            }
        }
    }
    found.into_iter().collect()
}

/// Legal layouts of one key.
pub fn legal_of(space: &Space, mode: &ModeSpace, key: &Key) -> u64 {
    let mut sum = 0;
    for (&pp, shapes) in mode.shapes.iter() {
        let Some(dp) = space.replicas(key, pp) else { continue };
        if mode.rules.mesh(key, pp, dp) != 0 {
            continue;
        }
        let microbatches = space.microbatches(key, dp);
        let orders = shapes.iter().filter(|shape| mode.rules.order(pp, shape.order, microbatches) == 0).count();
        let states: Vec<ZeroStage> =
            space.zero.iter().copied().filter(|zero| mode.rules.state(pp, key.ep, *zero) == 0).collect();
        let policies = (0..mode.recompute.len()).filter(|policy| mode.rules.recompute(*policy) == 0).count();
        sum += (orders * policies * space.states(&states)) as u64;
    }
    sum
}
