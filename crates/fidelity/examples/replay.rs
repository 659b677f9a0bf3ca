//! Replays the rows of a truth file and prints one line a phase (allocated, peak, reserved, its
//! peak, split peak), with `--time` how long a replay takes, with `--lines` the peak by line. Usage: `cargo run --release --example replay -- ROWS.jsonl [--time|--lines|--balanced]`.

use fidelity::megatron::Run;
use ledger::megatron::{Routing, replay};
use replay::Line;
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: replay ROWS.jsonl [--time|--lines|--balanced]");
    let flags: Vec<String> = args.collect();
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).expect("a row is JSON");
        let ran = match Run::read(&row["case"]) {
            Ok(ran) => ran,
            Err(why) => {
                println!("{}: {why}", row["case"]["name"]);
                continue;
            }
        };
        run(&ran, &flags);
    }
}

fn run(ran: &Run, flags: &[String]) {
    let name = &ran.name;
    let mut options = match ran.options() {
        Ok(options) => options,
        Err(why) => return println!("{name}: {why}"),
    };
    if flags.iter().any(|f| f == "--balanced") {
        options.routing = Routing::Balanced;
    }
    let start = Instant::now();
    let replay = match replay(&ran.job(&options)) {
        Ok(replay) => replay,
        Err(why) => return println!("{name}: {why}"),
    };
    let micros = start.elapsed().as_micros();
    if flags.iter().any(|f| f == "--time") {
        return println!("{name:28} {micros:>6} us, {} allocations to the peak", replay.highest().peak.event);
    }
    if flags.iter().any(|f| f == "--lines") {
        println!("{name}: {} at {}", replay.highest().kind, replay.highest().peak.origin);
        for line in Line::ALL.into_iter().filter(|line| replay.line(*line) > 0) {
            println!("  {line:22} {}", units::Bytes(replay.line(line)));
        }
        return;
    }
    for phase in &replay.phases {
        let (p, a, k, r) = (&phase.kind, phase.allocated, phase.peak.allocated, phase.reserved);
        let (rp, s) = (phase.reserved_peak, phase.inactive_split_peak);
        println!("{name} {p} {a} {k} {r} {rp} {s}");
    }
}
