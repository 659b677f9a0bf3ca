//! What a search calls the fastest is the fastest of everything it may choose from: every legal layout timed and
//! replayed, one by one, comes to the same. Nor does it matter how many threads there are.

use crate::common;
use hardware::Cluster;
use layout::{Engine, LayoutRequest};
use memory::fit::{Fit, Verdict};
use proptest::prelude::*;
use rayon::prelude::*;
use recipe::precision::OptimizerPolicy;
use search::{
    Answer, Effort, Found, Left, Point, Question, Replays, Scope, Space, answer, may_fit, nearest, pricers, search,
};
use units::Bytes;

const RECIPES: &[&str] = &["nam56r-mini", "llama3-8b", "deepseek-v2-lite"];

fn run(space: &Space, effort: Effort) -> (Found, Answer) {
    let pricers = pricers(space);
    let mut left = Left::of(space);
    let mut found = search(space, &pricers, (Scope::all(5), effort), &mut left, &|_, _| true);
    let answered = answer(space, &pricers, &mut found, &mut left, Replays::Best);
    (found, answered)
}

/// A layout, timed and replayed.
struct Replayed {
    per_sequence: f64,
    headroom: i64,
    complexity: u32,
    fits: bool,
}

/// Every legal layout of a mode under every set of options, timed and replayed as a job of its own.
fn replay_everything(space: &Space, plain: usize) -> Vec<Replayed> {
    let spaces = (0..space.modes.len()).filter(|mode| space.modes[*mode].plain == plain);
    spaces.flat_map(|mode| replay_all(space, mode)).collect()
}

fn replay_all(space: &Space, mode: usize) -> Vec<Replayed> {
    let (own, pricers) = (&space.modes[mode], pricers(space));
    let mut points = Vec::new();
    for key in &own.keys {
        for (&pp, shapes) in own.shapes.iter().filter(|(pp, _)| space.replicas(key, **pp).is_some()) {
            for (shape, other) in shapes.iter().enumerate() {
                for &zero in &space.zero {
                    for recompute in 0..own.recompute.len() {
                        points.extend(space.offload_under(zero).iter().map(|&offload| Point {
                            mode,
                            key: *key,
                            pp,
                            order: other.order,
                            shape,
                            zero,
                            recompute,
                            offload,
                        }));
                    }
                }
            }
        }
    }
    let replay = |point: &Point| {
        let case =
            Some(point).filter(|point| pricers[mode].is_legal(point)).and_then(|point| space.case(point).ok())?;
        let fit = Fit::price(&case, space.question.margin()).ok()?;
        Some(Replayed {
            per_sequence: cost::step(&case).ok()?.seconds / case.layout.global_batch as f64,
            headroom: fit.tightest().headroom,
            complexity: space.complexity(point),
            fits: fit.verdict == Verdict::Fits,
        })
    };
    points.par_iter().filter_map(replay).collect()
}

fn agree(one: &Found, other: &Found) -> Result<(), TestCaseError> {
    prop_assert_eq!(one.best.len(), other.best.len());
    for (one, other) in one.best.iter().zip(&other.best) {
        prop_assert_eq!(&one.fastest, &other.fastest);
        prop_assert_eq!(&one.top, &other.top);
        prop_assert_eq!(&one.frontier, &other.frontier);
    }
    prop_assert_eq!(&one.counts, &other.counts);
    Ok(())
}

/// Everything replayed, then searched, then searched on one thread.
fn the_fastest_is_found_of(question: Question) -> Result<(), TestCaseError> {
    let space = common::space(question);
    let (found, answered) = run(&space, Effort::Bounded);
    prop_assert!(may_fit(question) || answered.best().is_none(), "state has no room, and something fits");
    for mode in &answered.modes {
        let all: Vec<Replayed> = replay_everything(&space, mode.mode).into_iter().filter(|one| one.fits).collect();
        let least = all.iter().map(|one| one.per_sequence).fold(f64::INFINITY, f64::min);
        let fastest = mode.fastest.as_ref().map_or(f64::INFINITY, |fastest| fastest.per_sequence());
        prop_assert!(fastest <= least * (1.0 + 1e-9) && least <= fastest * (1.0 + 1e-9), "{fastest} is not {least}");
        prop_assert_eq!(mode.unproved, 0.0);
        let Some(best) = &mode.best else { continue };
        prop_assert!(best.per_sequence() <= fastest * (1.0 + mode.apart.share + 1e-9));
        let (time, room) = (best.per_sequence(), best.fit.worst().headroom);
        let beats = |one: &Replayed| {
            one.per_sequence < time * (1.0 - 1e-9) && one.headroom > room && one.complexity < best.complexity
        };
        prop_assert!(!all.iter().any(beats), "something is faster, has more room and is simpler");
    }
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let (single, _) = alone.install(|| run(&common::space(question), Effort::Bounded));
    agree(&found, &single)?;
    prop_assert_eq!((found.simulated, &found.tally), (single.simulated, &single.tally));
    Ok(())
}

/// Where nothing fits, no layout misses by less than the one that is shown.
#[test]
fn the_nearest_is_the_nearest() {
    let recipe = recipe::builtin::find("llama3-8b").unwrap();
    for (on, engine) in [("2xRTX-4090", Engine::Megatron), ("4xRTX-4090", Engine::Fsdp2)] {
        let cluster = Cluster::parse(on).unwrap();
        let pinned = LayoutRequest {
            engine: Some(engine),
            global_batch: Some(8),
            sequence: Some(4096),
            vpp: Some(1),
            cp: Some(1),
            ..LayoutRequest::default()
        };
        let question = common::question(&recipe, &cluster, &pinned, Bytes(4 << 30));
        let space = common::space(question);
        let (mut found, answered) = run(&space, Effort::Bounded);
        assert!(answered.best().is_none(), "something fits on {on}");
        let most = replay_everything(&space, 0).iter().map(|one| one.headroom).max().unwrap();
        let pricers = pricers(&space);
        let missing = nearest(&space, &pricers, &mut found, &mut Left::of(&space)).unwrap().missing;
        assert_eq!(missing, (4 << 30) - most, "{on}");
    }
}

/// The properties below would hold of a search that finds nothing or leaves nothing out.
#[test]
fn layouts_fit_and_bounds_leave_some_out() {
    let recipe = recipe::builtin::find("llama3-8b").unwrap();
    let cluster = Cluster::parse("4xH200").unwrap();
    let pinned = LayoutRequest {
        engine: Some(Engine::Megatron),
        global_batch: Some(16),
        sequence: Some(1024),
        vpp: Some(1),
        cp: Some(1),
        ..LayoutRequest::default()
    };
    let (found, _) = run(&common::space(common::question(&recipe, &cluster, &pinned, Bytes(0))), Effort::Bounded);
    assert_eq!(found.best[0].top.len(), 5);
    assert!(found.simulated >= 5 && 2 * found.simulated < found.tally.fit, "{} {:?}", found.simulated, found.tally);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn the_fastest_is_found(
        recipe in prop::sample::select(RECIPES),
        engine in prop::sample::select(&[None, Some(Engine::Megatron)][..]),
        devices in prop::sample::select(&[2u64, 4][..]),
        batch in prop::sample::select(&[8u64, 12, 16][..]),
        sequence in prop::sample::select(&[1024u64, 2048][..]),
        vpp in prop::sample::select(&[1u64, 2][..]),
        micro_batch in prop::sample::select(&[1u64, 2][..]),
        headroom in 0u64..40,
    ) {
        let recipe = recipe::builtin::find(recipe).unwrap();
        let cluster = Cluster::parse(&format!("{devices}xH200")).unwrap();
        let pinned = LayoutRequest {
            engine,
            global_batch: Some(batch),
            sequence: Some(sequence),
            vpp: Some(vpp),
            micro_batch: Some(micro_batch),
            cp: Some(1),
            ..LayoutRequest::default()
        };
        let question = common::question(&recipe, &cluster, &pinned, Bytes(headroom << 30));
        the_fastest_is_found_of(question)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Under engines whose sums are extrapolated out of their own replays, over every ZeRO stage they have
    /// and state on the host.
    #[test]
    fn the_fastest_is_found_under_other_engines(
        recipe in prop::sample::select(&["llama3-8b", "deepseek-v2-lite"][..]),
        engine in prop::sample::select(&[Engine::Fsdp2, Engine::Torchtitan, Engine::Deepspeed][..]),
        devices in prop::sample::select(&[2u64, 4][..]),
        batch in prop::sample::select(&[8u64, 12, 16][..]),
        headroom in 0u64..60,
    ) {
        let mut recipe = recipe::builtin::find(recipe).unwrap();
        recipe.optimizer = OptimizerPolicy::default();
        let cluster = Cluster::parse(&format!("{devices}xH200")).unwrap();
        let pinned = LayoutRequest {
            engine: Some(engine),
            global_batch: Some(batch),
            sequence: Some(1024),
            vpp: Some(1),
            cp: Some(1),
            ..LayoutRequest::default()
        };
        let question = common::question(&recipe, &cluster, &pinned, Bytes(headroom << 30));
        the_fastest_is_found_of(question)?;
    }
}

/// Seconds a sequence of the fastest layout under an overload; none where nothing fits.
fn fastest_under(question: Question, overload: f64) -> f64 {
    let space = common::space(Question { overload, ..question });
    let (_, answered) = run(&space, Effort::Bounded);
    let fastest = answered.modes.iter().filter_map(|mode| mode.fastest.as_ref());
    fastest.map(|fastest| fastest.per_sequence()).fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Under routing that a layout must also fit: everything replayed both ways. Asking for more overload is never
    /// answered faster.
    #[test]
    fn the_fastest_is_found_under_an_overload(
        (recipe, headroom) in prop::sample::select(&[
            ("deepseek-v2-lite", 60u64), ("deepseek-v2-lite", 90), ("deepseek-v2-lite", 110), ("nam56r-mini", 120),
        ][..]),
        batch in prop::sample::select(&[8u64, 16][..]),
        sequence in prop::sample::select(&[2048u64, 4096][..]),
        micro_batch in prop::sample::select(&[2u64, 4][..]),
        overload in prop::sample::select(&[1.01, 1.5, 2.0, 3.0][..]),
        more in prop::sample::select(&[1.1, 1.5, 4.0][..]),
    ) {
        let recipe = recipe::builtin::find(recipe).unwrap();
        let cluster = Cluster::parse("4xH200").unwrap();
        let pinned = LayoutRequest {
            engine: Some(Engine::Megatron),
            global_batch: Some(batch),
            sequence: Some(sequence),
            vpp: Some(1),
            micro_batch: Some(micro_batch),
            cp: Some(1),
            ..LayoutRequest::default()
        };
        let question = common::question(&recipe, &cluster, &pinned, Bytes(headroom << 30));
        the_fastest_is_found_of(Question { overload, ..question })?;
        let factors = [1.0, overload, overload * more];
        let times = factors.map(|factor| fastest_under(question, factor));
        prop_assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{times:?}");
    }
}
