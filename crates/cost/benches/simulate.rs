//! How many events a second are simulated, by schedule. `cargo bench -p shardwright-cost`

use cost::simulate::{ChunkTimes, Simulator, Times};
use layout::order::{Kind, Pipeline};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let cases = [
        (Kind::OneF1b, 8, 1, 64),
        (Kind::OneF1b, 64, 1, 4096),
        (Kind::Interleaved, 8, 4, 64),
        (Kind::Interleaved, 16, 6, 512),
        (Kind::ZbH1, 16, 1, 512),
        (Kind::DualPipe, 16, 1, 512),
        (Kind::DualPipeV, 16, 2, 512),
        (Kind::GPipe, 16, 1, 512),
    ];
    for (kind, pp, vpp, microbatches) in cases {
        let pipeline = Pipeline::new(kind, pp, vpp, microbatches).expect("an order");
        // Stages differ a little, as they do.
        let time = |c: u64| 1e-3 * (1.0 + 0.01 * ((c * 7 + 3) % 11) as f64);
        let chunk = |c| ChunkTimes { forward: time(c), backward_input: 1.1 * time(c), backward_weight: 0.9 * time(c) };
        let chunks: Vec<ChunkTimes> = (0..pp * vpp).map(chunk).collect();
        let transfers = vec![1e-4; chunks.len() - 1];
        let times = Times { chunks: &chunks, transfers: &transfers, serial: 0.0, overlapped: 0.9 };
        let mut simulator = Simulator::default();
        let events: usize = (0..pipeline.stages()).map(|s| pipeline.stage(s).count()).sum();
        let rate = |run: &mut dyn FnMut() -> f64| {
            let rounds = (20_000_000 / events).max(1);
            let start = Instant::now();
            let mut makespan = 0.0;
            for _ in 0..rounds {
                makespan = black_box(run());
            }
            (start.elapsed().as_secs_f64() / rounds as f64, makespan)
        };
        let (whole, makespan) = rate(&mut || simulator.run(&pipeline, &times).expect("times").makespan);
        let (steady, same) = rate(&mut || simulator.run_steady(&pipeline, &times).expect("times").makespan);
        println!(
            "{kind:?} pp {pp} vpp {vpp} m {microbatches}: {events} events in {:.1} us ({:.1} million a second), \
             steady {:.1} us, apart by {:.1e}",
            whole * 1e6,
            events as f64 / whole / 1e6,
            steady * 1e6,
            (same / makespan - 1.0).abs()
        );
    }
}
