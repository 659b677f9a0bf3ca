//! How fast a log of a gigabyte is read, hash included, on one core: `cargo bench -p shardwright-evidence`. The first log
//! is one iteration line after another, the worst there is; the second has timers and other lines between them, as most
//! do; the third is nothing but lines of no engine behind its first.
//! `… --bench ingest -- 64` reads 64 MB of each instead.

use std::io::Read;
use std::time::Instant;

/// A log without end, made of blocks of text whose iteration numbers count on.
struct Endless {
    blocks: Vec<Vec<u8>>,
    /// Place of the number within each block, where it has one.
    numbers: Vec<usize>,
    block: usize,
    at: usize,
    step: u64,
    left: u64,
}

impl Endless {
    fn new(block: &str, bytes: u64) -> Endless {
        let first = block.find(" iteration ").map(|at| at + " iteration ".len());
        let mut endless = Endless {
            blocks: vec![block.into()],
            numbers: Vec::from_iter(first),
            block: 0,
            at: 0,
            step: 0,
            left: bytes,
        };
        endless.count();
        endless
    }

    fn count(&mut self) {
        self.step += 1;
        if let Some(at) = self.numbers.first() {
            self.blocks[0][*at..at + 8].copy_from_slice(format!("{:8}", self.step).as_bytes());
        }
    }
}

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut written = 0;
        while written < into.len() && self.left > 0 {
            let rest = &self.blocks[self.block][self.at..];
            let take = rest.len().min(into.len() - written).min(self.left as usize);
            into[written..written + take].copy_from_slice(&rest[..take]);
            (written, self.at, self.left) = (written + take, self.at + take, self.left - take as u64);
            if self.at == self.blocks[self.block].len() {
                self.at = 0;
                self.count();
            }
        }
        Ok(written)
    }
}

const ITERATION: &str = " [2026-08-20 10:01:40.125000] iteration        1/ 9999999 | consumed samples:        51712 | \
elapsed time per iteration (ms): 9876.5 | throughput per GPU (TFLOP/s/GPU): 401.2 | learning rate: 3.000000E-04 | \
global batch size:   512 | lm loss: 9.876543E+00 | loss scale: 1.0 | grad norm: 3.210 | \
number of skipped iterations:   0 | number of nan iterations:   0 |\n";

const TIMERS: &str = "(min, max) time across ranks (ms):
    forward-backward ...............................: (7000.12, 7100.34)
    layernorm-grads-all-reduce .....................: (0.02, 0.05)
    embedding-grads-all-reduce .....................: (0.02, 0.05)
    all-grads-sync .................................: (120.10, 130.20)
    optimizer-copy-to-main-grad ....................: (1.10, 1.20)
    optimizer-clip-main-grad .......................: (12.10, 12.20)
    optimizer-inner-step ...........................: (52.10, 53.20)
    optimizer ......................................: (300.50, 301.25)
";

const OTHER: &str = "[rank0]: /opt/venv/lib/python3.12/site-packages/torch/autograd/graph.py:824: UserWarning: the grad of a \
view was accumulated in place (Triggered internally at ../aten/src/ATen/native/cudnn/Conv.cpp:84.)\n";

fn main() {
    let megabytes: u64 = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(1000);
    let mixed = format!("{ITERATION}{TIMERS}{}", OTHER.repeat(4));
    let others = format!("{}{}", ITERATION.replace(" iteration ", " iteration  "), OTHER.repeat(100_000));
    for (name, block) in [("iterations alone", ITERATION), ("with timers and others", &mixed), ("others", &others)] {
        let log = Endless::new(block, megabytes * 1_000_000);
        let start = Instant::now();
        let read = evidence::read("log", log, None, &mut |_| ()).expect("a log");
        let seconds = start.elapsed().as_secs_f64();
        let speed = megabytes as f64 / seconds;
        println!("{name:24} {megabytes} MB in {seconds:.2} s: {speed:.0} MB/s, {} steps", read.steps.len());
        assert_eq!(
            read.sources[0].unread,
            u64::from(!ends_whole(block, megabytes)),
            "{:?}",
            read.sources[0].first_unread
        );
    }
}

/// Whether the last line of the log is a whole one or no iteration.
fn ends_whole(block: &str, megabytes: u64) -> bool {
    let rest = (megabytes * 1_000_000 % block.len() as u64) as usize;
    let line = block[..rest].rfind('\n').map_or(0, |at| at + 1);
    !block[line..rest].contains("iteration ") || rest == 0 || block[line..rest].contains("(ms): 9876.5")
}
