//! What a sum says a stage holds at least, against its replay: a search leaves out by it.

use case::{LayerKinds, Options};
use layout::{Engine, LayoutRequest, Recompute, Schedule, StagePlan, ZeroStage, check};
use ledger::{Ledger, RankJob};
use memory::estimate::Estimator;
use proptest::prelude::*;

/// The replay's reserved bytes over what the sum says at least, the least of a layout's stages; none where the
/// layout is not legal or has no replay.
fn least_ratio(name: &str, engine: Engine, overload: f64, request: &LayoutRequest) -> Option<f64> {
    let recipe = recipe::builtin::find(name).unwrap();
    let layout = check(&recipe, &LayoutRequest { engine: Some(engine), ..request.clone() }).layout?;
    let options = Options { overload, ..Options::of(Some(engine), &recipe) };
    let ledger = Ledger::of(&recipe, &layout, &options).ok()?;
    let plan = StagePlan::new(&recipe, &layout, None).ok()?;
    let estimator = Estimator::new(&recipe, &LayerKinds::of(&recipe), &ledger, &options);
    let mut least = f64::INFINITY;
    for stage in 0..layout.pp.get() as usize {
        let rank = stage as u64 * (layout.world / layout.pp.get());
        let replay = ledger.replay(&RankJob { recipe: &recipe, layout: &layout, stages: &plan, rank }).ok()?;
        let sum = estimator.stage(&layout, &plan, stage, 0.0).ok()?;
        let ratio = replay.reserved_peak() as f64 / sum.least(&layout) as f64;
        least = least.min(ratio);
    }
    Some(least)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_replay_never_holds_less(
        (name, _) in prop::sample::select(recipe::builtin::RECIPES),
        engine in prop::sample::select(&[Engine::Megatron, Engine::Megatron, Engine::Megatron, Engine::Fsdp2, Engine::Torchtitan, Engine::Nanotron][..]),
        zero in prop::sample::select(ZeroStage::ALL),
        recompute in prop::sample::select(&["none", "full", "selective:layernorm", "selective:core_attn", "selective:mlp"][..]),
        [tp, pp, ep, cp] in prop::sample::select(&[[1, 1, 1, 1], [2, 1, 4, 1], [1, 2, 8, 1], [4, 2, 1, 1], [2, 4, 2, 2], [1, 8, 1, 1], [8, 4, 8, 1], [1, 4, 8, 1]][..]),
        schedule in prop::sample::select(Schedule::ALL),
        vpp in 1u64..5,
        micro_batch in 1u64..4,
        rounds in 1u64..5,
        sequence in prop::sample::select(&[1024u64, 2048, 4096][..]),
        overload in prop::sample::select(&[1.0, 1.0, 1.5, 4.0][..]),
    ) {
        let recipe = recipe::builtin::find(name).unwrap();
        let ep = if recipe.uses(recipe::Mixer::Moe) { ep } else { 1 };
        let overload = if engine == Engine::Megatron { overload } else { 1.0 };
        let vpp = match schedule.1 { Schedule::Interleaved => vpp + 1, Schedule::DualPipeV => 2, _ => 1 };
        let request = LayoutRequest {
            tp: Some(tp), pp: Some(pp), cp: Some(cp),
            vpp: (pp > 1).then_some(vpp),
            schedule: (pp > 1).then_some(schedule.1),
            ep: Some(ep),
            etp: (ep > 1).then_some(1),
            world: Some(64),
            micro_batch: Some(micro_batch),
            microbatches: Some(rounds * pp),
            sequence: Some(sequence),
            zero: Some(zero.1),
            recompute: Some(Recompute::parse(recompute).unwrap()),
            ..LayoutRequest::default()
        };
        if let Some(ratio) = least_ratio(name, engine, overload, &request) {
            prop_assert!(ratio >= 1.0, "{ratio:.3}");
        }
    }
}
