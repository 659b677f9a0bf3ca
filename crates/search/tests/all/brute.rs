//! Leaving layouts out by bounds loses nothing: simulating every layout that fits gives the same
//! best few and the same frontier. Nor does it matter how many threads there are.

use crate::common;
use hardware::Cluster;
use layout::{Engine, LayoutRequest};
use proptest::prelude::*;
use recipe::precision::OptimizerPolicy;
use search::{Effort, Found, Question, Scope, pricers, search};
use units::Bytes;

const RECIPES: &[&str] = &["nam56r-mini", "llama3-8b", "deepseek-v2-lite"];

fn run(question: Question, effort: Effort) -> Found {
    let space = common::space(question);
    search(&space, &pricers(&space), Scope::all(5), effort, &|_, _| true)
}

fn agree(one: &Found, other: &Found) -> Result<(), TestCaseError> {
    prop_assert_eq!(one.best.len(), other.best.len());
    for (one, other) in one.best.iter().zip(&other.best) {
        prop_assert_eq!(&one.top, &other.top);
        prop_assert_eq!(&one.frontier, &other.frontier);
    }
    prop_assert_eq!(&one.counts, &other.counts);
    Ok(())
}

/// Everything simulated, then bounded, then bounded on one thread.
fn bounds_lose_nothing_of(question: Question) -> Result<(), TestCaseError> {
    let all = run(question, Effort::Everything);
    prop_assert!(all.simulated == all.tally.fit);
    let bounded = run(question, Effort::Bounded);
    agree(&all, &bounded)?;
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let single = alone.install(|| run(question, Effort::Bounded));
    agree(&bounded, &single)?;
    prop_assert_eq!((bounded.simulated, &bounded.tally), (single.simulated, &single.tally));
    Ok(())
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
    let found = run(common::question(&recipe, &cluster, &pinned, Bytes(0)), Effort::Bounded);
    assert_eq!(found.best[0].top.len(), 5);
    assert!(found.simulated >= 5 && 2 * found.simulated < found.tally.fit, "{} {:?}", found.simulated, found.tally);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn bounds_lose_nothing(
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
        bounds_lose_nothing_of(question)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Under engines whose sums are extrapolated out of their own replays, over every ZeRO stage they have
    /// and state on the host.
    #[test]
    fn bounds_lose_nothing_under_other_engines(
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
        bounds_lose_nothing_of(question)?;
    }
}
