//! The space: the values of every axis, the modes (one a mode), and points turned into layouts.
//!
//! What is in it: tp, cp, pp, ep that divide the world; etp that divides tp; microbatches of at
//! most [`MOST_TOKENS`] tokens that divide the global batch; every ZeRO stage; recompute of nothing,
//! of each useful module, of the cheap ones together, of everything; every schedule with every number
//! of chunks it has layers for; five partitions of depth; AdamW's state on the device or on the
//! host. SP follows TP. A typed value pins its axis, whatever it is; a mode pins the tensor axis to
//! the degree that is part of its identity.
//!
//! Engines other than Megatron-Core are searched over what their ledgers replay of it: whole layers
//! computed again or nothing, and optimizer state on the host where the engine has that. What is legal
//! there and not replayed (other schedules, context parallelism) is counted, with the reason.

use crate::cuts::{Cut, Evenness, Weights, cuts, in_a_search};
use crate::point::{Key, Offload, Order, Point};
use crate::predicted::{PROBE_SHARE, check, of_keys, trimmed};
use crate::question::{Offered, OffloadChoice, Question, Reach, usual_batch_of};
use crate::rules::{Fixed, Rules, Values};
use crate::shape::Shape;
use crate::simplicity::complexity;
use case::offers::{Bundle, bundles};
use case::{Asked, Case, LayerKinds, Options, Terms, modes_of, useful_modules};
use diag::quote::typed_line;
use diag::{Blame, Finding, RuleId};
use hardware::{Kind, Way};
use layout::request::RecomputeModule;
use layout::size::{MOST_BYTES, Sizes};
use layout::{Engine, Layout, LayoutRequest, Needs, Recompute, Schedule, ZeroStage, settle};
use ledger::Ledger;
use memory::estimate::Estimator;
use rayon::prelude::*;
use recipe::{Mixer, Mode, Recipe, Seam};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use units::{Degree, divisors};
use work::Work;

/// An engine that has no price for a job.
pub const NO_LEDGER: RuleId = "plan/ledger";

/// Tokens of a microbatch beyond which products gain nothing more.
pub const MOST_TOKENS: u64 = 1 << 17;

/// Queries a step of a ring has at least: a tile of a flash kernel's rows, below which a step takes
/// as long as a whole tile does (Dao, FlashAttention-2, arXiv 2307.08691).
const LEAST_QUERIES: u64 = 128;

/// Chunks a stage up to which every number is searched: of more, one more shortens the bubble by a 64th of a
/// stage's pass at most.
const EVERY_VPP: u64 = 64;

/// Values of the degrees inside a layer, with those of etp for each tp.
struct Axes {
    tp: Vec<u64>,
    etp: Vec<Vec<u64>>,
    cp: Vec<u64>,
    ep: Vec<u64>,
    micro_batch: Vec<u64>,
}

impl Axes {
    /// Keys there are of them, at most.
    fn count(&self) -> u64 {
        let inside: usize = self.etp.iter().map(Vec::len).sum();
        [self.cp.len(), self.ep.len(), self.micro_batch.len()].iter().fold(inside as u64, |n, len| n * *len as u64)
    }
}

/// How the number of microbatches follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// From sequences a step has in all.
    Global(u64),
    /// It was typed, and the global batch follows from it.
    Count(u64),
}

/// A mode, or none, under options of the engine, with everything that depends on which blocks run.
#[derive(Clone)]
pub struct ModeSpace {
    /// The mode.
    pub mode: Option<Mode>,
    /// The model as the mode runs it.
    pub recipe: Recipe,
    /// Kinds of its layers.
    pub kinds: LayerKinds,
    /// Where that differs from the model as typed.
    pub seams: Vec<Seam>,
    /// The first space of the same mode: what is chosen among all of them stands there.
    pub plain: usize,
    /// What the engine runs besides.
    pub options: Options,
    /// Its words for what the question's options lack.
    pub args: String,
    /// How many of these options are not plain (`case::offers`).
    pub complexity: u32,
    /// What prices memory, with what the engine is told.
    pub ledger: Ledger,
    /// What stages hold by that ledger; what it replayed for one search is known to the next.
    pub estimator: Arc<Estimator>,
    /// Degrees inside a layer, with the microbatch, in order.
    pub keys: Vec<Key>,
    /// Recompute policies.
    pub recompute: Vec<Recompute>,
    /// Legality.
    pub rules: Arc<Rules>,
    /// A settled layout to start from.
    pub template: Layout,
    /// For each pp, every order and cut that has layers enough.
    pub shapes: Arc<BTreeMap<u64, Vec<Shape>>>,
    /// For each pp, the orders asked for.
    pub orders: BTreeMap<u64, Vec<Order>>,
}

impl ModeSpace {
    /// What of the model the mode does not run.
    pub fn given_up(&self) -> impl Iterator<Item = &Seam> {
        self.seams.iter().filter(|seam| seam.gives_up)
    }

    /// What of the model runs only with a module that the user brings.
    pub fn brought(&self) -> impl Iterator<Item = &Seam> {
        self.seams.iter().filter(|seam| seam.is_unfilled())
    }

    /// Forgets policies that are not kept.
    pub fn keep_policies(&mut self, kept: &[bool]) {
        let mut each = kept.iter();
        self.recompute.retain(|_| *each.next().unwrap_or(&true));
        self.rules = Arc::new(self.rules.of_policies(kept));
    }
}

/// Everything that is searched.
pub struct Space<'a> {
    /// What was asked.
    pub question: Question<'a>,
    /// Ranks.
    pub world: u64,
    /// How microbatches follow.
    pub batch: Batch,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Whether there is an expert mesh.
    pub has_experts: bool,
    /// Whether a person gave the batch.
    pub is_batch_typed: bool,
    /// ZeRO stages.
    pub zero: Vec<ZeroStage>,
    /// Where AdamW's state may live.
    pub offload: Vec<Offload>,
    /// ZeRO stages under which the engine takes state on the host.
    host_under: Vec<ZeroStage>,
    /// One a mode.
    pub modes: Vec<ModeSpace>,
    /// Values that are not searched, so that the search stays within its limit.
    pub trimmed: Vec<Finding>,
}

impl<'a> Space<'a> {
    /// Lays the space out; refuses what no layout can mend.
    pub fn new(question: Question<'a>) -> Result<Space<'a>, Vec<Finding>> {
        let pinned = question.pinned;
        let world = question.cluster.devices();
        settle(&LayoutRequest { world: Some(world), ..pinned.clone() }, Needs::of(question.recipe))?;
        let sequence = pinned.sequence.unwrap_or(question.recipe.sequence);
        let is_batch_typed = pinned.global_batch.is_some() || pinned.microbatches.is_some();
        let batch = match (pinned.global_batch, pinned.microbatches) {
            (Some(global), _) => Batch::Global(global),
            (None, Some(count)) => Batch::Count(count),
            (None, None) => Batch::Global(usual_batch_of(question.recipe, world, sequence)),
        };
        let zero = pinned.zero.map_or_else(|| usual_zero(pinned.engine), |zero| vec![zero]);
        let mut space = Space {
            question,
            world,
            batch,
            sequence,
            has_experts: question.recipe.uses(Mixer::Moe),
            is_batch_typed,
            zero,
            offload: Vec::new(),
            host_under: Vec::new(),
            modes: Vec::new(),
            trimmed: Vec::new(),
        };
        let runs = |mode: &Mode| modes_of(pinned.engine).contains(mode);
        let modes: Vec<Option<Mode>> = match pinned.mode {
            Some(mode) => vec![Some(mode)],
            None if question.recipe.modes.is_empty() => vec![None],
            None => modes_at(question.recipe, pinned.tp).into_iter().filter(runs).map(Some).collect(),
        };
        if modes.is_empty() {
            let why = "the recipe runs in modes whose blocks this engine does not have";
            return Err(vec![refuse(&question, pinned.engine.map_or("any", Engine::name), why)]);
        }
        space.trim(question.recipe)?;
        for mode in modes {
            let own = space.mode_space(mode)?;
            space.modes.push(own);
        }
        if question.offload == OffloadChoice::Free && space.has_host() {
            let takes_host = |zero: &ZeroStage| space.takes_host(*zero);
            space.host_under = space.zero.iter().copied().filter(takes_host).collect();
        }
        let is_free = !space.host_under.is_empty();
        space.offload = if is_free { vec![Offload::Device, Offload::Host] } else { vec![Offload::Device] };
        Ok(space)
    }

    /// Whether AdamW's state may live on the host at all, by what device and engine have.
    fn has_host(&self) -> bool {
        let question = &self.question;
        let on_host = Options { offload: 1.0, ..question.overloaded(question.options) };
        question.cluster.device.link(Way::Host).is_ok()
            && offloads(question.pinned.engine)
            && self.modes.iter().all(|own| Ledger::of(&own.recipe, &own.template, &on_host).is_ok())
    }

    /// Whether the engine asserts nothing against state on the host under a ZeRO stage.
    fn takes_host(&self, zero: ZeroStage) -> bool {
        let question = &self.question;
        self.modes.iter().all(|own| {
            let layout = Layout { zero, ..own.template.clone() };
            let unmet = |offload: f64| {
                case::unmet(&own.recipe, &layout, &Options { offload, ..question.options }, Some(question.cluster))
            };
            let without = unmet(0.0);
            unmet(1.0).iter().all(|finding| without.contains(finding))
        })
    }

    /// Where AdamW's state may live under a ZeRO stage.
    pub fn offload_under(&self, zero: ZeroStage) -> &[Offload] {
        if self.host_under.contains(&zero) { &self.offload } else { &self.offload[..self.offload.len().min(1)] }
    }

    /// How many states a layout may have: ZeRO stages, each with the places where AdamW's state may live.
    pub fn states(&self, zero: &[ZeroStage]) -> usize {
        zero.iter().map(|zero| self.offload_under(*zero).len()).sum()
    }

    fn mode_space(&self, mode: Option<Mode>) -> Result<ModeSpace, Vec<Finding>> {
        let question = &self.question;
        let (recipe, seams) = match mode {
            Some(mode) => question.recipe.in_mode(mode).map_err(|finding| vec![finding])?,
            None => (question.recipe.clone(), Vec::new()),
        };
        let seams = layout::seams_of(question.pinned.engine, seams);
        let base = LayoutRequest {
            sequence: Some(self.sequence),
            mode,
            sp: question.pinned.sp,
            engine: question.pinned.engine,
            boundaries: question.pinned.boundaries.clone(),
            vocab_multiple: question.pinned.vocab_multiple,
            ..LayoutRequest::default()
        };
        let (template, _) = settle(&LayoutRequest { boundaries: None, ..base.clone() }, Needs::of(&recipe))?;
        let ledger = Ledger::of(&recipe, &template, &question.overloaded(question.options));
        let ledger = ledger.map_err(|reason| vec![refuse(question, &reason.what, &reason.why)])?;
        if let Ledger::Shardwright(_) = ledger {
            let why = "it is the runtime that `rehearse` runs on this machine, and nothing launches it on a cluster";
            return Err(vec![refuse(question, "shardwright", why)]);
        }
        let keys = self.countable(self.keys(&recipe, mode), &recipe, &template)?;
        let recompute = match (&question.pinned.recompute, &ledger) {
            (Some(policy), _) => vec![policy.clone()],
            (None, Ledger::Megatron(_)) => policies(&recipe),
            (None, _) => vec![Recompute::None, Recompute::Full],
        };
        let orders: BTreeMap<u64, Vec<Order>> =
            self.stages().into_iter().map(|pp| (pp, self.orders(recipe.depth() as u64, pp))).collect();
        let values = self.values(&keys, &orders, &recompute);
        let fixed = Fixed {
            base,
            world: self.world,
            dp: question.pinned.dp,
            global_batch: match self.batch {
                Batch::Global(global) => Some(global),
                Batch::Count(_) => None,
            },
            microbatches: question.pinned.microbatches,
        };
        let kinds = LayerKinds::of(&recipe);
        let rules = Rules::new(&recipe, &kinds, &fixed, &values);
        let estimator = self.estimator(&recipe, &kinds, &ledger, &question.options);
        let rules = Arc::new(rules);
        let shapes = Arc::default();
        Ok(ModeSpace {
            mode,
            recipe,
            kinds,
            seams,
            plain: self.modes.len(),
            options: question.options,
            args: String::new(),
            complexity: 0,
            ledger,
            estimator,
            keys,
            recompute,
            rules,
            template,
            shapes,
            orders,
        })
    }

    fn estimator(&self, recipe: &Recipe, kinds: &LayerKinds, ledger: &Ledger, options: &Options) -> Arc<Estimator> {
        let most = self.question.limit.operations / PROBE_SHARE;
        Arc::new(Estimator::new(recipe, kinds, ledger, &self.question.overloaded(*options)).within(most))
    }

    /// Adds every mode, once it is cut, with sets of the engine's options turned on, where a ledger replays them.
    pub fn add_offered(&mut self) {
        if self.question.offered == Offered::Off {
            return;
        }
        for plain in 0..self.modes.len() {
            let own = &self.modes[plain];
            let bundles = bundles(self.question.pinned.engine, &own.recipe, &own.options, Some(self.question.cluster));
            let added: Vec<ModeSpace> =
                bundles.into_iter().filter_map(|bundle| self.with_options(plain, bundle)).collect();
            self.modes.extend(added);
        }
    }

    /// Searches the options that were typed alone, and says so.
    pub fn leave_out_offered(&mut self) {
        let all = self.modes.len();
        self.modes.retain(|own| own.args.is_empty());
        if self.modes.len() < all {
            let message = "options of the engine that are off by default are not searched".to_string();
            self.trimmed.push(trimmed("engine-args", message, "pin an axis, or --work-limit none"));
        }
    }

    fn with_options(&self, plain: usize, bundle: Bundle) -> Option<ModeSpace> {
        let own = &self.modes[plain];
        let options = self.question.overloaded(bundle.options);
        let ledger = Ledger::of(&own.recipe, &own.template, &options).ok()?;
        let estimator = self.estimator(&own.recipe, &own.kinds, &ledger, &bundle.options);
        let Bundle { args, options, complexity, no_recompute } = bundle;
        let mut with = ModeSpace { options, args, complexity, ledger, estimator, ..own.clone() };
        if no_recompute {
            let kept: Vec<bool> = own.recompute.iter().map(|policy| *policy == Recompute::None).collect();
            with.keep_policies(&kept);
        }
        (!with.recompute.is_empty()).then_some(with)
    }

    /// Leaves out values that nobody runs where there are too many to search, and refuses what is still too
    /// much.
    fn trim(&mut self, recipe: &Recipe) -> Result<(), Vec<Finding>> {
        let (pinned, depth) = (self.question.pinned, recipe.depth() as u64);
        let is_interleaved = pinned.schedule.is_none_or(|schedule| schedule == Schedule::Interleaved);
        let deepest = self.stages().into_iter().filter(|pp| *pp > 1).map(|pp| depth / pp).max().unwrap_or(0);
        if is_interleaved && pinned.vpp.is_none() && deepest > EVERY_VPP {
            let message = format!("of more than {EVERY_VPP} chunks a stage only powers of two are searched");
            self.trimmed.push(trimmed("vpp", message, "--vpp pins another number"));
        }
        let (stages, node) = (self.stages().len() as u64, self.question.cluster.devices_per_node);
        let is_too_much = |work: Work| work.operations > self.question.limit.operations;
        if is_too_much(of_keys(self.axes(recipe, None).count(), stages)) && pinned.tp.is_none() && node < self.world {
            self.question.reach = Reach::Node;
            let message = format!("tp is searched up to a node's {node} devices");
            self.trimmed.push(trimmed("tp", message, "--tp pins another degree; --work-limit none searches them all"));
        }
        let work = of_keys(self.axes(recipe, None).count(), stages);
        check(self, work, "pin an axis (--tp, --cp, --pp, --ep, --mbs)")
    }

    /// Values of the degrees inside a layer.
    fn axes(&self, recipe: &Recipe, mode: Option<Mode>) -> Axes {
        let pinned = self.question.pinned;
        let all = self.degrees();
        let most_tp = match self.question.reach {
            Reach::Anywhere => self.world,
            Reach::Node => self.question.cluster.devices_per_node,
        };
        let tp = match (pinned.tp, mode) {
            (Some(tp), _) => vec![tp],
            // A mode that was typed runs on fewer ranks than it is pinned to, with the rule's warning.
            (None, Some(mode)) if pinned.mode == Some(mode) => vec![mode.tensor_parallel().min(self.world)],
            (None, Some(mode)) => vec![mode.tensor_parallel()],
            (None, None) => all.iter().copied().filter(|tp| *tp <= most_tp).collect(),
        };
        let has_experts = recipe.uses(Mixer::Moe);
        let etp = |tp: u64| if has_experts { divisors(tp) } else { vec![1] };
        let etp = tp.iter().map(|tp| pinned.etp.map_or_else(|| etp(*tp), |etp| vec![etp])).collect();
        let is_ring = |cp: &u64| *cp == 1 || self.sequence / (2 * cp) >= LEAST_QUERIES;
        let cp = pinned.cp.map_or_else(|| all.iter().copied().filter(is_ring).collect(), |cp| vec![cp]);
        let experts = if has_experts { all } else { vec![1] };
        let ep = pinned.ep.map_or(experts, |ep| vec![ep]);
        Axes { tp, etp, cp, ep, micro_batch: self.micro_batches() }
    }

    /// Degrees inside a layer, with the microbatch.
    fn keys(&self, recipe: &Recipe, mode: Option<Mode>) -> Vec<Key> {
        let axes = self.axes(recipe, mode);
        let mut keys = Vec::new();
        for (&tp, etps) in axes.tp.iter().zip(&axes.etp) {
            for &cp in axes.cp.iter().filter(|cp| tp.saturating_mul(**cp) <= self.world) {
                for &ep in &axes.ep {
                    for &etp in etps {
                        keys.extend(axes.micro_batch.iter().map(|&micro_batch| Key { tp, cp, ep, etp, micro_batch }));
                    }
                }
            }
        }
        keys
    }

    /// The keys whose bytes can be counted, one microbatch through all layers; refused where none is.
    fn countable(&self, mut keys: Vec<Key>, recipe: &Recipe, template: &Layout) -> Result<Vec<Key>, Vec<Finding>> {
        let sizes = Sizes::of(recipe);
        let laid = |key: &Key| {
            let mut layout = template.clone();
            self.set_key(&mut layout, key);
            layout
        };
        let bytes = |key: &Key| sizes.under(&laid(key), 1.0).bytes();
        let least = keys.iter().min_by_key(|key| bytes(key)).copied();
        keys.retain(|key| bytes(key) <= MOST_BYTES);
        match least.and_then(|key| sizes.refusal(&laid(&key), 1.0)) {
            Some(finding) => Err(vec![finding]),
            None => Ok(keys),
        }
    }

    fn micro_batches(&self) -> Vec<u64> {
        if let Some(typed) = self.question.pinned.micro_batch {
            return vec![typed];
        }
        let most = (MOST_TOKENS / self.sequence.max(1)).max(1);
        match self.batch {
            Batch::Global(global) => divisors(global).into_iter().filter(|n| *n <= most).collect(),
            Batch::Count(_) => (0..24).map(|power| 1 << power).filter(|n| *n <= most).collect(),
        }
    }

    fn stages(&self) -> Vec<u64> {
        self.question.pinned.pp.map_or_else(|| self.degrees(), |pp| vec![pp])
    }

    /// Degrees of an axis that nobody typed. The program that `launch` writes for DeepSpeed splits over replicas alone.
    fn degrees(&self) -> Vec<u64> {
        match self.question.pinned.engine {
            Some(Engine::Deepspeed) => vec![1],
            _ => divisors(self.world),
        }
    }

    /// Schedules with the chunks they may have.
    fn orders(&self, depth: u64, pp: u64) -> Vec<Order> {
        let pinned = self.question.pinned;
        let schedules: Vec<Schedule> = match pinned.schedule {
            Some(schedule) => vec![schedule],
            None if pp == 1 => vec![Schedule::OneF1b],
            // `gpipe` takes as long as `1f1b` and keeps more: it never wins.
            None => {
                let all = Schedule::ALL.iter().map(|(_, schedule)| *schedule);
                all.filter(|schedule| *schedule != Schedule::GPipe).collect()
            }
        };
        let mut orders = Vec::new();
        for schedule in schedules {
            let chunks = match (pinned.vpp, schedule) {
                (Some(vpp), _) => vec![vpp],
                (None, Schedule::Interleaved) => {
                    let is_searched = |vpp: &u64| *vpp <= EVERY_VPP || vpp.is_power_of_two();
                    (2..=(depth / pp).max(2)).filter(is_searched).collect()
                }
                (None, Schedule::DualPipeV) => vec![2],
                (None, _) => vec![1],
            };
            orders.extend(chunks.into_iter().map(|vpp| Order { schedule, vpp }));
        }
        orders
    }

    /// Replicas under degrees, none when they do not divide the world.
    pub fn replicas(&self, key: &Key, pp: u64) -> Option<u64> {
        let dense = key.tp.checked_mul(key.cp)?.checked_mul(pp)?;
        self.world.is_multiple_of(dense).then(|| self.question.pinned.dp.unwrap_or(self.world / dense))
    }

    /// Microbatches of a step on one replica, as a layout settles them.
    pub fn microbatches(&self, key: &Key, dp: u64) -> u64 {
        match (self.question.pinned.microbatches, self.batch) {
            (Some(count), _) | (None, Batch::Count(count)) => count,
            (None, Batch::Global(global)) => (global / (key.micro_batch * dp)).max(1),
        }
    }

    fn values(&self, keys: &[Key], orders: &BTreeMap<u64, Vec<Order>>, recompute: &[Recompute]) -> Values {
        let (mut inside, mut experts, mut at_once) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut counts, mut stage_ranks) = (BTreeSet::new(), BTreeSet::new());
        for key in keys {
            inside.insert((key.tp, key.cp));
            experts.insert((key.ep, key.etp));
            for &pp in orders.keys() {
                if let Some(dp) = self.replicas(key, pp) {
                    at_once.insert((key.micro_batch, dp));
                    stage_ranks.insert((dp * key.cp * key.tp, key.ep));
                    counts.insert(self.microbatches(key, dp));
                }
            }
        }
        Values {
            inside: inside.into_iter().collect(),
            experts: experts.into_iter().collect(),
            orders: orders.iter().map(|(pp, list)| (*pp, list.clone())).collect(),
            counts: counts.into_iter().collect(),
            zero: self.zero.clone(),
            recompute: recompute.to_vec(),
            at_once: at_once.into_iter().collect(),
            stage_ranks: stage_ranks.into_iter().collect(),
        }
    }

    /// Cuts the depth for every order that has layers enough.
    pub fn cut(&mut self, mode: usize, weights: &Weights) {
        let own = &self.modes[mode];
        let depth = own.recipe.depth() as u64;
        let orders = own.orders.iter().flat_map(|(pp, orders)| orders.iter().map(|order| (*pp, *order)));
        let orders: Vec<(u64, Order)> = orders.filter(|(pp, order)| pp * order.vpp <= depth).collect();
        let cut = |&(pp, order): &(u64, Order)| (pp, self.shapes_of(own, weights, pp, order));
        let cut: Vec<(u64, Vec<Shape>)> = orders.par_iter().map(cut).collect();
        let mut shapes: BTreeMap<u64, Vec<Shape>> = own.orders.keys().map(|pp| (*pp, Vec::new())).collect();
        for (pp, list) in cut {
            shapes.entry(pp).or_default().extend(list);
        }
        self.modes[mode].shapes = Arc::new(shapes);
    }

    fn shapes_of(&self, own: &ModeSpace, weights: &Weights, pp: u64, order: Order) -> Vec<Shape> {
        let pinned = self.question.pinned;
        let list = match (&pinned.boundaries, pinned.balance) {
            (Some(given), _) => {
                let starts = std::iter::once(0).chain(given.iter().map(|b| *b as usize)).collect();
                vec![Cut { even: Evenness::Typed, starts }]
            }
            (None, Some(balance)) => vec![weights.balanced(balance, order, pp, in_a_search(pp))],
            (None, None) => cuts(&own.recipe, weights, order, pp),
        };
        let whole = list.into_iter().filter(|cut| cut.starts.len() as u64 == pp * order.vpp);
        let mut layout = own.template.clone();
        degrees(&mut layout, pp, order);
        whole.map(|cut| Shape::new(&layout, &own.kinds, weights.saved(), order, cut)).collect()
    }

    /// The layout of a point.
    pub fn layout(&self, point: &Point) -> Layout {
        let own = &self.modes[point.mode];
        let mut layout = own.template.clone();
        self.set_key(&mut layout, &point.key);
        self.set_pipeline(&mut layout, &point.key, point.pp, point.order);
        layout.zero = point.zero;
        layout.recompute = own.recompute[point.recompute].clone();
        let shape = self.shape(point);
        if shape.cut.even == Evenness::Typed || (point.pp > 1 && shape.cut.even != Evenness::Layers) {
            layout.boundaries = Some(shape.cut.starts.iter().skip(1).map(|start| *start as u64).collect());
        }
        layout
    }

    /// The job that a point stands for: what was typed, with the point's choices typed along.
    pub fn case(&self, point: &Point) -> Result<Case, Vec<Finding>> {
        let question = &self.question;
        let (layout, share) = (self.layout(point), question.offload.share(point.offload));
        let own = &self.modes[point.mode];
        let mut asked = question.asked.pinned_to(&layout, own.recipe.uses(Mixer::Moe), share);
        asked.state.engine_args.extend((!own.args.is_empty()).then(|| own.args.clone()));
        let case = Case::build(asked, question.recipe.clone(), Some(question.cluster.clone()), Terms::RUN)?;
        debug_assert_eq!(case.layout, layout);
        Ok(case)
    }

    /// How much a point asks of the people who run it.
    pub fn complexity(&self, point: &Point) -> u32 {
        let own = &self.modes[point.mode];
        complexity(point, self.shape(point), &own.recompute[point.recompute]) + own.complexity
    }

    /// The flags of a point's layout.
    pub fn words(&self, point: &Point) -> Vec<String> {
        let (own, share) = (&self.modes[point.mode], self.question.offload.share(point.offload));
        let mut words = self.layout(point).words(own.recipe.uses(Mixer::Moe));
        if share > 0.0 {
            words.extend(["--offload-optimizer".to_string(), share.to_string()]);
        }
        let args = self.question.asked.state.engine_args.iter().chain(Some(&own.args).filter(|args| !args.is_empty()));
        words.extend(args.flat_map(|args| ["--engine-args".to_string(), args.clone()]));
        words
    }

    /// The shape of a point's pipeline.
    pub fn shape(&self, point: &Point) -> &Shape {
        &self.modes[point.mode].shapes[&point.pp][point.shape]
    }

    /// Degrees inside a layer and the microbatch.
    pub fn set_key(&self, layout: &mut Layout, key: &Key) {
        layout.world = self.world;
        layout.tp = degree(key.tp);
        layout.cp = degree(key.cp);
        layout.ep = degree(key.ep);
        layout.etp = degree(key.etp);
        layout.micro_batch = key.micro_batch;
        layout.sp = key.tp > 1 && self.question.pinned.sp != Some(false);
    }

    /// Stages, replicas and microbatches.
    pub fn set_pipeline(&self, layout: &mut Layout, key: &Key, pp: u64, order: Order) {
        let dp = self.replicas(key, pp).unwrap_or(1);
        degrees(layout, pp, order);
        layout.dp = degree(dp);
        let expert = if self.has_experts { key.ep * key.etp * pp } else { key.tp * key.cp * pp };
        layout.edp = degree(self.world / expert);
        layout.microbatches = self.microbatches(key, dp);
        layout.global_batch = match self.batch {
            Batch::Global(global) => global,
            Batch::Count(count) => count.saturating_mul(key.micro_batch).saturating_mul(dp),
        };
    }
}

/// Modes that are searched under a typed tensor degree: those it is part of, as a job takes its mode from it. One that is no
/// mode's is another run of the model in each of them.
fn modes_at(recipe: &Recipe, tp: Option<u64>) -> Vec<Mode> {
    let all = recipe.modes.clone();
    let of_degree: Vec<Mode> = all.iter().copied().filter(|mode| Some(mode.tensor_parallel()) == tp).collect();
    if of_degree.is_empty() { all } else { of_degree }
}

/// An engine whose memory nobody replays. On a TPU that is every engine, and no other one would do.
fn refuse(question: &Question, what: &str, why: &str) -> Finding {
    let device = &question.cluster.device;
    if device.kind == Kind::Tpu {
        let message = format!(
            "{what} on {} cannot be searched: {why}, and nobody has measured what the device reaches",
            device.name
        );
        let on = question.asked.on.clone().unwrap_or_else(|| question.cluster.typed());
        let here = Asked { on: Some(on), ..question.asked.clone() };
        let mut there = Asked { on: Some("8xH200".to_string()), ..question.asked.clone() };
        (there.layout.engine, there.layout.world, there.state.engine_args) = (None, None, Vec::new());
        let hint = format!(
            "no engine on TPUs has a ledger: `shardwright launch {} --override-memory --explain`, with degrees of your \
             own, writes the job down unpriced; `shardwright plan {}` prices the model on GPUs",
            typed_line(here.words()),
            typed_line(there.words())
        );
        return Finding::error(NO_LEDGER, Blame::Engine, what, message).hint(hint);
    }
    let finding = Finding::error(NO_LEDGER, Blame::Engine, what, format!("{what} cannot be searched: {why}"));
    finding.hint("--engine megatron, fsdp2, torchtitan, deepspeed or nanotron; any drops engine rules")
}

/// Stages and the order of their passes.
pub(crate) fn degrees(layout: &mut Layout, pp: u64, order: Order) {
    layout.pp = degree(pp);
    layout.vpp = degree(order.vpp);
    layout.schedule = order.schedule;
}

fn degree(value: u64) -> Degree {
    Degree::new(value).unwrap_or(Degree::ONE)
}

/// Recompute worth trying: nothing, each module that can save memory here, the first few together
/// from the one that costs least on, everything.
fn policies(recipe: &Recipe) -> Vec<Recompute> {
    let mut modules = useful_modules(recipe);
    modules.sort_by_key(|module| work_of(*module));
    let mut found = vec![Recompute::None];
    let mut add = |modules: &[RecomputeModule]| {
        let mut modules = modules.to_vec();
        modules.sort();
        let policy = Recompute::Selective(modules);
        if !found.contains(&policy) {
            found.push(policy);
        }
    };
    modules.iter().for_each(|module| add(&[*module]));
    (2..=modules.len()).for_each(|count| add(&modules[..count]));
    found.push(Recompute::Full);
    found
}

/// Modules from the least work to the most: element-wise ones, then products by how wide they are.
fn work_of(module: RecomputeModule) -> usize {
    use RecomputeModule::{CoreAttn, GdnNormOut, Layernorm, MlaUpProj, Mlp, Moe, MoeAct, SharedExperts};
    let order = [Layernorm, MoeAct, GdnNormOut, MlaUpProj, CoreAttn, SharedExperts, Mlp, Moe];
    order.iter().position(|other| *other == module).unwrap_or(order.len())
}

/// ZeRO stages an engine is searched over. Megatron's beyond the optimizer state are another wrapper
/// (Megatron-FSDP) than DDP with a distributed optimizer, which its lane runs: they must be typed.
fn usual_zero(engine: Option<Engine>) -> Vec<ZeroStage> {
    match engine {
        None | Some(Engine::Megatron) => vec![ZeroStage::Zero, ZeroStage::One],
        Some(_) => ZeroStage::ALL.iter().map(|(_, zero)| *zero).collect(),
    }
}

/// Whether an engine has optimizer state on the host at all.
fn offloads(engine: Option<Engine>) -> bool {
    matches!(engine, None | Some(Engine::Megatron | Engine::Deepspeed))
}
