//! How far an all-reduce between threads is from the memory's own speed. Bytes of a rank are those
//! a ring would move: twice the buffer less a share; a memcpy moves the buffer once.

use comm::{Call, Group, Op, threads};
use std::time::{Duration, Instant};

const RANKS: usize = 4;
const FLOATS: usize = 16 * (1 << 20) / 4;
const TIMES: usize = 20;

fn main() {
    let call = Call::new("dp", "bench");
    let seconds = threads::run(RANKS, Duration::from_secs(60), |comm| {
        let group = Group::new(0..RANKS);
        let source = vec![1.0f32; FLOATS];
        let mut target = vec![0.0f32; FLOATS];
        comm.barrier(&group, call)?;
        let begun = Instant::now();
        for _ in 0..TIMES {
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
        }
        comm.barrier(&group, call)?;
        let copying = begun.elapsed().as_secs_f64() / TIMES as f64;
        let begun = Instant::now();
        for _ in 0..TIMES {
            target = comm.all_reduce(&group, call, Op::Sum, target)?;
        }
        comm.barrier(&group, call)?;
        Ok((copying, begun.elapsed().as_secs_f64() / TIMES as f64))
    });
    let (copying, reducing) = *seconds[0].as_ref().expect("the run ends well");
    let bytes = (FLOATS * 4) as f64;
    let (memcpy, ring) = (bytes / copying, bytes * 2.0 * (RANKS - 1) as f64 / RANKS as f64 / reducing);
    println!(
        "16 MiB over {RANKS} threads: memcpy {:.2} GB/s a rank, all-reduce {:.2} GB/s a rank (ring bytes), ratio {:.2}",
        memcpy / 1e9,
        ring / 1e9,
        memcpy / ring
    );
}
