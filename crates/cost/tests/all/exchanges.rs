//! How engines and dispatchers move what they move: each against what another would take.

use case::Options;
use case::options::Dispatch;
use cost::{Prices, Step};
use hardware::Cluster;
use layout::{Engine, LayoutRequest, StagePlan, ZeroStage, check};

/// The step of a recipe under a layout, with other options than its engine's own where `set` says so.
fn step(name: &str, on: &str, ask: impl Fn(&mut LayoutRequest), set: impl Fn(&mut Options)) -> Step {
    let recipe = recipe::builtin::find(name).unwrap();
    let cluster = Cluster::parse(on).unwrap();
    let mut request = LayoutRequest { world: Some(cluster.devices()), ..LayoutRequest::default() };
    ask(&mut request);
    let checked = check(&recipe, &request);
    let layout = checked.layout.clone().unwrap_or_else(|| panic!("{:?}", checked.findings));
    let mut options = Options::of(layout.engine, &recipe);
    set(&mut options);
    let plan = StagePlan::new(&recipe, &layout, None).unwrap();
    Prices::new(&recipe, &layout, &cluster, &options).unwrap().step(&layout, &plan).unwrap()
}

fn part(step: &Step, name: &str) -> f64 {
    step.parts.iter().filter(|line| line.name == name).map(|line| line.seconds).sum()
}

/// nanotron sums gradients whole where others leave each replica its part, and copies weights back for every tensor and
/// replica: wide data parallelism under ZeRO 1 costs it what it costs nobody else.
#[test]
fn nanotron_pays_for_every_replica_under_zero_1() {
    let of = |devices: u64, engine: Engine, zero: ZeroStage| {
        let on = format!("{}x8xH100@efa3200", devices / 8);
        step(
            "llama3-8b",
            &on,
            |r| (r.engine, r.zero, r.micro_batch, r.microbatches) = (Some(engine), Some(zero), Some(1), Some(1)),
            |_| {},
        )
    };
    let weights = |step: &Step| part(step, "weights exposed");
    let (narrow, wide) = (of(64, Engine::Nanotron, ZeroStage::One), of(512, Engine::Nanotron, ZeroStage::One));
    let elsewhere = of(512, Engine::Megatron, ZeroStage::One);
    // 195 tensors of 512 replicas, cut out and copied: 11 µs each on the usual host.
    assert!(weights(&wide) > 1.0 && weights(&wide) < 1.5, "{}", weights(&wide));
    assert!(weights(&wide) > 3.0 * weights(&narrow), "{} {}", weights(&wide), weights(&narrow));
    assert!(weights(&elsewhere) < 0.2 * weights(&wide), "{}", weights(&elsewhere));
    // Without ZeRO, torch's own wrapper reduces buckets while backward runs.
    let gradients = |zero| part(&of(64, Engine::Nanotron, zero), "gradients exposed");
    assert!(gradients(ZeroStage::Zero) < 0.7 * gradients(ZeroStage::One));
}

/// nanotron's linears and attention are functions in Python: with few tokens a step waits for the host, and longer than
/// under an engine that starts torch's own operations.
#[test]
fn nanotron_waits_longer_for_its_host() {
    let of = |engine: Engine, tokens: u64| {
        let ask = |r: &mut LayoutRequest| {
            (r.engine, r.tp, r.sp) = (Some(engine), Some(8), Some(true));
            (r.sequence, r.micro_batch, r.microbatches) = (Some(tokens), Some(1), Some(4));
        };
        step("llama3-8b", "8xH100", ask, |_| {})
    };
    let launch = |engine| part(&of(engine, 256), "launch");
    let (own, plain) = (launch(Engine::Nanotron), launch(Engine::Torchtitan));
    assert!(own > 1.25 * plain, "{own} {plain}");
    assert_eq!(part(&of(Engine::Nanotron, 32768), "launch"), 0.0, "behind so many tokens nobody waits");
}

/// Kernels made for tokens send each once to a rank, and put rows in the order of experts on the way.
#[test]
fn dispatchers_differ_by_copies_and_by_permutations() {
    let of = |on: &str, dispatch| {
        step(
            "qwen3-30b-a3b",
            on,
            |r| (r.ep, r.micro_batch, r.microbatches) = (Some(8), Some(1), Some(1)),
            |options| options.kernels.dispatch = dispatch,
        )
    };
    let [pairwise, deep, hybrid] =
        [Dispatch::AllToAll, Dispatch::DeepEp, Dispatch::HybridEp].map(|dispatch| of("8xH200", dispatch));
    let exchange = |step: &Step| part(step, "ep exposed");
    assert!(exchange(&deep) < 0.85 * exchange(&pairwise), "{} {}", exchange(&deep), exchange(&pairwise));
    assert_eq!(exchange(&deep), exchange(&hybrid));
    let [pairwise, deep, hybrid] = [pairwise, deep, hybrid].map(|step| part(&step, "bandwidth"));
    assert!(deep < pairwise && hybrid < deep, "{pairwise} {deep} {hybrid}");
}
