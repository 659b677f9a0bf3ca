//! How long answers take is told by `bench/times` and by `--stats`, and by nothing else.

use crate::common::{json, ran, run};
use std::path::Path;
use std::process::Command;

#[test]
fn the_table_of_times_is_printed_by_one_command() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/times");
    let words = ["--only", "nam56r-mini", "--devices", "8", "--engines", "megatron,nanotron"];
    let ran =
        ran(Command::new("python3").arg(script).args(words).args(["--binary", env!("CARGO_BIN_EXE_shardwright")]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[0], "| recipe | engine | `fit` on 8 | `plan` on 8 |");
    let cells = |line: &str| line.split(" | ").map(str::to_string).collect::<Vec<_>>();
    let [megatron, nanotron] = [cells(lines[2]), cells(lines[3])];
    assert_eq!((lines.len(), megatron.len()), (4, 4), "{}", ran.stdout);
    assert!(megatron[3].contains(" s, ") && megatron[3].contains(" MiB |"), "{}", ran.stdout);
    assert!(nanotron[3].contains("(exit 1)"), "{}", ran.stdout);
}

#[test]
fn two_runs_of_a_plan_print_the_same_bytes() {
    let line = "plan llama3-8b --gbs 64 --cp 1 --mbs 1 --on 4xH200 --json";
    let (one, other) = (run(line), run(line));
    assert_eq!(one.stdout, other.stdout);
    let clocks = ["seconds", "cpu_seconds", "threads", "priced_per_second_per_core"];
    let stats = serde_json::from_str::<serde_json::Value>(&one.stdout).unwrap()["stats"].clone();
    assert!(clocks.iter().all(|key| stats.get(key).is_none()), "{stats}");
    let stats = json("plan llama3-8b --gbs 64 --cp 1 --mbs 1 --on 4xH200 --stats")["stats"].clone();
    assert!(clocks.iter().all(|key| stats.get(key).is_some()), "{stats}");
}

#[test]
fn a_plan_beyond_its_limit_is_refused_before_it_starts() {
    let line = "plan deepseek-v3 --on 1024x8xH200";
    let refused = run(&format!("{line} --work-limit 1s"));
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("work/operations") && refused.stderr.contains("--work-limit"),
        "{}",
        refused.stderr
    );
}
