//! Steps of built-in recipes: believable, and moving the right way.

use ::case::{Options, PerKind};
use cost::{ChunkTimes, Counts, Part, Prices, Scratch, Step};
use hardware::Cluster;
use layout::activations::{Collective, Over, of_edges, of_mixer};
use layout::ownership::Row;
use layout::{Layout, LayoutRequest, OwnershipTable, Recompute, Schedule, StagePlan, ZeroStage, check};
use proptest::prelude::*;
use recipe::{Recipe, Role};

/// A recipe on a cluster under a legal layout.
pub struct Case {
    pub recipe: Recipe,
    pub cluster: Cluster,
    pub layout: Layout,
    pub options: Options,
}

impl Case {
    pub fn new(name: &str, on: &str, set: impl Fn(&mut LayoutRequest)) -> Option<Case> {
        let recipe = recipe::builtin::find(name).unwrap();
        let cluster = Cluster::parse(on).unwrap();
        let mut request = LayoutRequest { world: Some(cluster.devices()), ..LayoutRequest::default() };
        set(&mut request);
        let checked = check(&recipe, &request);
        let layout = checked.layout.clone().filter(|_| checked.is_legal())?;
        let options = Options::of(layout.engine, &recipe);
        Some(Case { recipe, cluster, layout, options })
    }

    fn prices(&self) -> Prices {
        Prices::new(&self.recipe, &self.layout, &self.cluster, &self.options).unwrap()
    }

    pub fn plan(&self) -> StagePlan {
        StagePlan::new(&self.recipe, &self.layout, None).unwrap()
    }

    fn step(&self) -> Step {
        self.prices().step(&self.layout, &self.plan()).unwrap()
    }

    /// Layers of each kind on these chunks.
    fn counts(&self, prices: &Prices, chunks: &[usize]) -> PerKind<u64> {
        let plan = self.plan();
        prices.kinds().count(chunks.iter().flat_map(|chunk| plan.chunks[*chunk].layers.clone()))
    }

    fn estimate(&self, prices: &Prices) -> f64 {
        let (plan, placed) = (self.plan(), prices.placed(&self.layout));
        let last = plan.chunks.len() - 1;
        let chunks: Vec<PerKind<u64>> = (0..=last).map(|chunk| self.counts(prices, &[chunk])).collect();
        let stages: Vec<PerKind<u64>> = plan.by_stage.iter().map(|held| self.counts(prices, held)).collect();
        let of = |layers, held: &[usize]| Counts { layers, is_first: held.contains(&0), is_last: held.contains(&last) };
        let stages: Vec<Counts> = stages.iter().zip(&plan.by_stage).map(|(layers, held)| of(layers, held)).collect();
        let times: Vec<ChunkTimes> =
            chunks.iter().enumerate().map(|(i, c)| prices.chunk(&placed, of(c, &[i]))).collect();
        prices.estimate(&mut Scratch::default(), &self.layout, &times, &stages).unwrap()
    }
}

fn part(step: &Step, name: &str) -> f64 {
    step.parts.iter().filter(|line| line.name == name).map(|line| line.seconds).sum()
}

#[test]
fn built_in_recipes_run_at_a_believable_share_of_the_peak() {
    for (name, on, tp, pp, ep) in [
        ("llama3-8b", "8xH100", 2, 1, 1),
        ("llama3-70b", "64xH100", 4, 4, 1),
        ("mixtral-8x7b", "64xH100", 1, 4, 8),
        ("deepseek-v3", "256x8xH100", 2, 16, 64),
        ("nemotron-h-8b", "8xH200", 1, 1, 1),
        ("nam56r", "64xH200", 1, 2, 8),
    ] {
        let case = Case::new(name, on, |r| {
            (r.tp, r.pp, r.ep, r.etp) = (Some(tp), Some(pp), Some(ep), Some(1));
            (r.micro_batch, r.microbatches) = (Some(1), Some(32));
        });
        let step = case.unwrap().step();
        assert!((0.03..0.6).contains(&step.mfu), "{name}: {step:#?}");
    }
}

#[test]
fn a_device_nobody_measured_is_refused_by_name() {
    let case = Case::new("llama3-8b", "8xH100", |_| {}).unwrap();
    let cluster = Cluster::parse("8xTPU-v5p").unwrap();
    let refused = Prices::new(&case.recipe, &case.layout, &cluster, &case.options).unwrap_err();
    assert!(refused.to_string().contains("TPU-v5p"), "{refused}");
}

#[test]
fn formats_a_device_lacks_are_refused() {
    let mut case = Case::new("llama3-8b", "8xA100", |_| {}).unwrap();
    case.options.format = ::case::options::Format::Fp8;
    let refused = Prices::new(&case.recipe, &case.layout, &case.cluster, &case.options).unwrap_err();
    assert_eq!(refused.to_string(), "A100 has no price: no peak or curve in fp8");
}

#[test]
fn seconds_are_those_of_the_step() {
    let case = Case::new("nam56r", "64xH200", |r| (r.pp, r.microbatches) = (Some(4), Some(8))).unwrap();
    let (prices, plan) = (case.prices(), case.plan());
    let placed = prices.placed(&case.layout);
    let layers: Vec<PerKind<u64>> = (0..4).map(|stage| case.counts(&prices, &[stage])).collect();
    let count = |stage: usize| Counts { layers: &layers[stage], is_first: stage == 0, is_last: stage == 3 };
    let stages: Vec<Counts> = (0..4).map(count).collect();
    let chunks: Vec<ChunkTimes> = stages.iter().map(|stage| prices.chunk(&placed, *stage)).collect();
    let scratch = &mut cost::Scratch::default();
    let seconds = prices.seconds(scratch, &case.layout, (&chunks, &stages), |_| true).unwrap();
    assert_eq!(seconds, Some(prices.step(&case.layout, &plan).unwrap().seconds));
}

/// Bytes a rank sends over the tensor axis, from the layout's own list: ring shares of what each
/// collective moves, the gather that backward repeats included.
fn tensor_bytes(case: &Case) -> f64 {
    let tp = case.layout.tp.get() as f64;
    let mixers = case.recipe.layers.iter().flat_map(|layer| layer.mixers());
    let inside = mixers.flat_map(|mixer| of_mixer(&case.recipe, &case.layout, mixer));
    let all = inside.chain(of_edges(&case.recipe, &case.layout));
    let mut bytes = 0.0;
    for exchange in all.filter(|e| matches!(e.axis, Over::Tp | Over::Sp)) {
        let whole = 2.0 * exchange.elements as f64 * if exchange.forward == Collective::AllGather { tp } else { 1.0 };
        let share = |collective| match collective {
            Collective::AllGather | Collective::ReduceScatter => whole * (tp - 1.0) / tp,
            Collective::AllReduce => 2.0 * whole * (tp - 1.0) / tp,
            _ => 0.0,
        };
        let again = if exchange.axis == Over::Sp && exchange.forward == Collective::AllGather { 1.0 } else { 0.0 };
        bytes += share(exchange.forward) * (1.0 + again) + share(exchange.backward);
    }
    bytes * case.layout.microbatches as f64
}

#[test]
fn volumes_are_the_layouts() {
    for (name, sp) in [("llama3-8b", true), ("llama3-8b", false), ("nemotron-h-8b", true)] {
        let case = Case::new(name, "8xH100", |r| {
            (r.tp, r.sp, r.micro_batch, r.microbatches) = (Some(4), Some(sp), Some(1), Some(3));
        })
        .unwrap();
        let step = case.step();
        let moved = step.traffic.iter().find(|row| row.axis == "tp").unwrap().bytes;
        let wanted = tensor_bytes(&case);
        assert!((moved / wanted - 1.0).abs() < 1e-9, "{name}: {moved} sent, {wanted} by the layout");
    }
}

#[test]
fn recompute_runs_forward_again() {
    let with = |recompute: Recompute| {
        let case = Case::new("llama3-8b", "8xH100", |r| r.recompute = Some(recompute.clone())).unwrap();
        let prices = case.prices();
        let counts = case.counts(&prices, &[0]);
        prices.stage(Counts { layers: &counts, is_first: false, is_last: false })
    };
    let (none, full) = (with(Recompute::None), with(Recompute::Full));
    assert_eq!(none.forward, full.forward);
    let again = full.backward_input - none.backward_input;
    assert!((again / none.forward - 1.0).abs() < 1e-6, "{again} again of {}", none.forward);
}

fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if usual.cases == 256 { 120 } else { usual.cases };
    ProptestConfig { cases, ..usual }
}

/// Built-in recipes under layouts drawn at random; those that are not legal are skipped.
fn cases() -> impl Strategy<Value = Case> {
    let names = ["llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v2-lite", "nemotron-h-8b", "nam56r"];
    let clusters = ["8xH200", "64xH100", "64xB200", "32xA100", "72xGB200"];
    let powers = |most: u32| (0..=most).prop_map(|n| 1u64 << n);
    let degrees = (powers(3), powers(3), powers(1), powers(3), powers(1), powers(1));
    let zero = prop::sample::select(ZeroStage::ALL.iter().map(|(_, zero)| *zero).collect::<Vec<_>>());
    let schedule = prop::sample::select(Schedule::ALL.iter().map(|(_, schedule)| *schedule).collect::<Vec<_>>());
    let policies = (zero, schedule, any::<bool>(), 1u64..40);
    let drawn = (prop::sample::select(names.to_vec()), prop::sample::select(clusters.to_vec()), degrees, policies);
    drawn.prop_filter_map("not legal", |(name, on, degrees, policies)| {
        let (tp, pp, cp, ep, vpp, micro_batch) = degrees;
        let (zero, schedule, full, microbatches) = policies;
        Case::new(name, on, |r| {
            (r.tp, r.pp, r.cp, r.ep, r.etp) = (Some(tp), Some(pp), Some(cp), Some(ep), Some(1));
            (r.micro_batch, r.microbatches, r.zero) = (Some(micro_batch), Some(microbatches), Some(zero));
            r.recompute = Some(if full { Recompute::Full } else { Recompute::None });
            if pp > 1 {
                r.schedule = Some(schedule);
                r.vpp = if schedule == Schedule::Interleaved { Some(2 * vpp) } else { None };
            }
        })
    })
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { recipe, cluster, layout, .. } = self;
        write!(
            f,
            "{} on {} of {}: {}",
            recipe.name.terminal(),
            cluster.devices(),
            cluster.device.name,
            layout.all_flags()
        )
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lines_sum_to_the_step_and_none_is_negative(case in cases()) {
        let step = case.step();
        let sum: f64 = step.parts.iter().map(|line| line.seconds).sum();
        prop_assert!((sum / step.seconds - 1.0).abs() < 1e-9, "{sum} of {}", step.seconds);
        prop_assert!(step.parts.iter().all(|line| line.seconds >= 0.0 && line.share <= 1.0));
        // What no other line explains is the stated reserve, no more and no less.
        let reserve = part(&step, "reserve");
        let stated = case.cluster.device.profile().unwrap().profile.host.step_seconds;
        prop_assert!((reserve - stated).abs() < 1e-6 * step.seconds, "reserve {reserve}, stated {stated}");
    }

    #[test]
    fn an_estimate_never_exceeds_the_step(case in cases()) {
        let prices = case.prices();
        let (estimate, step) = (case.estimate(&prices), prices.step(&case.layout, &case.plan()).unwrap().seconds);
        prop_assert!(estimate <= step * (1.0 + 1e-9), "{estimate} of {step}");
        prop_assert!(estimate > 0.5 * step, "{estimate} of {step}");
    }

    #[test]
    fn faster_links_are_never_slower(case in cases()) {
        let mut faster = case.cluster.clone();
        let mut links = 0;
        for link in [&mut faster.device.island_link, &mut faster.device.network].into_iter().flatten() {
            link.bytes_per_second *= 2.0;
            links += 1;
        }
        prop_assert!(links > 0);
        let prices = Prices::new(&case.recipe, &case.layout, &faster, &case.options).unwrap();
        let (before, after) = (case.step(), prices.step(&case.layout, &case.plan()).unwrap().seconds);
        prop_assert!(after <= before.seconds * (1.0 + 1e-9));
        // Twice the speed takes no more than half of the time away.
        prop_assert!(after >= 0.5 * before.seconds, "{after} of {}", before.seconds);
    }

    #[test]
    fn more_tensor_ranks_leave_each_less_to_multiply(case in cases()) {
        let Layout { tp, .. } = case.layout;
        let mut wider = Layout { tp: units::Degree::new(2 * tp.get()).unwrap(), ..case.layout.clone() };
        wider.sp |= wider.ep.splits();
        let prices = match Prices::new(&case.recipe, &wider, &case.cluster, &case.options) {
            Ok(prices) => prices,
            Err(refused) => {
                // Only units that do not divide excuse a case, and those of the llamas always do.
                let is_excused = refused.to_string().contains("cannot split") && !case.recipe.name.raw().starts_with("llama");
                prop_assert!(is_excused, "{refused}");
                return Ok(());
            }
        };
        let before = case.prices();
        let (narrow, wide) = (before.of_layers(), prices.of_layers());
        prop_assert_eq!(narrow.iter().len(), wide.iter().len());
        // A part whose rows are no multiple of 16 bytes leaves the fast kernels, and may take longer.
        let table = OwnershipTable::new(&case.recipe, &wider).unwrap();
        let unaligned = |row: &Row| row.part_shape(&wider).iter().rev().take(2).any(|side| side % 8 != 0);
        let is_aligned = !table.rows.iter().any(|row| row.tensor.role == Role::Matrix && unaligned(row));
        for (before, after) in narrow.iter().zip(wide.iter()) {
            prop_assert!(!is_aligned || after.of(Part::Gemm) <= before.of(Part::Gemm) * (1.0 + 1e-9));
            prop_assert!(after.of(Part::Attention) <= before.of(Part::Attention) * (1.0 + 1e-9));
        }
    }

    #[test]
    fn prices_do_not_depend_on_stages_or_replicas(case in cases()) {
        let one = Layout { pp: units::Degree::ONE, vpp: units::Degree::ONE, ..case.layout.clone() };
        let prices = Prices::new(&case.recipe, &one, &case.cluster, &case.options).unwrap();
        prop_assert_eq!(prices.of_layers(), case.prices().of_layers());
    }
}

/// Every built-in recipe has an interval around its price, made of published runs of its own kind.
#[test]
fn a_step_has_an_interval_of_runs_like_it() {
    for (name, kind) in [
        ("llama3-8b", "dense"),
        ("qwen3-30b-a3b", "experts"),
        ("deepseek-v3", "latent attention"),
        ("nemotron-3-nano-30b-a3b", "hybrid"),
    ] {
        let recipe = recipe::builtin::find(name).unwrap();
        let request =
            layout::LayoutRequest { world: Some(64), ep: recipe.moe.as_ref().map(|_| 8), ..Default::default() };
        let cluster = hardware::Cluster::parse("8x8xH100").unwrap();
        let case = case::Case::laid_out(recipe, &request, Some(cluster), case::Terms::SPLIT).unwrap();
        let step = cost::step(&case).unwrap();
        let interval = step.interval.unwrap();
        assert!(interval.low < interval.high && interval.rows >= 8, "{name}: {interval:?}");
        assert!(interval.class.starts_with(kind), "{name}: {interval:?}");
    }
}
