//! How many events a second are simulated, by schedule; how long a lower bound takes, and how near
//! it comes. `cargo bench -p shardwright-cost`

use cost::simulate::{Bound, ChunkTimes, Simulator, Times};
use layout::Schedule;
use layout::order::Pipeline;
use std::hint::black_box;
use std::time::Instant;

fn main() {
    println!("events");
    rates();
    println!("lower bound over simulated step, 2000 random cases each: the mean, and the least");
    for (transfer, spread) in [(0.0, 0.0), (0.05, 0.1), (0.05, 0.5), (0.3, 0.1)] {
        tightness(transfer, spread);
    }
}

/// Numbers from 0 to 1, the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Stages whose times differ by up to `spread`, behind links that take up to `transfer` of a pass.
fn tightness(transfer: f64, spread: f64) {
    let (mut simulator, mut bound, mut dice) = (Simulator::default(), Bound::default(), Dice(7));
    print!("spread {spread}, transfer {transfer}:");
    for kind in [
        Schedule::OneF1b,
        Schedule::Interleaved,
        Schedule::ZbH1,
        Schedule::DualPipe,
        Schedule::DualPipeV,
        Schedule::GPipe,
    ] {
        let (mut sum, mut least, rounds) = (0.0, 1.0f64, 2000);
        for _ in 0..rounds {
            let pp = [2, 4, 8, 16][(dice.roll() * 4.0) as usize];
            let vpp = match kind {
                Schedule::Interleaved => 2 + (dice.roll() * 3.0) as u64,
                Schedule::DualPipeV => 2,
                _ => 1,
            };
            let pipeline = Pipeline::new(kind, pp, vpp, pp * (2 + (dice.roll() * 10.0) as u64)).expect("an order");
            let mut time = |mean: f64| mean * (1.0 + spread * dice.roll());
            let chunks: Vec<ChunkTimes> = (0..pp * vpp)
                .map(|_| ChunkTimes { forward: time(1.0), backward_input: time(1.1), backward_weight: time(0.9) })
                .collect();
            let transfers: Vec<f64> = chunks.iter().skip(1).map(|_| transfer * dice.roll()).collect();
            let times = Times { chunks: &chunks, transfers: &transfers, serial: 0.0, overlapped: 0.9 };
            let simulated = simulator.run(&pipeline, &times).expect("times").makespan;
            let share = bound.lower(&pipeline, &times).expect("times") / simulated;
            (sum, least) = (sum + share, least.min(share));
        }
        print!("  {kind:?} {:.4} {least:.3}", sum / f64::from(rounds));
    }
    println!();
}

fn rates() {
    let cases = [
        (Schedule::OneF1b, 8, 1, 64),
        (Schedule::OneF1b, 64, 1, 4096),
        (Schedule::Interleaved, 8, 4, 64),
        (Schedule::Interleaved, 16, 6, 512),
        (Schedule::ZbH1, 16, 1, 512),
        (Schedule::DualPipe, 16, 1, 512),
        (Schedule::DualPipeV, 16, 2, 512),
        (Schedule::GPipe, 16, 1, 512),
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
            let rounds = (5_000_000 / events).max(1);
            let start = Instant::now();
            let mut makespan = 0.0;
            for _ in 0..rounds {
                makespan = black_box(run());
            }
            (start.elapsed().as_secs_f64() / rounds as f64, makespan)
        };
        let (whole, makespan) = rate(&mut || simulator.run(&pipeline, &times).expect("times").makespan);
        let (steady, same) = rate(&mut || simulator.run_steady(&pipeline, &times).expect("times").makespan);
        let (bounded, _) = {
            let mut bound = Bound::default();
            rate(&mut || bound.lower(&pipeline, &times).expect("times"))
        };
        println!(
            "{kind:?} pp {pp} vpp {vpp} m {microbatches}: {events} events in {:.1} us ({:.1} million a second), \
             steady {:.1} us, apart by {:.1e}; lower bound {:.2} us",
            whole * 1e6,
            events as f64 / whole / 1e6,
            steady * 1e6,
            (same / makespan - 1.0).abs(),
            bounded * 1e6
        );
    }
}
