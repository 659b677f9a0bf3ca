//! Steps of built-in recipes: sane, and moving the right way.

use cost::{Options, Prices, Step};
use hardware::Cluster;
use layout::{LayoutRequest, StagePlan, check};

fn step(name: &str, on: &str, set: impl Fn(&mut LayoutRequest)) -> Step {
    let recipe = recipe::builtin::find(name).unwrap();
    let cluster = Cluster::parse(on).unwrap();
    let mut request = LayoutRequest { world: Some(cluster.devices()), ..LayoutRequest::default() };
    set(&mut request);
    let checked = check(&recipe, &request);
    assert!(checked.is_legal(), "{:?}", checked.findings);
    let layout = checked.layout.unwrap();
    let options = Options::of(layout.engine, &recipe);
    let prices = Prices::new(&recipe, &layout, &cluster, &options).unwrap();
    let plan = StagePlan::new(&recipe, &layout, None).unwrap();
    prices.step(&layout, &plan).unwrap()
}

#[test]
fn built_in_recipes_run_at_a_believable_share_of_the_peak() {
    for (name, on, tp, pp, ep) in [
        ("llama3-8b", "8xH100", 2, 1, 1),
        ("llama3-70b", "64xH100", 4, 4, 1),
        ("mixtral-8x7b", "64xH100", 1, 4, 8),
        ("deepseek-v3", "256x8xH100", 2, 16, 64),
        ("nam56r", "64xH200", 1, 2, 8),
    ] {
        let step = step(name, on, |r| {
            (r.tp, r.pp, r.ep, r.etp) = (Some(tp), Some(pp), Some(ep), Some(1));
            (r.micro_batch, r.microbatches) = (Some(1), Some(32));
        });
        assert!((0.05..0.75).contains(&step.mfu), "{name}: {step:#?}");
        let sum: f64 = step.parts.iter().map(|part| part.seconds).sum();
        assert!((sum / step.seconds - 1.0).abs() < 1e-6, "{name}: parts sum to {sum} of {}", step.seconds);
    }
}
