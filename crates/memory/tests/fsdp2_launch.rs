//! The emitted FSDP2 program's ledger against ranks measured on an H200
//! (`data/truth/fsdp2_launch_h200.jsonl`, written by `tools/measure_launch.py`).

use layout::{Engine, Layout, LayoutRequest, Recompute, StagePlan, ZeroStage, check};
use memory::Unmodelled;
use memory::ledger::Replay;
use memory::ledger::fsdp2::{Fsdp2Options, Job, explain, replay};
use recipe::Recipe;
use serde_json::Value;

/// Rows measured while the ledger was written, and rows taken once it stood.
const TRUTH: &str = "/../../data/truth/fsdp2_launch_h200.jsonl";

fn rows() -> Vec<Value> {
    let path = std::env::var("ROWS").unwrap_or_else(|_| format!("{}{TRUTH}", env!("CARGO_MANIFEST_DIR")));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).filter(|row: &Value| row["kind"] == "launch").collect()
}

fn layout(row: &Value, recipe: &Recipe) -> Layout {
    let said = &row["layout"];
    let zero = if said["zero"] == "3" { ZeroStage::Three } else { ZeroStage::Two };
    let request = LayoutRequest {
        world: said["world"].as_u64(),
        tp: said["tp"].as_u64(),
        sp: said["sp"].as_bool(),
        pp: said["pp"].as_u64(),
        ep: said["ep"].as_u64(),
        etp: said["etp"].as_u64(),
        zero: Some(zero),
        micro_batch: said["mbs"].as_u64(),
        microbatches: said["microbatches"].as_u64(),
        sequence: said["seq"].as_u64(),
        recompute: Some(Recompute::parse(said["recompute"].as_str().unwrap()).unwrap()),
        engine: Some(Engine::Fsdp2),
        ..LayoutRequest::default()
    };
    check(recipe, &request).layout.unwrap()
}

fn replayed(row: &Value, run: fn(&Job) -> Result<Replay, Unmodelled>) -> Result<Replay, Unmodelled> {
    let recipe = Recipe::parse(row["recipe"].as_str().unwrap()).unwrap();
    let layout = layout(row, &recipe);
    let stages = StagePlan::new(&recipe, &layout, None).unwrap();
    let options = Fsdp2Options::emitted(&layout);
    let rank = row["rank"].as_u64().unwrap();
    run(&Job { recipe: &recipe, layout: &layout, stages: &stages, rank, options: &options })
}

fn highest(row: &Value, key: &str) -> u64 {
    let phases =
        row.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("fwdbwd") || name.starts_with("opt"));
    phases.filter_map(|(_, phase)| phase[key].as_u64()).max().unwrap()
}

/// Errors in percent: allocated after backward, after the step, at the peak; reserved at its peak.
fn errors(row: &Value) -> Option<[f64; 4]> {
    let replay = match replayed(row, replay) {
        Ok(replay) => replay,
        Err(refused) => {
            println!("{:24} {refused}", row["name"].as_str().unwrap());
            return None;
        }
    };
    let end = |phase: &str| replay.phase(phase).unwrap().allocated;
    let measured = |phase: &str| row[phase]["alloc"].as_u64().unwrap();
    let pairs = [
        (end("fwdbwd2"), measured("fwdbwd2")),
        (end("opt2"), measured("opt2")),
        (replay.allocated_peak(), highest(row, "peak")),
        (replay.reserved_peak(), highest(row, "reserved_peak")),
    ];
    let e = pairs.map(|(predicted, truth)| 100.0 * (predicted as f64 / truth as f64 - 1.0));
    let (name, at) = (row["name"].as_str().unwrap(), replay.highest().peak.stand);
    println!("{name:24} {:+8.3}% {:+8.3}% {:+8.3}% {:+8.3}%  {at}", e[0], e[1], e[2], e[3]);
    Some(e)
}

fn mean_and_worst(errors: &[[f64; 4]], i: usize) -> (f64, f64) {
    let sizes = errors.iter().map(|e| e[i].abs());
    (sizes.clone().sum::<f64>() / errors.len() as f64, sizes.fold(0.0, f64::max))
}

#[test]
fn every_measured_rank_is_replayed_within_bounds() {
    println!("{:24} {:>9} {:>9} {:>9} {:>9}  peak stands in", "row", "after bwd", "after opt", "allocated", "reserved");
    let errors: Vec<_> = rows().iter().filter_map(errors).collect();
    let [bwd, opt, allocated, reserved] = [0, 1, 2, 3].map(|i| mean_and_worst(&errors, i));
    println!("n={} allocated {allocated:.3?} reserved {reserved:.3?} (mean, worst, %)", errors.len());
    assert!(bwd.1 <= 2.0 && opt.1 <= 2.0, "{bwd:?} {opt:?}");
    assert!(allocated.1 <= 2.0, "allocated {allocated:?}");
    assert!(reserved.0 <= 3.0, "reserved {reserved:?}");
}

#[test]
fn a_step_leaves_nothing_behind() {
    for row in rows() {
        let Ok(replay) = replayed(&row, explain) else { continue };
        assert!(replay.retained.is_empty(), "{}: {:?}", row["name"], replay.retained);
        if std::env::var("SHOW").is_ok_and(|name| row["name"] == name.as_str()) {
            for holder in &replay.holders {
                println!("{:10.2} MiB {:?}", holder.bytes as f64 / 1048576.0, holder);
            }
        }
        let peak = replay.allocated_peak();
        assert_eq!(replay.by_line().iter().sum::<u64>(), peak);
        assert_eq!(replay.holders.iter().map(|h| h.bytes).sum::<u64>(), peak);
    }
}
