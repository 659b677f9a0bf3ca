//! How far an all-reduce between threads is from the memory's own speed, in one run.
//!
//! "A rank" in what is printed: every rank has a buffer of 16 MiB and a thread. Memcpy is what one
//! rank copies in a second while all of them copy a buffer of their own; all-reduce is what one rank
//! would have to move in a second in a ring, twice the buffer less a share of it, to be as fast. The
//! two alternate, so that what else the machine does falls on both; times are medians.

use comm::{Call, Group, Op, Result, threads};
use std::time::{Duration, Instant};

const BYTES: usize = 16 << 20;
const ROUNDS: usize = 21;

/// Median seconds of a copy and of an all-reduce of one rank, all ranks at it.
fn time(ranks: usize) -> (f64, f64) {
    let call = Call::new("dp", "bench");
    let runs = threads::run(ranks, Duration::from_secs(60), |comm| {
        let group = Group::new(0..ranks);
        let source = vec![1.0f32; BYTES / 4];
        let (mut target, mut sum) = (source.clone(), source.clone());
        let timed = |work: &mut dyn FnMut() -> Result<()>| {
            comm.barrier(&group, call)?;
            let begun = Instant::now();
            work()?;
            comm.barrier(&group, call)?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let (mut copies, mut sums) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            copies.push(timed(&mut || {
                target.copy_from_slice(std::hint::black_box(&source));
                std::hint::black_box(&mut target);
                Ok(())
            })?);
            sums.push(timed(&mut || {
                sum = comm.all_reduce(&group, call, Op::Sum, std::mem::take(&mut sum))?;
                Ok(())
            })?);
        }
        Ok([copies, sums])
    });
    let [copies, sums] = runs.into_iter().next().expect("a rank").expect("the run ends well");
    (median(copies), median(sums))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let half = times.len() / 2;
    if times.len() % 2 == 1 { times[half] } else { f64::midpoint(times[half - 1], times[half]) }
}

fn main() {
    for ranks in [2, 4] {
        let (copying, reducing) = time(ranks);
        let moved = 2.0 * (ranks - 1) as f64 / ranks as f64 * BYTES as f64;
        let (memcpy, ring) = (BYTES as f64 / copying, moved / reducing);
        println!(
            "16 MiB over {ranks} threads: memcpy {:.2} GB/s a rank, all-reduce {:.2} GB/s a rank (ring bytes), ratio {:.2}; \
             an all-reduce takes as long as {:.1} copies",
            memcpy / 1e9,
            ring / 1e9,
            memcpy / ring,
            reducing / copying
        );
    }
}
