//! Legality at the speed of a table. Every rule of `layout` depends on a few axes only; here each
//! is asked once for every value of those axes, on a probe layout, and a point's refusals are then
//! the union of a few masks. Which rule depends on which axes is said in [`Table::of`]; that the
//! union is what `layout::check` says is a property test.

use crate::point::{Key, Order};
use diag::{RuleId, Severity};
use layout::{LayoutRequest, Recompute, Schedule, ZeroStage, check};
use recipe::{Layer, Recipe};
use std::collections::HashMap;
use std::hash::Hash;

/// Rules that refuse, one bit each.
pub type Mask = u64;

/// Axes that rules depend on together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    /// tp, cp, and everything that does not vary.
    Inside,
    /// ep and etp.
    Experts,
    /// pp and vpp under a schedule.
    Depth,
    /// A schedule, pp, and microbatches.
    Flow,
    /// ZeRO and pp, and whether ep is used.
    State,
    /// Recompute.
    Recompute,
    /// The product of the dense degrees, against the world.
    World,
    /// The product of the expert degrees, against the world.
    ExpertWorld,
    /// pp and ep, against the world.
    ExpertShards,
    /// tp and etp.
    Split,
    /// Whether tp, ep and pp are used at all.
    Used,
    /// Sequences all replicas take at once, against the global batch.
    Batch,
}

impl Table {
    /// The tables a rule is read from. Under several, either of them refuses by itself.
    fn of(rule: RuleId) -> &'static [Table] {
        match rule {
            "ep/experts" | "etp/expert-ffn" | "ep/no-experts" | "nanotron/ep" | "nanotron/etp" | "torchtitan/etp"
            | "deepspeed/etp" | "fsdp2/etp" => &[Table::Experts],
            "fsdp2/expert-split" => &[Table::Split],
            "pp/depth"
            | "vpp/depth"
            | "pp/boundaries"
            | "maxtext/layers"
            | "schedule/no-pipeline"
            | "schedule/one-chunk"
            | "schedule/chunks"
            | "schedule/v-chunks"
            | "schedule/dualpipe-even" => &[Table::Depth],
            "schedule/interleaved-microbatches" | "schedule/dual-microbatches" => &[Table::Flow],
            "megatron/schedule"
            | "fsdp2/schedule"
            | "torchtitan/schedule"
            | "deepspeed/schedule"
            | "nanotron/schedule"
            | "maxtext/schedule" => &[Table::Flow],
            "fsdp2/microbatches" | "torchtitan/microbatches" | "nanotron/microbatches" | "maxtext/microbatches" => {
                &[Table::Flow]
            }
            "torchtitan/tied-pp" | "torchtitan/mtp" | "fsdp2/tied" | "xla-spmd/mesh" => &[Table::Inside, Table::Flow],
            "megatron/muon-fsdp" | "nanotron/zero" | "fsdp2/zero" | "xla-spmd/zero" | "deepspeed/pp-zero"
            | "torchtitan/zero" => &[Table::State],
            "megatron/gdn-recompute" | "torchtitan/recompute" | "deepspeed/recompute" | "recompute/module" => {
                &[Table::Recompute]
            }
            "world/dense" => &[Table::World],
            "world/expert" => &[Table::ExpertWorld],
            "torchtitan/ep-mesh" => &[Table::ExpertShards],
            "deepspeed/ep-tp-pp" => &[Table::Used],
            "batch/global" => &[Table::Batch],
            _ => &[Table::Inside],
        }
    }
}

/// What never varies over a space.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// What was typed, degrees and policies that vary left out.
    pub base: LayoutRequest,
    /// Ranks in all.
    pub world: u64,
    /// Data-parallel degree, when typed.
    pub dp: Option<u64>,
    /// Sequences of a step, when typed or settled.
    pub global_batch: Option<u64>,
    /// Microbatches of a step, when typed.
    pub microbatches: Option<u64>,
}

/// The values that the tables are asked for.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Of tp and cp.
    pub inside: Vec<(u64, u64)>,
    /// Of ep and etp.
    pub experts: Vec<(u64, u64)>,
    /// Of pp, with the orders there are.
    pub orders: Vec<(u64, Vec<Order>)>,
    /// Microbatches of a step.
    pub counts: Vec<u64>,
    /// ZeRO stages.
    pub zero: Vec<ZeroStage>,
    /// Recompute policies.
    pub recompute: Vec<Recompute>,
    /// Microbatches on every replica at once.
    pub at_once: Vec<(u64, u64)>,
}

/// By pp and order.
type ByOrder = HashMap<(u64, Order), Mask>;

/// By pp, schedule and microbatches.
type ByFlow = HashMap<(u64, Schedule, u64), Mask>;

/// The tables of one recipe in one mode.
#[derive(Debug)]
pub struct Rules {
    ids: Vec<RuleId>,
    world: u64,
    inside: HashMap<(u64, u64), Mask>,
    experts: HashMap<(u64, u64), Mask>,
    depth: ByOrder,
    flow: ByFlow,
    state: HashMap<(u64, bool, ZeroStage), Mask>,
    split: HashMap<(u64, u64), Mask>,
    recompute: Vec<Mask>,
    dense_world: HashMap<u64, Mask>,
    expert_world: HashMap<u64, Mask>,
    expert_shards: HashMap<(u64, u64), Mask>,
    used: [Mask; 8],
    batch: HashMap<u64, Mask>,
}

impl Rules {
    /// Asks every rule for every value. `recipe` is as typed; the mode is in the base request.
    pub fn new(recipe: &Recipe, fixed: &Fixed, values: &Values) -> Rules {
        let mut asker = Asker::new(recipe, fixed);
        let base = &fixed.base;
        let pps: Vec<u64> = values.orders.iter().map(|(pp, _)| *pp).collect();
        let inside = table(&values.inside, |&(tp, cp)| {
            let request = LayoutRequest { tp: Some(tp), cp: Some(cp), ..base.clone() };
            asker.ask(Table::Inside, &request)
        });
        let experts = table(&values.experts, |&(ep, etp)| {
            asker.ask(Table::Experts, &LayoutRequest { ep: Some(ep), etp: Some(etp), ..one(base) })
        });
        let experts_used: Vec<u64> = if values.experts.iter().any(|(ep, _)| *ep > 1) { vec![1, 2] } else { vec![1] };
        let stages: Vec<((u64, u64), ZeroStage)> = pairs(&pairs(&pps, &experts_used), &values.zero);
        let state = table(&stages, |&((pp, ep), zero)| {
            asker.ask(Table::State, &LayoutRequest { pp: Some(pp), ep: Some(ep), zero: Some(zero), ..one(base) })
        });
        let state = state.into_iter().map(|(((pp, ep), zero), mask)| ((pp, ep > 1, zero), mask)).collect();
        let mut splits: Vec<(u64, u64)> =
            pairs(&values.inside, &values.experts).iter().map(|((tp, _), (_, etp))| (*tp, *etp)).collect();
        splits.sort_unstable();
        splits.dedup();
        let split = table(&splits, |&(tp, etp)| {
            asker.ask(Table::Split, &LayoutRequest { tp: Some(tp), ep: Some(1), etp: Some(etp), ..one(base) })
        });
        let again = values.recompute.iter().map(|policy| {
            let request = LayoutRequest { recompute: Some(policy.clone()), ..one(base) };
            asker.ask(Table::Recompute, &request)
        });
        let recompute = again.collect();
        let (depth, flow) = asker.pipelines(base, values);
        let (dense_world, expert_world) = asker.worlds(fixed, values, &pps);
        let eps: Vec<u64> = values.experts.iter().map(|(ep, _)| *ep).collect();
        let expert_shards = table(&pairs(&pps, &eps), |&(pp, ep)| {
            let world = Some((fixed.world / pp).max(1));
            asker.ask(Table::ExpertShards, &LayoutRequest { world, ep: Some(ep), ..one(base) })
        });
        let used = std::array::from_fn(|bits| {
            let degree = |bit: usize| Some(if bits >> bit & 1 == 1 { 2 } else { 1 });
            let request = LayoutRequest { tp: degree(0), ep: degree(1), pp: degree(2), etp: Some(1), ..base.clone() };
            asker.ask(Table::Used, &request)
        });
        let batch = table(&values.at_once, |&(micro_batch, dp)| {
            let request = LayoutRequest {
                world: Some(dp),
                micro_batch: Some(micro_batch),
                global_batch: fixed.global_batch,
                microbatches: fixed.microbatches,
                ..one(base)
            };
            asker.ask(Table::Batch, &request)
        });
        let batch = batch.into_iter().map(|((micro_batch, dp), mask)| (micro_batch * dp, mask)).collect();
        Rules {
            world: fixed.world,
            inside,
            experts,
            depth,
            flow,
            state,
            split,
            recompute,
            dense_world,
            expert_world,
            expert_shards,
            used,
            batch,
            ids: asker.ids,
        }
    }

    /// The rules that refuse, by name.
    pub fn names(&self, mask: Mask) -> impl Iterator<Item = RuleId> + '_ {
        self.ids.iter().enumerate().filter(move |(bit, _)| mask >> bit & 1 == 1).map(|(_, id)| *id)
    }

    /// What refuses the degrees themselves and the batch, whatever the pipeline's order and state.
    pub fn mesh(&self, key: &Key, pp: u64, dp: u64) -> Mask {
        let used = usize::from(key.tp > 1) | usize::from(key.ep > 1) << 1 | usize::from(pp > 1) << 2;
        self.inside[&(key.tp, key.cp)]
            | self.experts[&(key.ep, key.etp)]
            | self.split[&(key.tp, key.etp)]
            | self.dense_world[&(key.tp * key.cp * pp)]
            | self.expert_world[&capped(key.ep * key.etp * pp, self.world)]
            | self.expert_shards[&(pp, key.ep)]
            | self.used[used]
            | self.batch[&(key.micro_batch * dp)]
    }

    /// What refuses an order of the pipeline for so many microbatches.
    pub fn order(&self, pp: u64, order: Order, microbatches: u64) -> Mask {
        self.depth[&(pp, order)] | self.flow[&(pp, order.schedule, canonical(microbatches, pp))]
    }

    /// What refuses a ZeRO stage.
    pub fn state(&self, pp: u64, ep: u64, zero: ZeroStage) -> Mask {
        self.state[&(pp, ep > 1, zero)]
    }

    /// Forgets policies that are not kept.
    pub fn keep_policies(&mut self, kept: &[bool]) {
        let mut kept = kept.iter();
        self.recompute.retain(|_| *kept.next().unwrap_or(&true));
    }

    /// What refuses a recompute policy.
    pub fn recompute(&self, policy: usize) -> Mask {
        self.recompute[policy]
    }
}

/// Degrees of one, where nothing is typed otherwise.
fn one(base: &LayoutRequest) -> LayoutRequest {
    LayoutRequest { tp: Some(1), cp: Some(1), etp: Some(1), ..base.clone() }
}

fn table<K: Clone + Eq + Hash>(keys: &[K], mut ask: impl FnMut(&K) -> Mask) -> HashMap<K, Mask> {
    let mut found = HashMap::new();
    for key in keys {
        if !found.contains_key(key) {
            let mask = ask(key);
            found.insert(key.clone(), mask);
        }
    }
    found
}

fn pairs<A: Copy, B: Copy>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter().flat_map(|x| b.iter().map(|y| (*x, *y))).collect()
}

/// A product beyond the world, which then is no multiple of it, stands for all of them.
fn capped(product: u64, world: u64) -> u64 {
    if product > world { 2 * world } else { product }
}

/// The fewest microbatches that no rule tells from these: rules compare them with pp and 2·pp, and
/// ask for multiples of pp and of 2.
fn canonical(microbatches: u64, pp: u64) -> u64 {
    let round = 2 * pp;
    if microbatches < 2 * round { microbatches } else { round + microbatches % round }
}

/// Asks `layout::check`, and keeps the rules by number.
struct Asker<'a> {
    recipe: &'a Recipe,
    /// One layer of each kind: all that most rules look at.
    short: Recipe,
    ids: Vec<RuleId>,
}

impl<'a> Asker<'a> {
    fn new(recipe: &'a Recipe, fixed: &Fixed) -> Asker<'a> {
        let mut short = recipe.clone();
        let mut kinds: Vec<Layer> = Vec::new();
        for layer in &recipe.layers {
            if !kinds.contains(layer) {
                kinds.push(layer.clone());
            }
        }
        short.layers = kinds;
        debug_assert!(fixed.base.world.is_none());
        Asker { recipe, short, ids: Vec::new() }
    }

    fn ask(&mut self, table: Table, request: &LayoutRequest) -> Mask {
        let recipe = if table == Table::Depth { self.recipe } else { &self.short };
        let mut mask = 0;
        for finding in check(recipe, request).findings {
            if finding.severity != Severity::Error || !Table::of(finding.rule).contains(&table) {
                continue;
            }
            let known = self.ids.iter().position(|id| *id == finding.rule);
            let bit = known.unwrap_or_else(|| {
                self.ids.push(finding.rule);
                self.ids.len() - 1
            });
            assert!(bit < 64, "more than 64 rules refuse one space");
            mask |= 1 << bit;
        }
        mask
    }

    fn pipelines(&mut self, base: &LayoutRequest, values: &Values) -> (ByOrder, ByFlow) {
        let (mut depth, mut flow) = (HashMap::new(), HashMap::new());
        for (pp, orders) in &values.orders {
            for order in orders {
                let request =
                    LayoutRequest { pp: Some(*pp), vpp: Some(order.vpp), schedule: Some(order.schedule), ..one(base) };
                let mask = self.ask(Table::Depth, &request);
                depth.insert((*pp, *order), mask);
                for &count in &values.counts {
                    let count = canonical(count, *pp);
                    flow.entry((*pp, order.schedule, count)).or_insert_with(|| {
                        self.ask(Table::Flow, &LayoutRequest { microbatches: Some(count), ..request.clone() })
                    });
                }
            }
        }
        (depth, flow)
    }

    fn worlds(&mut self, fixed: &Fixed, values: &Values, pps: &[u64]) -> (HashMap<u64, Mask>, HashMap<u64, Mask>) {
        let world = fixed.world;
        let dense: Vec<u64> =
            pairs(&values.inside, pps).iter().map(|((tp, cp), pp)| tp * cp * pp).filter(|d| *d <= world).collect();
        let expert: Vec<u64> =
            pairs(&values.experts, pps).iter().map(|((ep, etp), pp)| capped(ep * etp * pp, world)).collect();
        let dense = table(&dense, |&product| {
            let request = LayoutRequest { world: Some(world), dp: fixed.dp, pp: Some(product), ..one(&fixed.base) };
            self.ask(Table::World, &request)
        });
        let expert = table(&expert, |&product| {
            let request = LayoutRequest { world: Some(world), ep: Some(product), ..one(&fixed.base) };
            self.ask(Table::ExpertWorld, &request)
        });
        (dense, expert)
    }
}
