//! What a replay leaves out of a step's microbatches changes no figure, and what it walks does not grow
//! with them.

use case::{Case, Options, Terms};
use layout::activations::{Dealing, Routing};
use layout::{Engine, Layout, LayoutRequest, OwnershipTable, Recompute, Schedule, StagePlan, ZeroStage, check};
use ledger::shardwright::phases;
use ledger::{Ledger, RankJob};
use memory::fit::{Fit, HEADROOM, levers, work};
use proptest::prelude::*;
use recipe::Recipe;
use replay::Replay;
use replay::tape::Microbatches;

/// A built-in recipe of so many layers, on the layout asked for; none where it is illegal.
fn laid_out(name: &str, layers: usize, request: &LayoutRequest) -> Option<(Recipe, Layout)> {
    let mut recipe = recipe::builtin::find(name).unwrap();
    recipe.layers.truncate(layers);
    let checked = check(&recipe, request);
    checked.layout.map(|layout| (checked.recipe, layout))
}

/// A replay of one rank; none where nobody has a ledger for it.
fn replay((recipe, layout): &(Recipe, Layout), rank: u64, which: Microbatches) -> Option<Replay> {
    let stages = StagePlan::new(recipe, layout, None).unwrap();
    let mut ledger = Ledger::of(recipe, layout, &Options::of(layout.engine, recipe)).ok()?;
    match &mut ledger {
        Ledger::Megatron(options) => options.microbatches = which,
        Ledger::Fsdp2(options) => options.microbatches = which,
        Ledger::Deepspeed(options) => options.microbatches = which,
        Ledger::Nanotron(_) | Ledger::Shardwright(_) => {}
    }
    ledger.replay(&RankJob { recipe, layout, stages: &stages, rank }).ok()
}

/// Every figure of every phase.
fn figures(replay: &Replay) -> String {
    format!("{} {:?}", replay.params, replay.phases)
}

const NAMES: [&str; 6] =
    ["llama3-8b", "nam56r-mini", "deepseek-v2-lite", "nemotron-h-8b", "mixtral-8x7b", "nemotron-3-nano-30b-a3b"];
/// Built-in recipes whose replays are short enough for a test.
const NAMED: [&str; 10] = [
    "llama3-8b",
    "nam56r",
    "nam56r-mini",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "nemotron-h-8b",
    "nemotron-3-nano-30b-a3b",
    "gpt3-175b",
    "turing-530b",
];
const ZERO: [ZeroStage; 4] = [ZeroStage::Zero, ZeroStage::One, ZeroStage::Two, ZeroStage::Three];

fn request(engine: Engine, pp: u64, microbatches: u64, zero: ZeroStage) -> LayoutRequest {
    LayoutRequest {
        engine: Some(engine),
        tp: Some(1),
        pp: Some(pp),
        world: Some(2 * pp),
        zero: Some(zero),
        microbatches: Some(microbatches),
        ..LayoutRequest::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_replay_that_leaves_microbatches_out_gives_what_a_whole_one_gives(
        (name, layers) in (0..NAMES.len(), 4..9usize),
        engine in 0..3usize,
        (pp, rank) in (1..5u64, 0..4u64),
        microbatches in prop_oneof![3 => 1..28u64, 1 => 28..100u64],
        (zero, micro_batch) in (0..4usize, 1..3u64),
        is_recomputed in any::<bool>(),
    ) {
        let engine = [Engine::Fsdp2, Engine::Torchtitan, Engine::Deepspeed][engine];
        let pp = if engine == Engine::Deepspeed { 1 } else { pp };
        let recompute = if is_recomputed { Recompute::Full } else { Recompute::None };
        let request = LayoutRequest {
            micro_batch: Some(micro_batch),
            recompute: Some(recompute),
            ..request(engine, pp, microbatches, ZERO[zero])
        };
        let job = laid_out(NAMES[name], layers, &request);
        let rank = 2 * rank.min(pp - 1);
        let replays = job.and_then(|job| {
            Some([replay(&job, rank, Microbatches::Steady)?, replay(&job, rank, Microbatches::All)?])
        });
        if let Some([steady, all]) = replays {
            prop_assert_eq!(figures(&steady), figures(&all));
            prop_assert!(steady.operations <= all.operations);
        }
    }
}

#[test]
fn what_is_walked_does_not_grow_with_microbatches() {
    use Engine::{Deepspeed, Fsdp2, Megatron, Shardwright, Torchtitan};
    let mut seen = 0;
    let engines = [Fsdp2, Torchtitan, Deepspeed, Megatron, Shardwright];
    for (engine, zero) in engines.into_iter().flat_map(|engine| ZERO.map(|zero| (engine, zero))) {
        for name in ["llama3-8b", "nam56r-mini", "deepseek-v2-lite"] {
            let job = |count| laid_out(name, 6, &request(engine, 1, count, zero));
            let walked = |count| job(count).and_then(|job| replay(&job, 0, Microbatches::Steady)).map(|r| r.operations);
            let (some, many) = (walked(64), walked(100_000));
            assert_eq!(some, many, "{engine} {name} {zero}");
            seen += usize::from(many.is_some());
        }
    }
    assert!(seen > 30, "{seen}");
}

/// Of a pipeline too, on every stage; but for the buffers that FSDP2's program makes for each microbatch
/// to receive into, once a job: one from the stage before, one from the stage behind.
#[test]
fn what_is_walked_does_not_grow_with_microbatches_of_a_pipeline() {
    use Engine::{Fsdp2, Megatron, Shardwright, Torchtitan};
    let (plain, interleaved) = ((Schedule::OneF1b, 1), (Schedule::Interleaved, 2));
    let (split, both) = ((Schedule::ZbH1, 1), (Schedule::DualPipe, 1));
    let mut seen = 0;
    for (name, (engine, order), zero) in [
        ("llama3-8b", (Some(Megatron), plain), ZeroStage::One),
        ("llama3-8b", (Some(Megatron), interleaved), ZeroStage::One),
        ("deepseek-v2-lite", (Some(Megatron), plain), ZeroStage::One),
        ("deepseek-v2-lite", (Some(Megatron), interleaved), ZeroStage::One),
        ("llama3-8b", (None, split), ZeroStage::One),
        ("llama3-8b", (None, both), ZeroStage::One),
        ("llama3-8b", (Some(Shardwright), plain), ZeroStage::Three),
        ("llama3-8b", (Some(Fsdp2), plain), ZeroStage::Three),
        ("llama3-8b", (Some(Fsdp2), plain), ZeroStage::Two),
        ("nam56r-mini", (Some(Fsdp2), plain), ZeroStage::Two),
        ("deepseek-v2-lite", (Some(Torchtitan), plain), ZeroStage::Three),
        ("llama3-8b", (Some(Torchtitan), plain), ZeroStage::Two),
    ] {
        for (pp, stage) in [(2, 0), (2, 1), (4, 0), (4, 1), (4, 3)] {
            let walked = |count| {
                let asked = LayoutRequest {
                    engine,
                    schedule: Some(order.0),
                    vpp: Some(order.1),
                    ..request(Megatron, pp, count, zero)
                };
                let job = laid_out(name, 8, &asked)?;
                replay(&job, 2 * stage, Microbatches::Steady).map(|replay| replay.operations)
            };
            // Counts that leave the same rest when divided by any span up to ten.
            let (some, many) = (walked(64), walked(64 + 5040));
            let neighbours = u64::from(stage > 0) + u64::from(stage + 1 < pp);
            let receives = matches!(engine, Some(Fsdp2 | Torchtitan));
            let made = if receives { neighbours * 5040 } else { 0 };
            assert_eq!(some.map(|some| some + made), many, "{engine:?} {order:?} {name} {zero} stage {stage} of {pp}");
            seen += usize::from(many.is_some());
        }
    }
    assert!(seen > 50, "{seen}");
}

/// Every engine over built-in recipes: no replay walks more than was predicted, and none less than a
/// tenth of it.
#[test]
fn what_a_replay_walks_is_predicted() {
    let (mut seen, mut wrong) = (0, Vec::new());
    let mut judge = |name: &str, request: &LayoutRequest| {
        let Some((recipe, layout)) = laid_out(name, usize::MAX, request) else { return };
        let stages = StagePlan::new(&recipe, &layout, None).unwrap();
        let Ok(ledger) = Ledger::of(&recipe, &layout, &Options::of(layout.engine, &recipe)) else { return };
        let job = RankJob { recipe: &recipe, layout: &layout, stages: &stages, rank: layout.world - 1 };
        let Ok(replay) = ledger.replay(&job) else { return };
        let (predicted, walked) = (ledger.operations(&job), replay.operations);
        assert!(ledger.work(&job).operations >= predicted, "{name} {request:?}");
        let line = format!("{name} {request:?}: {predicted} for {walked}, {:.1}", predicted as f64 / walked as f64);
        if !(walked..=10 * walked).contains(&predicted) {
            wrong.push(line);
        }
        seen += 1;
    };
    let engines = [Engine::Megatron, Engine::Fsdp2, Engine::Torchtitan, Engine::Deepspeed, Engine::Nanotron];
    for (name, engine) in NAMED.iter().flat_map(|name| engines.map(|engine| (*name, engine))) {
        let usual = LayoutRequest { engine: Some(engine), tp: Some(1), world: Some(8), ..LayoutRequest::default() };
        judge(name, &LayoutRequest { microbatches: Some(3), ..usual.clone() });
        judge(name, &LayoutRequest { microbatches: Some(9), recompute: Some(Recompute::Full), ..usual.clone() });
        judge(name, &LayoutRequest { pp: Some(2), microbatches: Some(12), ..usual });
    }
    for name in NAMED {
        judge(name, &request(Engine::Shardwright, 2, 5, ZeroStage::One));
        judge(name, &request(Engine::Shardwright, 2, 1, ZeroStage::One));
        let schedule = Some(Schedule::GPipe);
        judge(name, &LayoutRequest { engine: None, schedule, ..request(Engine::Megatron, 2, 20, ZeroStage::One) });
        judge(name, &LayoutRequest { sequence: Some(32768), ..request(Engine::Fsdp2, 1, 1, ZeroStage::Three) });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 60, "{seen}");
}

/// State on the host is priced with the replay there is, and a change that would take too long is named.
#[test]
fn levers_take_no_more_than_they_are_allowed() {
    let recipe = recipe::builtin::find("llama3-8b").unwrap();
    let cluster = hardware::Cluster::parse("8xH200").unwrap();
    let request = request(Engine::Megatron, 1, 1, ZeroStage::One);
    let case =
        Case::laid_out(recipe, &LayoutRequest { world: Some(8), ..request }, Some(cluster), Terms::SPLIT).unwrap();
    let fit = Fit::price(&case, HEADROOM).unwrap();
    let all = levers(&case, &fit, u64::MAX, &|_| None);
    assert!(all.untried.is_empty() && all.found.len() > 5, "{all:?}");
    let each = work(&case).unwrap().operations;
    let some = levers(&case, &fit, 3 * each, &|_| None);
    assert!(some.found.iter().all(|lever| all.found.contains(lever)));
    assert!(!some.found.is_empty() && !some.untried.is_empty(), "{some:?}");
    // State on the host takes no replay of its own.
    let free = levers(&case, &fit, 0, &|_| None).found;
    assert_eq!(free.len(), 1, "{free:?}");
    assert!(free.iter().all(|lever| lever.change.starts_with("--offload-") && all.found.contains(lever)));
}

/// Routing as it was dealt is walked microbatch by microbatch; where nothing was dealt it is balanced.
#[test]
fn passes_of_our_own_runtime_that_are_booked_are_those_that_are_walked() {
    let schedules = [
        (Schedule::OneF1b, 1, 1),
        (Schedule::OneF1b, 3, 1),
        (Schedule::GPipe, 2, 1),
        (Schedule::Interleaved, 2, 2),
        (Schedule::ZbH1, 3, 1),
        (Schedule::DualPipe, 2, 1),
        (Schedule::DualPipeV, 2, 2),
    ];
    let mut seen = 0;
    for name in ["llama3-8b", "nam56r-mini", "deepseek-v2-lite"] {
        for ((schedule, pp, vpp), zero) in schedules.into_iter().flat_map(|s| ZERO.map(|zero| (s, zero))) {
            let request =
                LayoutRequest { schedule: Some(schedule), vpp: Some(vpp), ..request(Engine::Shardwright, pp, 8, zero) };
            let Some((recipe, layout)) = laid_out(name, 8, &request) else { continue };
            let table = OwnershipTable::new(&recipe, &layout).unwrap();
            for rank in (0..2 * pp).step_by(2) {
                let of = |routing| phases(&recipe, &layout, &table, rank, 4, routing).unwrap();
                let dealing = Dealing::default();
                let [booked, walked] = [of(Routing::Balanced), of(Routing::Real(&dealing))].map(|p| p.map(|p| p.peak));
                assert_eq!(booked, walked, "{name} {schedule} zero {zero} rank {rank}");
                seen += 1;
            }
        }
    }
    assert!(seen > 80, "{seen}");
}
