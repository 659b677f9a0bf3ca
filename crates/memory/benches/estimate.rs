//! How long one evaluation of a sum takes, and one replay of the same stage, in one run.
//! `cargo bench -p shardwright-memory`

use case::{LayerKinds, Options};
use layout::{LayoutRequest, StagePlan, check};
use ledger::{Ledger, RankJob};
use memory::estimate::{Estimator, StageShape};
use recipe::precision::OptimizerPolicy;
use std::hint::black_box;
use std::time::Instant;

fn main() {
    for (name, tp, pp, ep) in [("llama3-70b", 4, 4, 1), ("nemotron-3-nano-30b-a3b", 2, 2, 4), ("deepseek-v3", 1, 16, 8)]
    {
        let mut recipe = recipe::builtin::find(name).expect("built in");
        recipe.optimizer = OptimizerPolicy::default();
        let request = LayoutRequest {
            tp: Some(tp),
            pp: Some(pp),
            ep: Some(ep),
            etp: (ep > 1).then_some(1),
            world: Some(128),
            microbatches: Some(2 * pp),
            ..LayoutRequest::default()
        };
        let layout = check(&recipe, &request).layout.expect("legal");
        let plan = StagePlan::new(&recipe, &layout, None).expect("legal");
        let options = Options::of(None, &recipe);
        let ledger = Ledger::of(&recipe, &layout, &options).expect("modelled");
        let kinds = LayerKinds::of(&recipe);
        let start = Instant::now();
        let estimator = Estimator::new(&recipe, &kinds, &ledger, &options);
        let estimate = estimator.under(&layout).expect("modelled");
        let probed = start.elapsed();
        let shape =
            |stage: usize| StageShape::new(&kinds, plan.layers_of_stage(stage), stage == 0, stage + 1 == pp as usize);
        let shapes: Vec<StageShape> = (0..pp as usize).map(shape).collect();
        let rounds = 200_000;
        let start = Instant::now();
        for _ in 0..rounds {
            for (index, shape) in (0..).zip(&shapes) {
                let terms = estimate.terms(black_box(shape));
                black_box(estimate.sum(&layout, index, shape, &terms, 0.0)).expect("modelled");
            }
        }
        let each = start.elapsed().as_secs_f64() / f64::from(rounds);
        let job = RankJob { recipe: &recipe, layout: &layout, stages: &plan, rank: 0 };
        let start = Instant::now();
        black_box(ledger.replay(&job)).expect("modelled");
        let replayed = start.elapsed();
        println!(
            "{name}: all {pp} stages in {:.0} ns ({:.1} million layouts a second), probes {:.1} ms, one replay {:.1} ms",
            each * 1e9,
            1e-6 / each,
            probed.as_secs_f64() * 1e3,
            replayed.as_secs_f64() * 1e3
        );
    }
}
