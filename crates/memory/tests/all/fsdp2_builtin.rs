//! Replays of built-in recipes under FSDP2: what is modelled is replayed, what is not is named.

use layout::{LayoutRequest, Recompute, StagePlan, ZeroStage, check};
use ledger::fsdp2::{Edges, Fsdp2Options, Job, Reshard, explain};
use recipe::Recipe;
use replay::Replay;
use replay::{Line, Unmodelled};

fn builtin(name: &str) -> Recipe {
    recipe::builtin::find(name).unwrap()
}

fn degrees(tp: u64, pp: u64, ep: u64, world: u64) -> LayoutRequest {
    let zero = Some(ZeroStage::Three);
    LayoutRequest { tp: Some(tp), pp: Some(pp), ep: Some(ep), world: Some(world), zero, ..LayoutRequest::default() }
}

fn told(
    recipe: &Recipe,
    request: &LayoutRequest,
    rank: u64,
    change: impl Fn(&mut Fsdp2Options),
) -> Result<Replay, Unmodelled> {
    let checked = check(recipe, request);
    let layout = checked.layout.unwrap();
    let stages = StagePlan::new(&checked.recipe, &layout, None).unwrap();
    let mut options = Fsdp2Options::of(&layout);
    change(&mut options);
    explain(&Job { recipe: &checked.recipe, layout: &layout, stages: &stages, rank, options: &options })
}

fn run(name: &str, request: &LayoutRequest, rank: u64) -> Result<Replay, Unmodelled> {
    told(&builtin(name), request, rank, |_| {})
}

const RUNS: [(&str, [u64; 4]); 8] = [
    ("llama3-8b", [1, 1, 1, 8]),
    ("llama3-8b", [2, 1, 1, 16]),
    ("llama3-70b", [8, 4, 1, 64]),
    ("mixtral-8x7b", [1, 1, 8, 16]),
    ("qwen3-30b-a3b", [1, 1, 8, 16]),
    ("deepseek-v2-lite", [1, 1, 1, 8]),
    ("nemotron-h-8b", [2, 1, 1, 8]),
    ("nemotron-3-nano-30b-a3b", [1, 2, 8, 16]),
];

#[test]
fn modelled_recipes_are_replayed_and_steps_leave_nothing() {
    for (name, [tp, pp, ep, world]) in RUNS {
        for recompute in [Recompute::None, Recompute::Full] {
            for rank in [0, world - 1] {
                let request = LayoutRequest { recompute: Some(recompute.clone()), ..degrees(tp, pp, ep, world) };
                let replay = run(name, &request, rank).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert!(replay.line(Line::TpParams) > 0, "{name}");
                let at = replay.highest();
                println!("{name} {recompute} {rank}: {} {} {}", at.kind, at.peak.origin, at.peak.allocated >> 20);
                assert_eq!(replay.by_line().iter().sum::<u64>(), replay.allocated_peak(), "{name}");
                assert_eq!(replay.phases.len(), 2 + 2 * 3, "{name}");
                assert!(replay.retained.is_empty(), "{name} {recompute} {rank}: {:?}", replay.retained);
                // Bytes may differ by what a reused block is larger.
                let end = |phase| replay.phase(phase).unwrap().allocated;
                assert!(
                    end(replay::PhaseKind::Update(2)).abs_diff(end(replay::PhaseKind::Update(1)))
                        < end(replay::PhaseKind::Update(1)) / 500,
                    "{name} {recompute} {rank}"
                );
            }
        }
    }
}

/// fp32 weights and two moments over eight ranks: 1.5 · 4 · 8.03 billion bytes each, by hand.
#[test]
fn sharded_state_is_counted_parameters() {
    let replay = run("llama3-8b", &degrees(1, 1, 1, 8), 0).unwrap();
    assert_eq!(replay.params, 8_030_261_248);
    let weights = replay.line(Line::TpParams) + replay.line(Line::ReplicatedParams);
    let bytes = 8_030_261_248 / 8 * 4;
    let near = |x: u64, y: u64| x >= y && x - y < 2 * bytes / 1000;
    assert!(near(weights, bytes), "{weights} {bytes}");
    assert!(near(replay.line(Line::OtherOptimizer), 2 * bytes), "{}", replay.line(Line::OtherOptimizer));
}

#[test]
fn the_peak_grows_with_the_microbatch() {
    for (name, [tp, pp, ep, world]) in RUNS {
        let peak = |micro_batch| {
            let request = LayoutRequest { micro_batch: Some(micro_batch), ..degrees(tp, pp, ep, world) };
            run(name, &request, 0).unwrap().allocated_peak()
        };
        let peaks = [1, 2, 4].map(peak);
        assert!(peaks.is_sorted() && peaks[0] < peaks[2], "{name}: {peaks:?}");
    }
}

#[test]
fn keeping_less_never_raises_the_peak() {
    let llama = builtin("llama3-8b");
    let request = degrees(1, 1, 1, 8);
    let peak = |reshard, edges| {
        let change = |options: &mut Fsdp2Options| (options.reshard, options.edges) = (reshard, edges);
        told(&llama, &request, 0, change).unwrap().allocated_peak()
    };
    assert!(peak(Reshard::DEFAULT, Edges::InRoot) < peak(Reshard::NEVER, Edges::InRoot));
    assert!(peak(Reshard::DEFAULT, Edges::Apart) < peak(Reshard::DEFAULT, Edges::InRoot));
    let checkpointed = LayoutRequest { recompute: Some(Recompute::Full), ..request.clone() };
    let full = run("llama3-8b", &checkpointed, 0).unwrap().allocated_peak();
    assert!(full < peak(Reshard::DEFAULT, Edges::InRoot));
}

#[test]
fn what_is_not_modelled_is_named() {
    let name = |run: Result<Replay, Unmodelled>| run.unwrap_err().what;
    let cp = LayoutRequest { cp: Some(2), ..degrees(1, 1, 1, 8) };
    assert_eq!(name(run("llama3-8b", &cp, 0)), "context parallelism");
    let one = LayoutRequest { zero: Some(ZeroStage::One), ..degrees(1, 1, 1, 8) };
    assert_eq!(name(run("llama3-8b", &one, 0)), "zero 1 under FSDP2");
    let compiled = told(&builtin("mixtral-8x7b"), &degrees(1, 1, 1, 8), 0, |options| options.compile = true);
    assert_eq!(name(compiled), "compiled expert and Mamba layers");
    let some = run("nam56r", &degrees(1, 1, 1, 8), 0).unwrap_err();
    assert_eq!(some.what, "optimizers other than AdamW");
    assert!(!some.why.is_empty());
}
