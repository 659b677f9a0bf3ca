use super::*;
use layout::{Engine, Schedule, ZeroStage};
use proptest::prelude::*;
use recipe::builtin;

fn shrunk(name: &str, request: LayoutRequest) -> Shrunk {
    let recipe = builtin::find(name).unwrap();
    shrink(&recipe, &request, &Dims::default()).unwrap_or_else(|f| panic!("{f:#?}"))
}

#[test]
fn patterns_ratios_and_sharing_stay() {
    let small = shrunk("nam56r", LayoutRequest { tp: Some(2), pp: Some(2), ep: Some(2), ..LayoutRequest::default() });
    assert_eq!(small.recipe.layers, small.recipe.pattern.tile(12));
    let attention = small.recipe.attention.unwrap();
    assert_eq!((attention.heads, attention.kind), (14, AttentionKind::Gqa { kv_heads: 2, head_dim: 8 }));
    assert_eq!(small.recipe.moe.map(|m| (m.experts, m.top_k)), Some((8, 4)));
    assert_eq!(small.recipe.hidden, 64);
    // Eight KV heads over sixteen ranks are copied, and so are those of the small model.
    let request = LayoutRequest { tp: Some(16), engine: Some(Engine::Shardwright), ..LayoutRequest::default() };
    let small = shrunk("llama3-70b", request);
    assert_eq!(small.recipe.attention.map(|a| a.kind), Some(AttentionKind::Gqa { kv_heads: 2, head_dim: 8 }));
}

#[test]
fn a_pattern_without_a_period_keeps_every_kind_of_layer() {
    let small = shrunk("deepseek-v3", LayoutRequest { pp: Some(4), ..LayoutRequest::default() });
    let kinds = |r: &Recipe| seen_all(&r.layers);
    let whole = builtin::find("deepseek-v3").unwrap();
    assert_eq!(kinds(&small.recipe), kinds(&whole));
    assert!(small.recipe.depth() < 20, "{}", small.recipe.depth());
}

#[test]
fn sizes_insisted_on_are_taken_or_refused_by_name() {
    let recipe = builtin::find("nam56r").unwrap();
    let dims = Dims::parse("hidden=32, seq=64,vocab=100").unwrap();
    let small = shrink(&recipe, &LayoutRequest::default(), &dims).unwrap();
    assert_eq!((small.recipe.hidden, small.request.sequence, small.recipe.vocab), (32, Some(64), 100));
    let request = LayoutRequest { tp: Some(4), ..LayoutRequest::default() };
    let refused = shrink(&recipe, &request, &Dims::parse("ffn=10,shared_ffn=6").unwrap()).unwrap_err();
    assert_eq!(refused[0].rule, "tp/shared-expert");
    assert!(Dims::parse("hiden=3").unwrap_err().contains("did you mean `hidden`"));
    assert!(Dims::parse("hidden=0").is_err());
}

fn requests() -> impl Strategy<Value = LayoutRequest> {
    let degree = || prop::sample::select(vec![1u64, 1, 2, 2, 3, 4, 8]);
    let schedules = prop::option::weighted(0.4, prop::sample::select(Schedule::ALL));
    let more = (prop::sample::select(ZeroStage::ALL), 1u64..3, prop::option::of(1u64..40), any::<bool>());
    ([degree(), degree(), degree(), degree(), degree(), degree()], 1u64..4, schedules, more).prop_map(
        |([tp, cp, pp, ep, etp, dp], vpp, schedule, ((_, zero), mbs, microbatches, is_ours))| LayoutRequest {
            tp: Some(tp),
            cp: Some(cp),
            pp: Some(pp),
            vpp: Some(vpp),
            ep: Some(ep),
            etp: Some(etp),
            dp: Some(dp),
            schedule: schedule.map(|(_, s)| s),
            zero: Some(zero),
            micro_batch: Some(mbs),
            microbatches,
            engine: is_ours.then_some(Engine::Shardwright),
            ..LayoutRequest::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,

        max_global_rejects: 100_000,
        ..ProptestConfig::default()
    })]

    /// Whatever is legal at full size is legal at rehearsal size, and no size grows.
    #[test]
    fn legal_layouts_stay_legal(which in 0..builtin::RECIPES.len(), request in requests()) {
        let recipe = builtin::find(builtin::RECIPES[which].0).unwrap();
        let full = check(&recipe, &request);
        prop_assume!(full.is_legal() && full.layout.as_ref().is_some_and(|l| l.world <= 16));
        let small = shrink(&recipe, &request, &Dims::default()).unwrap_or_else(|f| panic!("{f:#?}"));
        prop_assert!(check(&small.recipe, &small.request).is_legal());
        prop_assert!(small.changes.iter().all(|c| c.to < c.from), "{:?}", small.changes);
        prop_assert!(small.recipe.counts().all.total < 3_000_000, "{}", small.recipe.counts().all.total);
    }
}
