//! Replays against ranks that Megatron-Core really ran on an H200
//! (`data/truth/megatron_h200.jsonl`): static memory, allocated and reserved peaks.

use fidelity::megatron::Run;
use ledger::megatron::{Job, explain, replay};
use recipe::Mixer;
use replay::Replay;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const ROWS: usize = 37;

fn rows() -> Vec<(Run, Value)> {
    let path = format!("{}/../../data/truth/megatron_h200.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let rows: Vec<_> = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect();
    assert_eq!(rows.len(), ROWS);
    rows.into_iter().map(|row| (Run::read(&row["case"]).unwrap(), row)).collect()
}

fn replayed(ran: &Run, replay: fn(&Job) -> Result<Replay, replay::Unmodelled>) -> Replay {
    let options = ran.options().unwrap();
    replay(&ran.job(&options)).unwrap_or_else(|e| panic!("{}: {e}", ran.name))
}

/// The highest value of `key` over phases of a row, over its steps only if asked.
fn measured(row: &Value, key: &str, is_step_only: bool) -> u64 {
    let phases = row.as_object().unwrap().iter().filter(|(name, value)| {
        let is_step = name.starts_with("fwdbwd") || (name.starts_with("opt") && *name != "optimizer");
        value.get(key).is_some() && (is_step || !is_step_only)
    });
    phases.filter_map(|(_, value)| value[key].as_u64()).max().unwrap()
}

/// Errors of one row as fractions: static memory, allocated peak, reserved peak.
fn errors(replay: &Replay, row: &Value) -> [f64; 3] {
    let pairs = [
        (replay.phase(replay::PhaseKind::Optimizer).unwrap().allocated, row["optimizer"]["alloc"].as_u64().unwrap()),
        (replay.allocated_peak(), measured(row, "peak", true)),
        (replay.reserved_peak(), measured(row, "reserved_peak", false)),
    ];
    pairs.map(|(predicted, truth)| predicted as f64 / truth as f64 - 1.0)
}

fn mean_and_worst(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    (values.clone().map(f64::abs).sum::<f64>() / count, values.map(f64::abs).fold(0.0, f64::max))
}

#[test]
fn every_measured_rank_is_replayed_within_bounds() {
    let mut by_kind: BTreeMap<&str, Vec<[f64; 3]>> = BTreeMap::new();
    println!("{:28} {:>9} {:>9} {:>9}  peak stands in", "row", "static", "allocated", "reserved");
    for (ran, row) in rows() {
        let replay = replayed(&ran, replay);
        let e = errors(&replay, &row);
        assert_eq!(Some(replay.params), row["params"].as_u64(), "{}", ran.name);
        let [a, b, c] = e.map(|e| 100.0 * e);
        let highest = replay.highest();
        let at = format!("{} {}", highest.kind, highest.peak.origin);
        println!("{:28} {a:+8.3}% {b:+8.3}% {c:+8.3}%  {at}", ran.name);
        assert!(e[0].abs() <= 0.002, "{}: static memory is off by {a:.3}%", ran.name);
        by_kind.entry(fidelity::kind(&ran.case.recipe)).or_default().push(e);
        by_kind.entry("all").or_default().push(e);
    }
    for (kind, errors) in &by_kind {
        let [s, a, r] = [0, 1, 2].map(|i| mean_and_worst(errors.iter().map(|e| 100.0 * e[i])));
        println!("{kind:7} n={:2} static {s:.3?} allocated {a:.3?} reserved {r:.3?}", errors.len());
    }
    let all = &by_kind["all"];
    let (mean, worst) = mean_and_worst(all.iter().map(|e| e[1]));
    assert!(mean <= 0.0003 && worst <= 0.003, "allocated peak: mean {mean}, worst {worst}");
    let (mean, worst) = mean_and_worst(all.iter().map(|e| e[2]));
    assert!(mean <= 0.0015 && worst <= 0.016, "reserved peak: mean {mean}, worst {worst}");
}

/// Every phase of every row as it was when rows were last compared with a device: row, phase,
/// allocated, its peak, reserved, its peak, split peak. A replay that gains a mechanism must not
/// move them by a byte.
#[test]
fn no_measured_row_moves_by_a_byte() {
    let golden = include_str!("../golden/megatron_rows.txt");
    let mut expected = golden.lines();
    for (ran, _) in rows() {
        for phase in &replayed(&ran, replay).phases {
            let (name, peak) = (phase.kind.to_string(), phase.peak.allocated);
            let line = format!(
                "{} {name} {} {peak} {} {} {}",
                ran.name, phase.allocated, phase.reserved, phase.reserved_peak, phase.inactive_split_peak
            );
            assert_eq!(Some(line.as_str()), expected.next());
        }
    }
    assert_eq!(expected.next(), None);
}

/// What Megatron retains after a step, and why.
const RETAINED: [&str; 6] = [
    // Attributes of the token dispatcher, until its next forward.
    "routing probabilities",
    "routing map",
    "permutation",
    // `decoder.input_tensor` and its gradient, until the next forward of a later stage.
    "received input",
    "norm input gradient",
    "sum of gradients",
];

#[test]
fn a_step_leaves_nothing_but_what_is_retained_by_name() {
    let (mut seen, mut num_clean) = (BTreeSet::new(), 0);
    for (ran, _) in rows() {
        let replay = replayed(&ran, explain);
        for holder in &replay.retained {
            seen.insert(holder.name);
            let is_known = RETAINED.contains(&holder.name);
            assert!(is_known, "{}: {} `{}` {} B", ran.name, holder.origin, holder.name, holder.bytes);
        }
        if !ran.case.recipe.has(Mixer::Moe) && !ran.case.layout.pp.splits() {
            assert!(replay.retained.is_empty(), "{}: {:?}", ran.name, replay.retained);
            num_clean += 1;
        }
    }
    assert_eq!(seen, BTreeSet::from(RETAINED), "a name that no row retains is not in the list");
    assert!(num_clean >= 15, "{num_clean} rows");
}

#[test]
fn lines_and_holders_sum_to_the_peak() {
    for (ran, _) in rows() {
        let replay = replayed(&ran, explain);
        let peak = replay.allocated_peak();
        assert_eq!(replay.by_line().iter().sum::<u64>(), peak, "{}", ran.name);
        assert_eq!(replay.holders.iter().map(|h| h.bytes).sum::<u64>(), peak, "{}", ran.name);
        assert_eq!(replay.by_origin().iter().map(|s| s.1).sum::<u64>(), peak, "{}", ran.name);
    }
}
