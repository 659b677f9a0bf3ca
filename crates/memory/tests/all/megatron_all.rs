//! Every built-in recipe is replayed, in the modes and with the features it has: parameters and
//! static lines are counted by hand, steps leak nothing, and more tokens never hold less.

use layout::{Layout, LayoutRequest, Mesh, Order, OwnershipTable, Schedule, StagePlan, check};
use ledger::megatron::{Job, MegatronOptions, Microbatches, Routing, explain, replay};
use recipe::{Feature, Mixer, Mode, Optimizer, Recipe};
use replay::Replay;
use replay::{Line, PhaseKind};
use std::collections::BTreeSet;

fn builtin(name: &str) -> Recipe {
    recipe::builtin::find(name).unwrap()
}

fn degrees(tp: u64, pp: u64, ep: u64, world: u64) -> LayoutRequest {
    LayoutRequest { tp: Some(tp), pp: Some(pp), ep: Some(ep), world: Some(world), ..LayoutRequest::default() }
}

fn in_mode(mode: Mode, request: LayoutRequest) -> LayoutRequest {
    LayoutRequest { mode: Some(mode), ..request }
}

/// A recipe as a layout runs it: with its mode's mixers.
struct Run {
    name: String,
    recipe: Recipe,
    layout: Layout,
}

impl Run {
    fn new(name: &str, recipe: &Recipe, request: &LayoutRequest) -> Run {
        let checked = check(recipe, request);
        let layout = checked.layout.unwrap_or_else(|| panic!("{name}: {:#?}", checked.findings));
        Run { name: format!("{name} {}", layout.flags()), recipe: checked.recipe, layout }
    }

    /// A replay under even routing, without saying who holds what.
    fn balanced(&self, rank: u64, microbatches: Microbatches) -> Replay {
        let stages = StagePlan::new(&self.recipe, &self.layout, None).unwrap();
        let routing = Routing::Balanced;
        let options = MegatronOptions { routing, microbatches, ..MegatronOptions::of(&self.recipe) };
        let job = Job { recipe: &self.recipe, layout: &self.layout, stages: &stages, rank, options: &options };
        replay(&job).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn replay(&self, rank: u64, steps: u32) -> Replay {
        let stages = StagePlan::new(&self.recipe, &self.layout, None).unwrap();
        let options = MegatronOptions { steps, ..MegatronOptions::of(&self.recipe) };
        let job = Job { recipe: &self.recipe, layout: &self.layout, stages: &stages, rank, options: &options };
        explain(&job).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

/// Every built-in recipe at least once.
fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    let mut add = |name: &str, features: &[Feature], request: LayoutRequest| {
        let recipe = builtin(name).with_features(features, &[]).unwrap();
        runs.push(Run::new(name, &recipe, &request));
    };
    let sp = |request: LayoutRequest| LayoutRequest { sp: Some(true), ..request };
    for name in ["nam56r", "nam56r-mini"] {
        for features in [&[][..], &[Feature::Mtp]] {
            add(name, features, in_mode(Mode::NemoNative, sp(degrees(2, 1, 1, 8))));
            add(name, features, in_mode(Mode::AuthorDp, degrees(1, 1, 1, 8)));
            add(name, features, in_mode(Mode::AuthorDp, degrees(1, 2, 8, 16)));
        }
        let all = [Feature::Mla, Feature::Dsa, Feature::Mtp, Feature::NgramHash, Feature::Structure];
        add(name, &all, in_mode(Mode::AuthorDp, degrees(1, 1, 1, 8)));
    }
    add("llama3-8b", &[], sp(degrees(2, 1, 1, 8)));
    add("llama3-70b", &[], sp(degrees(8, 4, 1, 32)));
    add("llama3-405b", &[], sp(degrees(8, 18, 1, 144)));
    add("mixtral-8x7b", &[], degrees(1, 4, 8, 32));
    add("qwen3-30b-a3b", &[], degrees(1, 2, 8, 16));
    add("qwen3-235b-a22b", &[], degrees(1, 8, 16, 128));
    add("deepseek-v2-lite", &[], degrees(1, 1, 8, 8));
    add("deepseek-v3", &[], degrees(1, 16, 8, 128));
    add("deepseek-v3", &[Feature::Mtp], degrees(1, 16, 8, 128));
    add("nemotron-h-8b", &[], sp(degrees(2, 1, 1, 8)));
    add("nemotron-3-nano-30b-a3b", &[], degrees(1, 2, 8, 16));
    add("gpt3-175b", &[], sp(degrees(8, 8, 1, 64)));
    add("gpt3-175b", &[], degrees(8, 1, 1, 8));
    add("turing-530b", &[], sp(degrees(8, 35, 1, 280)));
    for schedule in [Schedule::ZbH1, Schedule::DualPipe, Schedule::DualPipeV] {
        let some = |request| LayoutRequest { schedule: Some(schedule), microbatches: Some(8), ..request };
        add("llama3-8b", &[], some(degrees(1, 4, 1, 8)));
        add("gpt3-175b", &[], some(degrees(8, 4, 1, 32)));
        add("nam56r", &[Feature::Mtp], some(in_mode(Mode::AuthorDp, degrees(1, 2, 1, 2))));
    }
    for zero in [layout::ZeroStage::Two, layout::ZeroStage::Three] {
        add("mixtral-8x7b", &[], LayoutRequest { zero: Some(zero), ..degrees(1, 2, 4, 16) });
        let recompute = Some(layout::Recompute::Full);
        add("llama3-8b", &[], LayoutRequest { zero: Some(zero), recompute, ..degrees(1, 1, 1, 8) });
    }
    runs
}

#[test]
fn every_built_in_recipe_is_replayed_and_its_parameters_are_those_it_owns() {
    let runs = runs();
    for (name, _) in recipe::builtin::RECIPES {
        assert!(runs.iter().any(|run| run.name.starts_with(name)), "{name}");
    }
    for run in &runs {
        let table = OwnershipTable::new(&run.recipe, &run.layout).unwrap();
        let mesh = Mesh::new(&run.layout, Order::Megatron, run.recipe.uses(Mixer::Moe)).unwrap();
        for rank in [0, run.layout.world - 1] {
            let replay = run.replay(rank, 2);
            assert_eq!(replay.params, table.rank_params(&run.layout, &mesh, rank), "{} rank {rank}", run.name);
            assert_eq!(replay.by_line().iter().sum::<u64>(), replay.allocated_peak(), "{}", run.name);
        }
    }
}

#[test]
fn steps_leak_nothing() {
    for run in runs() {
        let kept = |steps| {
            let retained = run.replay(run.layout.world - 1, steps).retained;
            retained.into_iter().map(|h| (h.origin, h.name, h.count)).collect::<BTreeSet<_>>()
        };
        assert_eq!(kept(1), kept(3), "{}", run.name);
    }
}

/// The most a step's peak may differ: blocks are counted whole, and how much larger than asked for
/// a reused one is depends on how free blocks lie.
const SLACK: f64 = 0.002;

#[test]
fn more_microbatches_than_the_steady_state_needs_change_nothing() {
    let schedules = [
        (Schedule::OneF1b, 1, 1),
        (Schedule::OneF1b, 4, 1),
        (Schedule::Interleaved, 2, 3),
        (Schedule::Interleaved, 4, 2),
        (Schedule::ZbH1, 4, 1),
        (Schedule::DualPipe, 4, 1),
        (Schedule::DualPipeV, 4, 2),
    ];
    for name in ["nam56r", "llama3-8b"] {
        for (schedule, pp, vpp) in schedules {
            let mode = (name == "nam56r").then_some(Mode::AuthorDp);
            let (schedule, microbatches) = (Some(schedule), Some(6 * pp));
            let request = LayoutRequest { mode, vpp: Some(vpp), schedule, microbatches, ..degrees(1, pp, 1, pp) };
            let run = Run::new(name, &builtin(name), &request);
            for rank in 0..pp {
                let peak = |microbatches| run.balanced(rank, microbatches).allocated_peak() as f64;
                let (steady, all) = (peak(Microbatches::Steady), peak(Microbatches::All));
                assert!((steady / all - 1.0).abs() < SLACK, "{} rank {rank}: {steady} {all}", run.name);
            }
        }
    }
}

/// Stages as large as any are replayed in tens of milliseconds when optimised; the bound is for a
/// busy machine without it.
#[test]
fn large_stages_are_replayed_quickly() {
    let bound = std::time::Duration::from_millis(if cfg!(debug_assertions) { 5000 } else { 500 });
    for (name, layout) in [("llama3-405b", degrees(1, 1, 1, 1)), ("deepseek-v3", degrees(1, 16, 8, 128))] {
        let run = Run::new(name, &builtin(name), &LayoutRequest { microbatches: Some(120), ..layout });
        let start = std::time::Instant::now();
        run.balanced(0, Microbatches::Steady);
        println!("{} {:?}", run.name, start.elapsed());
        assert!(start.elapsed() < bound, "{}: {:?}", run.name, start.elapsed());
    }
}

fn line(replay: &Replay, phase: PhaseKind, line: Line) -> u64 {
    replay.phase(phase).unwrap().peak.by_line[line as usize]
}

/// Blocks are rounded and buffers padded: static lines are a little above what is counted.
fn assert_near(what: &str, held: u64, counted: u64) {
    let most = counted + counted / 200 + (1 << 20);
    assert!((counted..=most).contains(&held), "{what}: {held} held, {counted} counted");
}

/// On one replica every rank owns every tensor: weights 2 B, gradients 4 B, and of state 8 B where
/// Muon steps (main weight and momentum) and 12 B elsewhere.
#[test]
fn static_lines_are_counted_parameters_times_bytes() {
    for (name, mode) in [("nam56r", Some(Mode::AuthorDp)), ("gpt3-175b", None), ("nam56r", Some(Mode::NemoNative))] {
        let tp = if mode == Some(Mode::AuthorDp) { 1 } else { 2 };
        let request = LayoutRequest { mode, sp: Some(tp > 1), ..degrees(tp, 1, 1, tp) };
        let run = Run::new(name, &builtin(name), &request);
        let table = OwnershipTable::new(&run.recipe, &run.layout).unwrap();
        let of = |muon: bool| {
            let rows = table.rows.iter().filter(|row| (row.tensor.optimizer == Optimizer::Muon) == muon);
            rows.map(|row| row.part_elements(&run.layout)).sum::<u64>()
        };
        let replay = run.replay(0, 2);
        let at = |wanted| line(&replay, PhaseKind::Passes(1), wanted);
        let weights = at(Line::TpParams) + at(Line::ReplicatedParams) + at(Line::ExpertParams);
        assert_near("weights", weights, 2 * (of(true) + of(false)));
        let (muon, adam) = (at(Line::MatrixOptimizer), at(Line::OtherOptimizer));
        assert_eq!(muon > 0, of(true) > 0);
        assert_near("muon", muon, 8 * of(true));
        assert_near("adamw", adam, 12 * of(false));
    }
}

/// Whole tensors go to ranks: what all ranks of a group hold is the model's state once.
#[test]
fn muon_state_is_shared_out_by_whole_tensors() {
    let run = Run::new("nam56r", &builtin("nam56r"), &in_mode(Mode::AuthorDp, degrees(1, 1, 1, 8)));
    let tensors = run.recipe.tensors();
    let matrices = tensors.iter().filter(|tensor| tensor.optimizer == Optimizer::Muon);
    let counted = 8 * matrices.map(recipe::Tensor::elements).sum::<u64>();
    let held = |rank| line(&run.replay(rank, 2), PhaseKind::Passes(1), Line::MatrixOptimizer);
    let each: Vec<u64> = (0..8).map(held).collect();
    assert_near("muon over all ranks", each.iter().sum(), counted);
    let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
    assert!((*most as f64) < 1.02 * *least as f64, "{each:?}");
}

#[test]
fn more_tokens_never_hold_less() {
    let peak = |name: &str, features: &[Feature], request: LayoutRequest, micro_batch| {
        let recipe = builtin(name).with_features(features, &[]).unwrap();
        let request = LayoutRequest { micro_batch: Some(micro_batch), ..request };
        let run = Run::new(name, &recipe, &request);
        (0..run.layout.world).step_by(7).map(|rank| run.balanced(rank, Microbatches::Steady).allocated_peak()).max()
    };
    let author = |pp| in_mode(Mode::AuthorDp, degrees(1, pp, 1, 8));
    let schedule = |schedule, request| LayoutRequest { schedule: Some(schedule), ..request };
    let all = [Feature::Mla, Feature::Dsa, Feature::Mtp, Feature::NgramHash];
    let cases = [
        ("nam56r", &[][..], author(1)),
        ("nam56r", &[Feature::Mtp], author(2)),
        ("nam56r-mini", &all, author(1)),
        ("gpt3-175b", &[], degrees(8, 4, 1, 32)),
        ("deepseek-v3", &[Feature::Mtp], degrees(1, 8, 8, 64)),
        ("llama3-8b", &[], schedule(Schedule::ZbH1, degrees(1, 4, 1, 8))),
        ("llama3-8b", &[], schedule(Schedule::DualPipeV, degrees(1, 4, 1, 8))),
    ];
    for (name, features, request) in cases {
        let peaks: Vec<_> = [1, 2, 4].map(|mbs| peak(name, features, request.clone(), mbs)).to_vec();
        assert!(peaks.is_sorted() && peaks[0] < peaks[2], "{name}: {peaks:?}");
    }
}

/// A prediction suffix stands on the last stage and is booked as a feature: per depth at least the
/// fp32 softmax over the vocabulary is kept.
#[test]
fn prediction_depths_are_booked_as_features() {
    let with = |features: &[Feature], rank| {
        let recipe = builtin("nam56r").with_features(features, &[]).unwrap();
        let run = Run::new("nam56r", &recipe, &in_mode(Mode::AuthorDp, degrees(1, 2, 1, 2)));
        let softmax = run.layout.sequence * run.layout.micro_batch * recipe.vocab * 4;
        (run.replay(rank, 2).line(Line::FeatureActivations), softmax)
    };
    assert_eq!(with(&[], 1).0, 0);
    assert_eq!(with(&[Feature::Mtp], 0).0, 0);
    let (held, softmax) = with(&[Feature::Mtp], 1);
    assert!(held > 2 * softmax, "{held} {softmax}");
}

/// Backward that is split keeps operands of weight gradients: never less in flight than 1F1B.
#[test]
fn split_backward_holds_operands_until_their_turn() {
    let peak = |schedule, rank| {
        let request = LayoutRequest { schedule: Some(schedule), microbatches: Some(16), ..degrees(1, 4, 1, 4) };
        let run = Run::new("llama3-8b", &builtin("llama3-8b"), &request);
        run.balanced(rank, Microbatches::Steady).allocated_peak()
    };
    let peaks = |schedule| [0, 1, 2, 3].map(|rank| peak(schedule, rank));
    let (plain, split) = (peaks(Schedule::OneF1b), peaks(Schedule::ZbH1));
    assert!(plain.iter().zip(&split).all(|(plain, split)| split >= plain), "{plain:?} {split:?}");
    assert!(split[3] > plain[3], "the last stage holds one microbatch under 1F1B, and four here: {plain:?} {split:?}");
}

/// Each stage of ZeRO shares out one thing more; in the optimizer's step nothing is gathered.
#[test]
fn zero_shares_out_state_then_gradients_then_weights() {
    use layout::ZeroStage::{One, Three, Two, Zero};
    let replays = [Zero, One, Two, Three].map(|zero| {
        let request = LayoutRequest { zero: Some(zero), ..degrees(1, 1, 1, 8) };
        Run::new("llama3-8b", &builtin("llama3-8b"), &request).replay(3, 2)
    });
    let params = replays[0].params;
    for (replay, [weights, gradients, state]) in replays.iter().zip([[1, 1, 1], [1, 1, 8], [1, 8, 8], [8, 8, 8]]) {
        let at = |wanted| line(replay, PhaseKind::Update(1), wanted);
        assert_near("weights", at(Line::TpParams) + at(Line::ReplicatedParams), 2 * params / weights);
        assert_near("gradients", at(Line::Gradients), 4 * params / gradients);
        let moments = line(replay, PhaseKind::Passes(1), Line::OtherOptimizer);
        assert_near("state", moments, 12 * params / state);
    }
    let peaks: Vec<u64> = replays.iter().map(Replay::allocated_peak).collect();
    assert!(peaks.is_sorted_by(|a, b| a > b), "{peaks:?}");
    // What is in flight: gathered weights, and whole gradients on their way.
    let three = &replays[3];
    assert!(three.line(Line::Communication) > 0 && three.line(Line::Gradients) > 4 * params / 8);
}
