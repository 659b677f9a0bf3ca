//! A pipeline over pools: nothing that is asked for besides makes it faster.

use crate::common;
use hardware::Cluster;
use layout::{Engine, LayoutRequest};
use search::{OffloadChoice, Question, over_pools};
use units::Bytes;

/// Seconds a sequence of the best over two pools; infinite where nothing fits.
fn least(recipe: &str, headroom: u64, offload: OffloadChoice, tp: Option<u64>) -> f64 {
    let recipe = recipe::builtin::find(recipe).unwrap();
    let pools = ["8xH200", "8xH100"].map(|pool| Cluster::parse(pool).unwrap());
    let cluster = pools[0].of_world(16).unwrap();
    let pinned = LayoutRequest {
        engine: Some(Engine::Megatron),
        global_batch: Some(64),
        sequence: Some(4096),
        tp,
        ..LayoutRequest::default()
    };
    let question = Question { offload, ..common::question(&recipe, &cluster, &pinned, Bytes(headroom << 30)) };
    let answer = over_pools(question, &pools, &[Bytes(headroom << 30); 2]).unwrap_or_else(|f| panic!("{f:?}"));
    assert!(!answer.is_cut_short && answer.unproved == 0.0);
    answer.best.map_or(f64::INFINITY, |best| best.per_sequence())
}

#[test]
fn less_headroom_and_fewer_pins_are_never_slower() {
    let here = OffloadChoice::Pinned(0.0);
    for recipe in ["llama3-8b", "mixtral-8x7b"] {
        let by_headroom = [0, 4, 16, 40].map(|headroom| least(recipe, headroom, here, None));
        assert!(by_headroom.is_sorted(), "{recipe}: {by_headroom:?}");
        for tp in [1, 2, 4] {
            let pinned = least(recipe, 4, here, Some(tp));
            assert!(by_headroom[1] <= pinned, "{recipe} --tp {tp}: {pinned} against {}", by_headroom[1]);
        }
    }
    // State on the host is another choice, and never the only one that is looked at.
    let (free, pinned) = (least("mixtral-8x7b", 8, OffloadChoice::Free, None), least("mixtral-8x7b", 8, here, None));
    assert!(free <= pinned, "{free} against {pinned}");
}
