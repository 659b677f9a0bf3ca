//! Replays against what `launch --engine megatron` wrote, as Megatron's own trainer ran it on an
//! H200 (`data/truth/emitted_h200.jsonl`, and with other switches `emitted_options_h200.jsonl`): memory
//! after set-up, and peaks step by step.

use case::Case;
use ledger::{Ledger, RankJob};
use replay::allocator::Action;
use replay::record::Recorder;
use replay::{PhaseKind, Replay};
use serde_json::Value;

const ROWS: usize = 14;

/// A row, and what was launched as its flags say.
struct Emitted {
    name: String,
    case: Case,
    row: Value,
}

fn values(file: &str) -> Vec<Value> {
    let path = format!("{}/../../data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn read(file: &str) -> Vec<Emitted> {
    values(file).into_iter().map(Emitted::read).collect()
}

/// Rows that the ledger was written with.
fn rows() -> Vec<Emitted> {
    let mut rows = read("emitted_h200.jsonl");
    rows.extend(read("emitted_options_h200.jsonl"));
    assert_eq!(rows.len(), ROWS);
    rows
}

/// Rows taken after it was written, and after which nothing was changed: other models, stages, formats
/// and switches. They say how far it carries.
#[test]
fn launches_taken_afterwards_are_replayed_within_the_bounds_we_state() {
    let rows = read("emitted_blind_h200.jsonl");
    let mut all = Vec::new();
    for emitted in rows.iter().filter(|emitted| emitted.row["setup"].is_object()) {
        let replay = emitted.run();
        assert_eq!(Some(replay.params), emitted.row["params"].as_u64(), "{}", emitted.name);
        let e = errors(&replay, &emitted.row);
        assert!(e[0].abs() <= 0.0001, "{}: static memory is off by {:.4}%", emitted.name, 100.0 * e[0]);
        all.push(e);
    }
    assert_eq!((rows.len(), all.len()), (12, 11));
    let [allocated, reserved] = [1, 2].map(|i| mean_and_worst(all.iter().map(|e| e[i])));
    assert!(allocated.0 <= 0.005 && allocated.1 <= 0.015, "allocated peak: {allocated:?}");
    assert!(reserved.0 <= 0.02 && reserved.1 <= 0.05, "reserved peak: {reserved:?}");
}

impl Emitted {
    /// What is allocated, what is asked for and what it is when a segment no longer fits the device.
    fn stops(&self) -> (u64, u64, &'static str) {
        let case = &self.case;
        let ledger = Ledger::of_case(case).unwrap();
        let job = RankJob { recipe: &case.recipe, layout: &case.layout, stages: &case.stages, rank: 0 };
        let recorder = Recorder::new(1 << 24);
        ledger.record(&job, recorder.clone()).unwrap();
        let recording = recorder.read();
        let visible = case.on().device.visible_bytes();
        let (mut allocated, mut reserved) = (0, 0);
        for event in &recording.events {
            match event.action {
                Action::Segment if reserved + event.bytes > visible => {
                    return (allocated, event.bytes, recording.labels[event.label].name);
                }
                Action::Segment => reserved += event.bytes,
                Action::Taken => allocated += event.bytes,
                Action::Free => allocated -= event.bytes,
                _ => {}
            }
        }
        panic!("{} fits", self.name)
    }

    fn read(row: Value) -> Emitted {
        let name = row["name"].as_str().unwrap().to_string();
        let case = fidelity::emitted::case(&row).unwrap_or_else(|why| panic!("{name}: {why}"));
        Emitted { name, case, row }
    }

    fn run(&self) -> Replay {
        fidelity::emitted::replay(&self.case, &self.row, u64::MAX).unwrap_or_else(|why| panic!("{}: {why}", self.name))
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Errors of one row as fractions: allocated after set-up, its peak and the reserved peak over steps.
fn errors(replay: &Replay, row: &Value) -> [f64; 3] {
    let steps = row["steps"].as_array().unwrap();
    let most = |key: &str| steps.iter().filter_map(|step| step[key].as_u64()).max().unwrap();
    let pairs = [
        (replay.phase(PhaseKind::Optimizer).unwrap().allocated, row["setup"]["alloc"].as_u64().unwrap()),
        (replay.allocated_peak(), most("peak")),
        (replay.reserved_peak(), most("reserved_peak")),
    ];
    pairs.map(|(ours, theirs)| ours as f64 / theirs as f64 - 1.0)
}

fn mean_and_worst(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    (values.clone().map(f64::abs).sum::<f64>() / count, values.map(f64::abs).fold(0.0, f64::max))
}

#[test]
fn every_emitted_launch_is_replayed_within_bounds() {
    let mut all = Vec::new();
    println!("{:24} {:>9} {:>9} {:>9}  peak stands in", "row", "static", "allocated", "reserved");
    for emitted in rows().iter().filter(|emitted| emitted.row["setup"].is_object()) {
        let replay = emitted.run();
        assert_eq!(Some(replay.params), emitted.row["params"].as_u64(), "{}", emitted.name);
        let e = errors(&replay, &emitted.row);
        let ([a, b, c], highest) = (e.map(|e| 100.0 * e), replay.highest());
        let at = format!("{} {}", highest.kind, highest.peak.origin);
        println!("{:24} {a:+8.3}% {b:+8.3}% {c:+8.3}%  {at}", emitted.name);
        assert!(e[0].abs() <= 0.0001, "{}: static memory is off by {a:.4}%", emitted.name);
        assert!(gib(replay.reserved_peak()) < VISIBLE, "{} ran", emitted.name);
        all.push(e);
    }
    let [allocated, reserved] = [1, 2].map(|i| mean_and_worst(all.iter().map(|e| e[i])));
    println!("allocated {allocated:.5?} reserved {reserved:.5?}");
    assert!(allocated.0 <= 0.0005 && allocated.1 <= 0.001, "allocated peak: {allocated:?}");
    assert!(reserved.0 <= 0.0025 && reserved.1 <= 0.0075, "reserved peak: {reserved:?}");
}

/// Every step by itself, so that a first one cannot be wrong behind a later one. Which gradients come
/// back in time in a step that compiles kernels is the host's affair, and so is a tenth of that.
#[test]
fn every_step_of_an_emitted_launch_is_replayed_within_bounds() {
    for emitted in rows().iter().filter(|emitted| emitted.row["setup"].is_object()) {
        let replay = emitted.run();
        for step in 0..3 {
            let [passes, update] = [PhaseKind::Passes(step), PhaseKind::Update(step)].map(|k| replay.phase(k).unwrap());
            let theirs = &emitted.row["steps"][step as usize];
            let held = [
                ("left", update.allocated, "alloc", 0.0005),
                ("allocated", passes.peak.allocated.max(update.peak.allocated), "peak", 0.001),
                ("reserved", passes.reserved_peak.max(update.reserved_peak), "reserved_peak", 0.05),
            ];
            for (what, ours, key, bound) in held {
                let off = ours as f64 / theirs[key].as_u64().unwrap() as f64 - 1.0;
                assert!(off.abs() <= bound, "{} step {step}: {what} is off by {:.3}%", emitted.name, 100.0 * off);
            }
        }
    }
}

/// GiB that the card shows to a process.
const VISIBLE: f64 = 139.8;

#[test]
fn a_launch_that_ran_out_of_memory_does_not_fit() {
    let emitted = rows().into_iter().filter(|emitted| emitted.row["out_of_memory"].is_string());
    let mut count = 0;
    for emitted in emitted {
        let first = emitted.run().phase(PhaseKind::Passes(0)).unwrap().reserved_peak;
        assert!(gib(first) > VISIBLE, "{}: {:.1} GiB reserved in the first step", emitted.name, gib(first));
        count += 1;
    }
    assert_eq!(count, 1);
}

/// Expandable segments phase by phase: row, phase, allocated, its peak, reserved, its peak.
#[test]
fn expandable_segments_do_not_move_by_a_byte() {
    let mut lines = String::new();
    for emitted in rows().iter().filter(|emitted| emitted.case.options.expandable_segments) {
        for phase in &emitted.run().phases {
            let (kind, peak, reserved) = (phase.kind.to_string(), phase.peak.allocated, phase.reserved);
            let (name, allocated, most) = (&emitted.name, phase.allocated, phase.reserved_peak);
            lines += &format!("{name} {kind} {allocated} {peak} {reserved} {most}\n");
        }
    }
    assert_eq!(lines, include_str!("../golden/expandable.txt"));
}

/// Graphs of attention, of both blocks, of whole layers and of whole steps: what a rank reserves. Nothing was
/// fitted to these rows; what layers hold besides was read off the first three and holds for the last.
#[test]
fn launches_with_captured_graphs_reserve_what_was_measured() {
    let rows = ["emitted_again_h200.jsonl", "emitted_kernels_h200.jsonl"].into_iter().flat_map(read);
    let mut found = Vec::new();
    for emitted in rows.filter(|emitted| emitted.name.contains("llama8b") && emitted.name.contains("graph")) {
        let [fixed, _, reserved] = errors(&emitted.run(), &emitted.row);
        assert!(fixed.abs() <= 0.0001 && reserved.abs() <= 0.03, "{}: {fixed:.4} {reserved:.4}", emitted.name);
        found.push(reserved);
    }
    assert_eq!(found.len(), 5, "{found:?}");
}

/// DeepEP stood in for by what its host code allocates, exchanges under another microbatch, and graphs of experts and
/// scans. Nothing was fitted to these rows; that graphs hold the tokens they sorted was looked for because two rows
/// without it came out 7 and 9% short.
#[test]
fn other_dispatchers_and_graphs_of_experts_hold_what_was_measured() {
    let rows = read("emitted_dispatch_h200.jsonl");
    assert_eq!(rows.len(), 14);
    for emitted in &rows {
        let [fixed, allocated, reserved] = errors(&emitted.run(), &emitted.row);
        let name = &emitted.name;
        assert!(fixed.abs() <= 0.0001 && reserved.abs() <= 0.041, "{name}: {fixed:.4} {reserved:.4}");
        // One more microbatch runs ahead where a stage has several chunks, and holds a layer or two of its own.
        let bound = if name.contains("vpp2ep4-overlap") { 0.014 } else { 0.001 };
        assert!(name.contains("graph") || allocated.abs() <= bound, "{name}: {allocated:.4}");
    }
    let judged: Vec<_> =
        rows.iter().map(|r| fidelity::judge_parts(&r.row, &[fidelity::Part::Time], fidelity::Pricing::AsRun)).collect();
    let errors = |name: &'static str| judged.iter().filter_map(move |j| j.figure(name).map(|f| f.error().abs()));
    for (name, mean, worst) in [("kernel_time", 0.045, 0.07), ("step_time", 0.06, 0.11)] {
        let (its_mean, its_worst) = mean_and_worst(errors(name));
        assert!(its_mean <= mean && its_worst <= worst, "{name}: {its_mean:.4}, worst {its_worst:.4}");
    }
}

/// gpt-oss, whose ledger and prices were written before any of these ran, but for rotations that do not fuse under YaRN's
/// factor and windows that cost whole blocks, which were looked for when they came out 5% short.
#[test]
fn gpt_oss_holds_and_takes_what_was_measured() {
    let rows = read("emitted_oss_h200.jsonl");
    assert_eq!(rows.len(), 8);
    for emitted in &rows {
        let [fixed, allocated, reserved] = errors(&emitted.run(), &emitted.row);
        let name = &emitted.name;
        assert!(fixed.abs() <= 0.0002 && allocated.abs() <= 0.001, "{name}: {fixed:.4} {allocated:.4}");
        assert!(reserved.abs() <= 0.081, "{name}: {reserved:.4}");
    }
    let judged: Vec<_> =
        rows.iter().map(|r| fidelity::judge_parts(&r.row, &[fidelity::Part::Time], fidelity::Pricing::AsRun)).collect();
    let errors = |name: &'static str| judged.iter().filter_map(move |j| j.figure(name).map(|f| f.error().abs()));
    for (name, mean, worst) in [("kernel_time", 0.065, 0.09), ("step_time", 0.095, 0.145)] {
        let (its_mean, its_worst) = mean_and_worst(errors(name));
        assert!(its_mean <= mean && its_worst <= worst, "{name}: {its_mean:.4}, worst {its_worst:.4}");
    }
}

/// Latent attention, wide and small experts, dropless and of a fixed capacity, taken when all prices stood. Changed behind
/// them: nobody waits for counts under a capacity, casts of groups by recipe. A sequence of experts and rotations fused
/// with YaRN are refused by name.
#[test]
fn experts_of_a_fixed_capacity_hold_and_take_what_was_measured() {
    let rows = values("emitted_experts_h200.jsonl");
    let judged: Vec<_> = rows.iter().map(fidelity::judge).collect();
    let errors = |name: &'static str| judged.iter().filter_map(move |j| j.figure(name).map(|f| f.error().abs()));
    let bounds = [
        ("static", 11, 0.0001, 0.0001),
        ("allocated", 11, 0.0008, 0.003),
        ("reserved", 11, 0.05, 0.145),
        ("kernel_time", 12, 0.045, 0.12),
        ("step_time", 12, 0.055, 0.26),
    ];
    for (name, count, mean, worst) in bounds {
        let (its_mean, its_worst) = mean_and_worst(errors(name));
        assert_eq!(errors(name).count(), count, "{name}");
        assert!(its_mean <= mean && its_worst <= worst, "{name}: {its_mean:.4}, worst {its_worst:.4}");
    }
    let refused: Vec<String> = judged.iter().flat_map(|j| &j.refusals).map(|refusal| refusal.why.to_string()).collect();
    assert_eq!(refused.len(), 3, "{refused:?}");
    assert!(refused[0].contains("fused rotation of latent attention") && refused[1].contains("moe-grouped-gemm"));
}

/// Kernels and steps of one rank alone, all files: `data/truth/host_h200.jsonl` is what the host's pace was read off,
/// and is not among them.
#[test]
fn kernels_and_steps_of_emitted_launches_take_what_was_measured() {
    let files =
        ["emitted_kernels_h200", "emitted_h200", "emitted_blind_h200", "emitted_options_h200", "emitted_again_h200"];
    let rows: Vec<Emitted> = files.into_iter().flat_map(|file| read(&format!("{file}.jsonl"))).collect();
    let judged: Vec<_> =
        rows.iter().map(|r| fidelity::judge_parts(&r.row, &[fidelity::Part::Time], fidelity::Pricing::AsRun)).collect();
    let errors = |name: &'static str| judged.iter().filter_map(move |j| j.figure(name).map(|f| f.error().abs()));
    for (name, count, mean, worst) in [("kernel_time", 35, 0.045, 0.15), ("step_time", 55, 0.075, 0.28)] {
        let (its_mean, its_worst) = mean_and_worst(errors(name));
        assert_eq!(errors(name).count(), count, "{name}");
        assert!(its_mean <= mean && its_worst <= worst, "{name}: {its_mean:.4}, worst {its_worst:.4}");
    }
}

/// A third of the launches that were measured for kernels was drawn before any of them ran, and nobody looked at it
/// until the prices stood. They were 4.7 and 19% off in kernels then, and 11.3 and 24% in steps on busy hosts; bounds may only fall.
#[test]
fn launches_that_were_kept_aside_take_what_was_measured() {
    let rows = values("emitted_kept_h200.jsonl");
    let judged: Vec<_> =
        rows.iter().map(|row| fidelity::judge_parts(row, &[fidelity::Part::Time], fidelity::Pricing::AsRun)).collect();
    let errors = |name: &'static str| judged.iter().filter_map(move |j| j.figure(name).map(|f| f.error().abs()));
    for (name, mean, worst) in [("kernel_time", 0.038, 0.1), ("step_time", 0.042, 0.125)] {
        let (its_mean, its_worst) = mean_and_worst(errors(name));
        assert_eq!(errors(name).count(), 13, "{name}");
        assert!(its_mean <= mean && its_worst <= worst, "{name}: {its_mean:.4}, worst {its_worst:.4}");
    }
}

/// Sparse attention without fused kernels, which no longer fits where we said that it would: the replay asks for the same
/// bytes, with as many allocated, at the operation where the run stopped. The last three were looked at when it stood; another
/// process held some of the device beside one of them, which stopped a few tensors sooner.
#[test]
fn sparse_attention_runs_out_where_it_did() {
    let rows = read("emitted_sparse_h200.jsonl");
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let expected = [("nam-sparse-mbs4", 134.9, 14.0), ("dsv32-4l-ep32", 125.6, 8.0), ("nam-dsa-mbs2", 127.5, 7.0)];
    let (ran_out, ran): (Vec<&Emitted>, Vec<&Emitted>) =
        rows.iter().partition(|emitted| emitted.row.get("out_of_memory").is_some());
    let judged = fidelity::judge(&ran[0].row);
    for (name, most) in [("allocated", 0.0005), ("reserved", 0.02), ("kernel_time", 0.01), ("step_time", 0.01)] {
        assert!(judged.figure(name).unwrap().error().abs() < most, "{name}: {judged:?}");
    }
    assert_eq!((ran_out.len(), ran.len()), (4, 1));
    assert!(ran_out.iter().all(|emitted| fidelity::judge(&emitted.row).is_modelled()));
    for (name, allocated, wanted) in expected {
        let emitted = ran_out.iter().find(|emitted| emitted.name == name).unwrap();
        let stopped = emitted.stops();
        assert!((gib(stopped.0) - allocated).abs() < 0.1, "{name}: {} allocated", gib(stopped.0));
        assert_eq!((gib(stopped.1), stopped.2), (wanted, "attention weights"), "{name}");
    }
}
