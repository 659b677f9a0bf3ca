//! How long prices and estimates take: `cargo bench -p shardwright-cost --bench prices`.

use case::{Options, PerKind};
use cost::{ChunkTimes, Counts, Prices, Scratch};
use hardware::Cluster;
use layout::{LayoutRequest, check};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    for (name, on, tp, pp, ep) in [("gpt3-175b", "4096xA100", 8, 16, 1), ("nam56r", "1024xH200", 1, 4, 8)] {
        let recipe = recipe::builtin::find(name).expect("built in");
        let cluster = Cluster::parse(on).expect("a cluster");
        let request = LayoutRequest {
            world: Some(cluster.devices()),
            tp: Some(tp),
            pp: Some(pp),
            ep: Some(ep),
            etp: Some(1),
            microbatches: Some(64),
            ..LayoutRequest::default()
        };
        let layout = check(&recipe, &request).layout.expect("a layout");
        let options = Options::of(layout.engine, &recipe);
        let new = || Prices::new(&recipe, &layout, &cluster, &options).expect("prices");
        report(&format!("{name}: prices"), 200, || drop(black_box(new())));
        let prices = new();
        let per_stage = recipe.depth() as u64 / pp;
        let layers = PerKind::new(prices.kinds(), |_| per_stage);
        let placed = prices.placed(&layout);
        let counts = |i: u64| Counts { layers: &layers, is_first: i == 0, is_last: i + 1 == pp };
        let stages: Vec<Counts> = (0..pp).map(counts).collect();
        let chunks: Vec<ChunkTimes> = stages.iter().map(|s| prices.chunk(&placed, *s)).collect();
        report(&format!("{name}: stage"), 1_000_000, || {
            black_box(prices.stage(black_box(stages[0])));
        });
        let mut scratch = Scratch::default();
        report(&format!("{name}: estimate"), 50_000, || {
            drop(black_box(prices.estimate(&mut scratch, black_box(&layout), &chunks, &stages)));
        });
    }
}

/// Seconds of one run, as the mean over many.
fn report(what: &str, runs: u32, mut run: impl FnMut()) {
    let start = Instant::now();
    for _ in 0..runs {
        run();
    }
    println!("{what}: {:?}", start.elapsed() / runs);
}
