//! How fast a log of a gigabyte is read, hash included, on one core: `cargo bench -p shardwright-evidence`. The first log
//! is one iteration line after another, the worst there is; the second has timers and other lines between them, as most
//! do; the third has ten thousand lines of no engine between two iterations.
//! `… --bench ingest -- 64` reads 64 MB of each instead, `… -- 64 timers` of those that are named so. Speed is by the time
//! on a core, which others that run beside it do not lengthen, but for what two share that run on one.

use std::io::Read;
use std::time::Instant;

/// A log of about so many bytes: one block of text again and again, its iteration counted on.
struct Repeated {
    block: Vec<u8>,
    /// Place of the iteration's number.
    number: usize,
    at: usize,
    step: u64,
    left: u64,
}

impl Repeated {
    fn new(block: &str, bytes: u64) -> Repeated {
        let number = block.find(" iteration ").expect("an iteration") + " iteration ".len();
        Repeated { block: block.into(), number, at: 0, step: 1, left: bytes }
    }
}

impl Read for Repeated {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut written = 0;
        while written < into.len() && (self.left > 0 || self.at > 0) {
            let rest = &self.block[self.at..];
            let take = rest.len().min(into.len() - written);
            into[written..written + take].copy_from_slice(&rest[..take]);
            (written, self.at, self.left) = (written + take, self.at + take, self.left.saturating_sub(take as u64));
            if self.at == self.block.len() {
                (self.at, self.step) = (0, self.step + 1);
                self.block[self.number..self.number + 8].copy_from_slice(format!("{:8}", self.step).as_bytes());
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
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-') && word.parse::<u64>().is_err());
    let mixed = format!("{ITERATION}{TIMERS}{}", OTHER.repeat(4));
    let others = format!("{ITERATION}{}", OTHER.repeat(10_000));
    for (name, block) in
        [("iterations alone", ITERATION), ("with timers and others", &mixed), ("lines of no engine", &others)]
    {
        if wanted.as_ref().is_some_and(|wanted| !name.contains(wanted.as_str())) {
            continue;
        }
        let (start, ran) = (Instant::now(), on_core());
        let log = Repeated::new(block, megabytes * 1_000_000);
        let read = evidence::read("log", log, None, &mut |_| ()).expect("a log");
        let seconds = start.elapsed().as_secs_f64();
        let ran = on_core().zip(ran).map_or(seconds, |(now, then)| now - then);
        let speed = read.sources[0].bytes as f64 / 1e6 / ran;
        let each = 1e3 / speed;
        let steps = read.steps.len();
        println!(
            "{name:24} {megabytes} MB in {seconds:.2} s, {ran:.2} s on the core: {each:.2} ns a byte, {speed:.0} MB/s, \
             {steps} steps"
        );
        assert_eq!(read.sources[0].unread, 0, "{:?}", read.sources[0].first_unread);
    }
}

/// Seconds this process has been on a core, where the system says so: others may be running on it.
fn on_core() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}
