//! Legality at the speed of a table. Every rule of `layout` declares what of a layout it reads; here
//! it is put into the first table that varies all of that and is asked once for every entry, on a
//! probe layout. A point's refusals are then the union of a few masks; that the union is what
//! `layout::check` says is a property test.

use crate::point::{Key, Order};
use case::LayerKinds;
use diag::RuleId;
use layout::legality::{Case, Reads, Rule, rules};
use layout::{LayoutRequest, Needs, Recompute, Schedule, ZeroStage, settle};
use recipe::Recipe;
use std::collections::HashMap;
use std::hash::Hash;

/// Rules that refuse: the bit of a rule is its place among those of the engine.
pub type Mask = u128;

/// What varies over the entries of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Varied {
    /// tp and cp.
    Inside,
    /// ep and etp.
    Experts,
    /// tp and etp.
    Split,
    /// Whether tp, ep and pp split anything.
    Used,
    /// cp, and whether there is a pipeline.
    Timeline,
    /// The product of the dense degrees, against the world.
    DenseRanks,
    /// The product of the expert degrees, against the world.
    ExpertRanks,
    /// Ranks of a stage, and ep.
    StageRanks,
    /// Sequences all replicas take at once, against the global batch.
    Batch,
    /// pp and vpp under a schedule.
    Depth,
    /// A schedule, pp, and microbatches.
    Flow,
    /// ZeRO and pp, and whether ep splits.
    State,
    /// Recompute.
    Recompute,
}

impl Varied {
    const ALL: [Varied; 13] = [
        Varied::Inside,
        Varied::Experts,
        Varied::Split,
        Varied::Used,
        Varied::Timeline,
        Varied::DenseRanks,
        Varied::ExpertRanks,
        Varied::StageRanks,
        Varied::Batch,
        Varied::Depth,
        Varied::Flow,
        Varied::State,
        Varied::Recompute,
    ];

    /// What a rule in this table may read.
    fn reads(self) -> Reads {
        match self {
            Varied::Inside => Reads::TP | Reads::CP,
            Varied::Experts => Reads::EP | Reads::ETP,
            Varied::Split => Reads::TP | Reads::ETP,
            Varied::Used => Reads::TP_SPLITS | Reads::EP_SPLITS | Reads::PP_SPLITS,
            Varied::Timeline => Reads::CP | Reads::PP_SPLITS,
            Varied::DenseRanks => Reads::DENSE_RANKS,
            Varied::ExpertRanks => Reads::EXPERT_RANKS,
            Varied::StageRanks => Reads::STAGE_RANKS | Reads::EP,
            Varied::Batch => Reads::BATCH,
            Varied::Depth => Reads::PP | Reads::VPP | Reads::SCHEDULE,
            Varied::Flow => Reads::PP | Reads::SCHEDULE | Reads::MICROBATCHES,
            Varied::State => Reads::ZERO | Reads::PP | Reads::EP_SPLITS,
            Varied::Recompute => Reads::RECOMPUTE,
        }
    }

    /// The table of a rule.
    fn of(rule: &Rule) -> Option<Varied> {
        Varied::ALL.into_iter().find(|table| table.reads().covers(rule.reads))
    }
}

/// Masks by what varies; no rule may be in it, and then nothing is looked up.
#[derive(Clone, Debug)]
struct Table<K>(Option<HashMap<K, Mask>>);

impl<K: Copy + Eq + Hash> Table<K> {
    fn at(&self, key: K) -> Mask {
        self.0.as_ref().map_or(0, |masks| masks[&key])
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
    /// Sequences of a microbatch, with replicas.
    pub at_once: Vec<(u64, u64)>,
    /// Ranks of a stage, with ep.
    pub stage_ranks: Vec<(u64, u64)>,
}

/// The tables of one recipe in one mode.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Vec<&'static Rule>,
    world: u64,
    inside: Table<(u64, u64)>,
    experts: Table<(u64, u64)>,
    split: Table<(u64, u64)>,
    used: [Mask; 8],
    timeline: Table<(u64, bool)>,
    dense_ranks: Table<u64>,
    expert_ranks: Table<u64>,
    stage_ranks: Table<(u64, u64)>,
    batch: Table<(u64, u64)>,
    depth: Table<(u64, Order)>,
    flow: Table<(u64, Schedule, u64)>,
    state: Table<(u64, bool, ZeroStage)>,
    recompute: Vec<Mask>,
}

impl Rules {
    /// Asks every rule for every value. `recipe` is as its mode runs it, `kinds` are its layers'.
    pub fn new(recipe: &Recipe, kinds: &LayerKinds, fixed: &Fixed, values: &Values) -> Rules {
        let asker = Asker::new(recipe, kinds, fixed, values);
        Rules {
            world: fixed.world,
            inside: asker.inside(),
            experts: asker.experts(),
            split: asker.split(),
            used: asker.used(),
            timeline: asker.timeline(),
            dense_ranks: asker.dense_ranks(),
            expert_ranks: asker.expert_ranks(),
            stage_ranks: asker.stage_ranks(),
            batch: asker.batch(),
            depth: asker.depth(),
            flow: asker.flow(),
            state: asker.state(),
            recompute: asker.recompute(),
            rules: asker.rules.into_iter().map(|(rule, _)| rule).collect(),
        }
    }

    /// The rules that refuse, by name.
    pub fn names(&self, mask: Mask) -> impl Iterator<Item = RuleId> + '_ {
        self.rules.iter().enumerate().filter(move |(bit, _)| mask >> bit & 1 == 1).map(|(_, rule)| rule.id)
    }

    /// What refuses the degrees themselves and the batch, whatever the pipeline's order and state.
    pub fn mesh(&self, key: &Key, pp: u64, dp: u64) -> Mask {
        let used = usize::from(key.tp > 1) | usize::from(key.ep > 1) << 1 | usize::from(pp > 1) << 2;
        self.inside.at((key.tp, key.cp))
            | self.experts.at((key.ep, key.etp))
            | self.split.at((key.tp, key.etp))
            | self.used[used]
            | self.timeline.at((key.cp, pp > 1))
            | self.dense_ranks.at(key.tp * key.cp * pp)
            | self.expert_ranks.at(capped(key.ep * key.etp * pp, self.world))
            | self.stage_ranks.at((dp * key.cp * key.tp, key.ep))
            | self.batch.at((key.micro_batch, dp))
    }

    /// What refuses an order of the pipeline for so many microbatches.
    pub fn order(&self, pp: u64, order: Order, microbatches: u64) -> Mask {
        self.depth.at((pp, order)) | self.flow.at((pp, order.schedule, canonical(microbatches, pp)))
    }

    /// What refuses a ZeRO stage.
    pub fn state(&self, pp: u64, ep: u64, zero: ZeroStage) -> Mask {
        self.state.at((pp, ep > 1, zero))
    }

    /// The same without policies that are not kept.
    pub fn of_policies(&self, kept: &[bool]) -> Rules {
        let (mut rules, mut kept) = (self.clone(), kept.iter());
        rules.recompute.retain(|_| *kept.next().unwrap_or(&true));
        rules
    }

    /// What refuses a recompute policy.
    pub fn recompute(&self, policy: usize) -> Mask {
        self.recompute[policy]
    }
}

/// The least degree that splits, or does not.
fn splitting(splits: bool) -> u64 {
    if splits { 2 } else { 1 }
}

fn pairs<A: Copy, B: Copy>(a: &[A], b: &[B]) -> impl Iterator<Item = (A, B)> {
    a.iter().flat_map(|x| b.iter().map(|y| (*x, *y)))
}

/// A product beyond the world, which then is no multiple of it, stands for all of them.
fn capped(product: u64, world: u64) -> u64 {
    if product > world { 2 * world } else { product }
}

/// The fewest microbatches that no rule tells from these (see [`Reads::MICROBATCHES`]).
fn canonical(microbatches: u64, pp: u64) -> u64 {
    let round = 2 * pp;
    if microbatches < 2 * round { microbatches } else { round + microbatches % round }
}

/// Asks the rules of an engine, each table's for every value that varies there.
struct Asker<'a> {
    recipe: &'a Recipe,
    /// One layer of each kind: all that rules look at, but for those of depth.
    short: Recipe,
    rules: Vec<(&'static Rule, Varied)>,
    fixed: &'a Fixed,
    values: &'a Values,
    pps: Vec<u64>,
}

impl<'a> Asker<'a> {
    fn new(recipe: &'a Recipe, kinds: &LayerKinds, fixed: &'a Fixed, values: &'a Values) -> Asker<'a> {
        let mut short = recipe.clone();
        short.layers = kinds.one_of_each(recipe);
        debug_assert!(fixed.base.world.is_none());
        let table = |rule: &Rule| Varied::of(rule).expect("every rule fits a table: tested");
        let rules = rules(fixed.base.engine).map(|rule| (rule, table(rule))).collect();
        Asker { recipe, short, rules, fixed, values, pps: values.orders.iter().map(|(pp, _)| *pp).collect() }
    }

    fn has(&self, table: Varied) -> bool {
        self.rules.iter().any(|(_, of)| *of == table)
    }

    fn table<K: Copy + Eq + Hash>(
        &self,
        table: Varied,
        keys: impl IntoIterator<Item = K>,
        request: impl Fn(K) -> LayoutRequest,
    ) -> Table<K> {
        if !self.has(table) {
            return Table(None);
        }
        let mut masks = HashMap::new();
        for key in keys {
            masks.entry(key).or_insert_with(|| self.ask(table, &request(key)));
        }
        Table(Some(masks))
    }

    /// The rules of a table that refuse a request. One that cannot even be settled is beyond any
    /// machine, and every rule that would have looked at it refuses.
    fn ask(&self, table: Varied, request: &LayoutRequest) -> Mask {
        let recipe = if table == Varied::Depth { self.recipe } else { &self.short };
        let settled = settle(request, Needs::of(recipe)).ok();
        let refuses = |rule: &Rule| match &settled {
            Some((layout, _)) => rule.refuses(&Case { recipe, layout, request }),
            None => true,
        };
        let here = self.rules.iter().enumerate().filter(|(_, (_, of))| *of == table);
        here.filter(|(_, (rule, _))| refuses(rule)).fold(0, |mask, (bit, _)| mask | 1 << bit)
    }

    /// Degrees of one, where nothing is typed otherwise.
    fn one(&self) -> LayoutRequest {
        LayoutRequest { tp: Some(1), cp: Some(1), etp: Some(1), ..self.fixed.base.clone() }
    }

    fn inside(&self) -> Table<(u64, u64)> {
        let request = |(tp, cp)| LayoutRequest { tp: Some(tp), cp: Some(cp), ..self.fixed.base.clone() };
        self.table(Varied::Inside, self.values.inside.iter().copied(), request)
    }

    fn experts(&self) -> Table<(u64, u64)> {
        let request = |(ep, etp)| LayoutRequest { ep: Some(ep), etp: Some(etp), ..self.one() };
        self.table(Varied::Experts, self.values.experts.iter().copied(), request)
    }

    fn split(&self) -> Table<(u64, u64)> {
        let keys = pairs(&self.values.inside, &self.values.experts).map(|((tp, _), (_, etp))| (tp, etp));
        let request = |(tp, etp)| LayoutRequest { tp: Some(tp), ep: Some(1), etp: Some(etp), ..self.one() };
        self.table(Varied::Split, keys, request)
    }

    fn used(&self) -> [Mask; 8] {
        std::array::from_fn(|bits| {
            let [tp, ep, pp] = [0, 1, 2].map(|bit| Some(splitting(bits >> bit & 1 == 1)));
            self.ask(Varied::Used, &LayoutRequest { tp, ep, pp, ..self.one() })
        })
    }

    fn timeline(&self) -> Table<(u64, bool)> {
        let keys = pairs(&self.values.inside, &[false, true]).map(|((_, cp), splits)| (cp, splits));
        let request = |(cp, splits)| LayoutRequest { cp: Some(cp), pp: Some(splitting(splits)), ..self.one() };
        self.table(Varied::Timeline, keys, request)
    }

    fn dense_ranks(&self) -> Table<u64> {
        let (world, dp) = (self.fixed.world, self.fixed.dp);
        let products = pairs(&self.values.inside, &self.pps).map(|((tp, cp), pp)| tp * cp * pp);
        let request = |product| LayoutRequest { world: Some(world), dp, pp: Some(product), ..self.one() };
        self.table(Varied::DenseRanks, products.filter(|product| *product <= world), request)
    }

    fn expert_ranks(&self) -> Table<u64> {
        let world = self.fixed.world;
        let products = pairs(&self.values.experts, &self.pps).map(|((ep, etp), pp)| capped(ep * etp * pp, world));
        let request = |product| LayoutRequest { world: Some(world), ep: Some(product), ..self.one() };
        self.table(Varied::ExpertRanks, products, request)
    }

    fn stage_ranks(&self) -> Table<(u64, u64)> {
        let request = |(ranks, ep)| LayoutRequest { world: Some(ranks), ep: Some(ep), ..self.one() };
        self.table(Varied::StageRanks, self.values.stage_ranks.iter().copied(), request)
    }

    fn batch(&self) -> Table<(u64, u64)> {
        let (global_batch, microbatches) = (self.fixed.global_batch, self.fixed.microbatches);
        self.table(Varied::Batch, self.values.at_once.iter().copied(), |(micro_batch, dp)| LayoutRequest {
            world: Some(dp),
            micro_batch: Some(micro_batch),
            global_batch,
            microbatches,
            ..self.one()
        })
    }

    fn orders(&self) -> impl Iterator<Item = (u64, Order)> + '_ {
        self.values.orders.iter().flat_map(|(pp, orders)| orders.iter().map(|order| (*pp, *order)))
    }

    fn depth(&self) -> Table<(u64, Order)> {
        self.table(Varied::Depth, self.orders(), |(pp, order)| LayoutRequest {
            pp: Some(pp),
            vpp: Some(order.vpp),
            schedule: Some(order.schedule),
            ..self.one()
        })
    }

    fn flow(&self) -> Table<(u64, Schedule, u64)> {
        let counts = |(pp, order): (u64, Order)| {
            self.values.counts.iter().map(move |count| (pp, order.schedule, canonical(*count, pp)))
        };
        self.table(Varied::Flow, self.orders().flat_map(counts), |(pp, schedule, count)| LayoutRequest {
            pp: Some(pp),
            schedule: Some(schedule),
            microbatches: Some(count),
            ..self.one()
        })
    }

    fn state(&self) -> Table<(u64, bool, ZeroStage)> {
        let has_ep = self.values.experts.iter().any(|(ep, _)| *ep > 1);
        let splits: &[bool] = if has_ep { &[false, true] } else { &[false] };
        let keys =
            pairs(&self.pps, splits).flat_map(|(pp, splits)| self.values.zero.iter().map(move |z| (pp, splits, *z)));
        self.table(Varied::State, keys, |(pp, splits, zero)| LayoutRequest {
            pp: Some(pp),
            ep: Some(splitting(splits)),
            zero: Some(zero),
            ..self.one()
        })
    }

    fn recompute(&self) -> Vec<Mask> {
        let request = |policy: &Recompute| LayoutRequest { recompute: Some(policy.clone()), ..self.one() };
        self.values.recompute.iter().map(|policy| self.ask(Varied::Recompute, &request(policy))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Engine;

    #[test]
    fn every_rule_fits_a_table_and_a_mask() {
        let engines = Engine::ALL.iter().map(|(_, engine)| Some(*engine)).chain([None]);
        for engine in engines {
            let homeless: Vec<_> = rules(engine).filter(|rule| Varied::of(rule).is_none()).map(|r| r.id).collect();
            assert!(homeless.is_empty(), "no table varies all that these read: {homeless:?}");
            assert!(rules(engine).count() <= Mask::BITS as usize);
        }
    }
}
