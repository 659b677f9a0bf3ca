//! A10: formats of state are priced, by the replay and by the sums of searches, or refused by name.

use case::{Case, Terms};
use hardware::Cluster;
use layout::{Engine, LayoutRequest};
use memory::estimate::Estimator;
use memory::fit::{Entry, Fit, HEADROOM};
use recipe::Dtype;
use recipe::precision::Precision;
use replay::Line;

fn case(engine: Engine, set: impl Fn(&mut Precision)) -> Case {
    let mut recipe = recipe::builtin::find("llama3-8b").unwrap();
    set(&mut recipe.precision);
    let request = LayoutRequest { engine: Some(engine), ..LayoutRequest::default() };
    let cluster = Cluster::parse("8xH200").unwrap();
    Case::laid_out(recipe, &request, Some(cluster), Terms::RUN).unwrap_or_else(|findings| panic!("{findings:?}"))
}

#[test]
fn moments_in_bf16_halve_megatrons_state_in_replay_and_sum() {
    let wide = case(Engine::Megatron, |_| ());
    let narrow = case(Engine::Megatron, |precision| precision.moments = Dtype::Bf16);
    let state = |case: &Case| Fit::price(case, HEADROOM).unwrap().worst().line(Entry::Ledger(Line::OtherOptimizer));
    let (before, after) = (state(&wide), state(&narrow));
    // Main weight and two moments: 12 bytes, and 6 where bf16 supplies half of the main weight.
    assert!((after as f64 / before as f64 - 0.5).abs() < 0.01, "{before} {after}");
    for job in [&wide, &narrow] {
        let replayed = Fit::price(job, HEADROOM).unwrap().worst().allocated_peak as f64;
        let sum = Estimator::of_case(job).unwrap().stage(&job.layout, &job.stages, 0, 0.0).unwrap().allocated() as f64;
        assert!((sum / replayed - 1.0).abs() < 0.02, "{sum} {replayed}");
    }
}

#[test]
fn what_a_ledger_has_no_bytes_for_is_refused_by_name() {
    for engine in [Engine::Fsdp2, Engine::Torchtitan, Engine::Deepspeed, Engine::Shardwright] {
        assert!(Fit::price(&case(engine, |_| ()), HEADROOM).is_ok(), "{engine}");
        let refusal = |set: fn(&mut Precision)| Fit::price(&case(engine, set), HEADROOM).map(|_| ()).unwrap_err().what;
        assert_eq!(refusal(|p| p.moments = Dtype::Bf16), "moments in bf16", "{engine}");
        assert_eq!(refusal(|p| p.main = Dtype::Bf16), "main weights in bf16", "{engine}");
        if engine != Engine::Deepspeed {
            assert_eq!(refusal(|p| p.gradients = Dtype::Bf16), "gradients in bf16", "{engine}");
        }
        if engine != Engine::Shardwright {
            assert_eq!(refusal(|p| p.weights = Dtype::Fp32), "weights in fp32", "{engine}");
        }
    }
    let moved = case(Engine::Megatron, |p| p.moments = Dtype::Bf16).with_options(|options| options.offload = 1.0);
    assert_eq!(Fit::price(&moved, HEADROOM).unwrap_err().what, "state in formats of its own on the host");
}
