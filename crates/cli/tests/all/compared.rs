//! Runs beside each other: what differs is found in the layer in which one thing was changed in a real launch, like is
//! compared with like, and a gate exits as typed.

use crate::common::{Ran, run, run_args, scratch};
use evidence::{Event, EventKind, Evidence, Format, Memory, MemoryKind, Source, Step};
use receipt::{Kind, Launched, Receipt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A name of this test run's own.
fn fresh(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compared");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// The receipt of a launch that ran these steps.
fn launched(words: &str, evidence: Evidence) -> Receipt {
    let folder = fresh("launch");
    let out = folder.display().to_string();
    let mut args: Vec<&str> = vec!["launch"];
    args.extend(words.split_whitespace());
    args.extend(["--out", &out]);
    let ran = run_args(&args);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    let about = Launched::read(&folder).unwrap_or_else(|f| panic!("{f:#?}")).about;
    Receipt::new(Kind::Run, "2026-11-16T00:00:00Z".to_string(), about, evidence)
}

/// Steps of these seconds with a falling loss, three of warm-up before them, and a peak.
fn evidence(seconds: &[f64], gib: f64) -> Evidence {
    let all = [9.0, 3.0, 2.0].iter().chain(seconds).enumerate();
    let step = |(at, seconds): (usize, &f64)| Step {
        number: at as u64 + 1,
        seconds: Some(*seconds),
        loss: Some(11.0 - 0.125 * at as f64),
        line: at as u64 + 1,
        ..Step::default()
    };
    let bytes = (gib * (1u64 << 30) as f64) as u64;
    let memory =
        |kind| Memory { rank: Some(0), kind, bytes, resolution: 0, phase: None, step: None, source: 0, line: 1 };
    let source = Source {
        format: Format::MegatronLm,
        path: "log".to_string(),
        bytes: 0,
        sha256: String::new(),
        digits: BTreeMap::from([("loss".to_string(), 7)]),
        unread: 0,
        first_unread: None,
    };
    let mut evidence = Evidence {
        sources: vec![source],
        steps: all.map(step).collect(),
        memory: vec![memory(MemoryKind::AllocatedPeak)],
        ..Evidence::default()
    };
    evidence.mark_warm_up();
    evidence
}

fn usual() -> Evidence {
    evidence(&[1.0, 1.01, 0.99, 1.0, 1.005, 0.995], 70.0)
}

/// A receipt's file.
fn written(receipt: &Receipt) -> String {
    let path = fresh("receipt").with_extension("json");
    std::fs::write(&path, receipt.text()).expect("a file");
    path.display().to_string()
}

fn typed(words: &[&str]) -> Ran {
    let mut args = vec!["receipt"];
    args.extend(words);
    run_args(&args)
}

fn answer(words: &[&str]) -> (Value, i32) {
    let mut args = words.to_vec();
    args.push("--json");
    let ran = typed(&args);
    let json =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}\n{}{}", ran.stdout, ran.stderr));
    (json, ran.code)
}

const DENSE: &str = "llama3-8b --on 8xH200";

/// One thing is changed in a launch, and the comparison names its layer and its part, with old and new values.
#[track_caller]
fn localised(old: &str, new: &str, layer: &str, part: &str, values: Option<(&str, &str)>) {
    let (a, b) = (written(&launched(old, usual())), written(&launched(new, usual())));
    let (found, _) = answer(&["compare", &a, &b]);
    assert_eq!(found["layer"], layer, "{old} | {new}: {}", found["changes"]);
    let causes: Vec<&Value> =
        found["changes"].as_array().unwrap().iter().filter(|change| change["may_follow"] == false).collect();
    let named = |change: &&&Value| change["layer"] == layer && change["part"] == part;
    let change = causes.iter().find(named).unwrap_or_else(|| panic!("{part} is not in {causes:#?}"));
    // Nothing further in is blamed.
    assert!(causes.iter().all(|change| change["layer"] == layer), "{causes:#?}");
    if let Some((before, after)) = values {
        assert_eq!((change["old"].as_str(), change["new"].as_str()), (Some(before), Some(after)), "{change}");
    }
}

fn edited(name: &str, from: &str, to: &str) -> String {
    let text = run(&format!("recipes {name}")).stdout;
    assert!(text.contains(from), "{text}");
    let path = scratch(
        &format!("compared-{}-{}.toml", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)),
        &text.replacen(from, to, 1),
    );
    path.display().to_string()
}

#[test]
fn a_change_of_the_shape_is_the_recipes() {
    let other = edited("llama3-8b", "ffn = 14336", "ffn = 14848");
    localised(DENSE, &DENSE.replace("llama3-8b", &other), "recipe", "shape", Some(("14336", "14848")));
}

#[test]
fn a_change_of_the_pattern_is_the_recipes() {
    let other = edited("llama3-8b", "depth = 32", "depth = 30");
    localised(DENSE, &DENSE.replace("llama3-8b", &other), "recipe", "pattern", Some(("32", "30")));
}

#[test]
fn a_change_of_mode_is_the_modes_whatever_degrees_it_pins() {
    let of = |mode: &str| format!("nam56r --on 8xH200 --mode {mode} --allow-seams");
    localised(&of("nemo_native"), &of("author_dp"), "mode", "mode", Some(("nemo_native", "author_dp")));
}

#[test]
fn a_feature_is_the_bundles() {
    let plain = "nam56r --on 8xH200 --mode nemo_native --allow-seams";
    localised(plain, &format!("{plain} --with mtp"), "feature bundle", "features", Some(("false", "true")));
    let experts = "mixtral-8x7b --on 64xH200 --tp 4 --pp 4 --override-memory";
    localised(experts, &format!("{experts} --without moe"), "feature bundle", "features", None);
}

#[test]
fn a_degree_is_the_layouts() {
    localised(&format!("{DENSE} --tp 2"), &format!("{DENSE} --tp 4"), "infrastructure", "layout", Some(("2", "4")));
    let recompute = format!("{DENSE} --recompute full");
    localised(DENSE, &recompute, "infrastructure", "layout", Some(("none", "full")));
}

#[test]
fn a_batch_is_the_batchs() {
    localised(
        &format!("{DENSE} --microbatches 4"),
        &format!("{DENSE} --microbatches 8"),
        "infrastructure",
        "batch",
        Some(("4", "8")),
    );
}

#[test]
fn hardware_precision_and_options_are_infrastructure() {
    localised(&format!("{DENSE} --tp 4"), "llama3-8b --on 8xH100 --tp 4", "infrastructure", "hardware", None);
    localised(DENSE, &format!("{DENSE} --precision fp8"), "infrastructure", "precision", None);
    let without = format!("{DENSE} --engine-args --no-rope-fusion");
    localised(DENSE, &without, "infrastructure", "options", Some(("true", "false")));
}

/// A policy of our own: its variables, steps and folders reach the launch.
fn under(policy: &str) -> String {
    let name = format!("policy-{}-{}.toml", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    format!("{DENSE} --policy {}", scratch(&name, policy).display())
}

#[test]
fn environment_and_arguments_are_infrastructure() {
    let set = |value: u64| {
        under(&format!(
            "[environment.set]
NCCL_IB_TIMEOUT = \"{value}\"
"
        ))
    };
    localised(&set(22), &set(23), "infrastructure", "environment", Some(("22", "23")));
    let (one, other) = ("[run]\nclip = 1.0\n", "[run]\nclip = 0.5\n");
    localised(&under(one), &under(other), "infrastructure", "arguments", None);
}

#[test]
fn what_ran_counts_where_the_launch_was_the_same() {
    let old = launched(DENSE, usual());
    let with = |change: &dyn Fn(&mut Receipt)| {
        let mut receipt = old.clone();
        change(&mut receipt);
        receipt
    };
    let mut before = old.clone();
    before.evidence.versions.insert("transformer_engine".to_string(), "2.9".to_string());
    before.evidence.machine.insert("driver".to_string(), "570.1".to_string());
    before.evidence.ran.insert("attention".to_string(), "flash_attn_3".to_string());
    let set = |map: fn(&mut Evidence) -> &mut BTreeMap<String, String>, key: &'static str, value: &'static str| {
        let mut receipt = before.clone();
        map(&mut receipt.evidence).insert(key.to_string(), value.to_string());
        receipt
    };
    for (after, part) in [
        (set(|e| &mut e.versions, "transformer_engine", "2.10"), "versions"),
        (set(|e| &mut e.machine, "driver", "575.3"), "hardware"),
        (set(|e| &mut e.ran, "attention", "unfused"), "backend"),
    ] {
        let (found, code) = answer(&["compare", &written(&before), &written(&after)]);
        assert_eq!((found["layer"].as_str(), code), (Some("infrastructure"), 0));
        assert_eq!(found["changes"][0]["part"], part);
        assert_eq!(found["changes"].as_array().unwrap().len(), 1);
    }
    // Another start of the same job is no difference.
    let again = with(&|receipt| receipt.recorded = "2026-11-17T00:00:00Z".to_string());
    let (found, code) = answer(&["compare", &written(&old), &written(&again)]);
    assert_eq!((found["changes"].as_array().unwrap().len(), found["layer"].is_null(), code), (0, true, 0));
}

#[test]
fn another_attempt_is_the_same_job() {
    let (one, two) = (format!("{DENSE} --attempt one"), format!("{DENSE} --attempt two"));
    let (found, code) = answer(&["compare", &written(&launched(&one, usual())), &written(&launched(&two, usual()))]);
    assert_eq!((found["changes"].as_array().unwrap().len(), code), (0, 0), "{}", found["changes"]);
}

#[test]
fn an_engine_is_infrastructure_whatever_it_calls_its_options() {
    let other = format!("{DENSE} --engine fsdp2");
    localised(DENSE, &other, "infrastructure", "engine", Some(("megatron", "fsdp2")));
}

#[test]
fn lanes_are_not_ranked() {
    let (a, b) = (written(&launched(DENSE, usual())), written(&launched(&format!("{DENSE} --engine fsdp2"), usual())));
    let (found, code) = answer(&["compare", &a, &b]);
    assert_eq!((code, found["layer"].as_str()), (1, Some("infrastructure")));
    assert!(found["speed"].is_null() && found["refused"]["throughput"][0].as_str().unwrap().contains("never ranks"));
    assert!(found["findings"].as_array().unwrap().iter().any(|f| f["rule"] == "receipt/unlike"));
    let gate = typed(&["gate", &b, "--against", &a]);
    assert_eq!(gate.code, 2, "{}", gate.stdout);
    assert!(gate.stderr.contains("[receipt/unlike]"), "{}", gate.stderr);
    // Nor a probe beside a run.
    let mut probe = launched(DENSE, usual());
    probe.kind = Kind::Probe;
    assert_eq!(typed(&["gate", &written(&probe), "--against", &a]).code, 2);
}

#[test]
fn a_gate_exits_as_typed() {
    let base = launched(DENSE, usual());
    let with = |evidence: Evidence| written(&Receipt { evidence, ..base.clone() });
    let old = with(usual());
    let gate = |new: &str, more: &[&str]| {
        let mut words = vec!["gate", new, "--against", &old];
        words.extend(more);
        typed(&words)
    };
    let same = gate(&with(usual()), &[]);
    assert_eq!(same.code, 0, "{}{}", same.stdout, same.stderr);
    assert!(same.stdout.contains("passes"), "{}", same.stdout);
    let slow = with(evidence(&[1.08, 1.09, 1.08, 1.07, 1.08, 1.08], 70.0));
    let ran = gate(&slow, &[]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("WORSE") && ran.stdout.contains("a regression"), "{}", ran.stdout);
    assert_eq!(gate(&slow, &["--time", "10"]).code, 0);
    // Half a percent of memory, where engines' own tests allow five.
    let large = with(evidence(&[1.0; 6], 70.5));
    assert_eq!((gate(&large, &[]).code, gate(&large, &["--memory", "1"]).code), (1, 0));
    let mut other = usual();
    other.steps[1].loss = Some(11.5);
    let other = with(other);
    assert_eq!((gate(&other, &[]).code, gate(&other, &["--loss", "any"]).code), (1, 0));
    let mut close = usual();
    close.steps[1].loss = close.steps[1].loss.map(|loss| loss + 1e-5);
    let close = with(close);
    assert_eq!((gate(&close, &[]).code, gate(&close, &["--loss", "exact"]).code), (0, 1));
    let mut oom = usual();
    oom.events.push(event(EventKind::OutOfMemory));
    assert_eq!(gate(&with(oom), &[]).code, 1);
    // What the baseline recorded and the candidate does not is no pass.
    assert_eq!(gate(&with(Evidence { memory: Vec::new(), ..usual() }), &[]).code, 1);
    // Usage.
    assert_eq!(typed(&["gate", &old]).code, 2);
    assert_eq!(gate(&old, &["--time", "much"]).code, 2);
    let empty = with(Evidence::default());
    let nothing = typed(&["gate", &empty, "--against", &empty]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.stderr.contains("[receipt/nothing-to-judge]"), "{}", nothing.stderr);
    let (json, code) = answer(&["gate", &slow, "--against", &old]);
    assert_eq!((code, json["passes"].as_bool()), (1, Some(false)));
    assert!(json["findings"].as_array().unwrap().iter().any(|f| f["rule"] == "receipt/regression"));
}

fn event(kind: EventKind) -> Event {
    Event {
        kind,
        attempt: 0,
        at: None,
        seconds: None,
        step: None,
        rank: None,
        detail: String::new(),
        source: 0,
        line: 1,
    }
}

#[test]
fn several_runs_a_side_are_tested_and_a_mixed_side_is_refused() {
    let base = launched(DENSE, usual());
    let run_of = |seconds: f64, late: f64| {
        let mut evidence = evidence(&[seconds; 6], 70.0);
        evidence.steps.iter_mut().for_each(|step| step.loss = step.loss.map(|loss| loss + late));
        written(&Receipt { evidence, ..base.clone() })
    };
    let old: Vec<String> = [(1.00, 0.00), (1.02, 0.02), (0.99, -0.03), (1.01, 0.01)].map(|(s, l)| run_of(s, l)).into();
    let new: Vec<String> = [(1.10, 0.01), (1.09, -0.02), (1.12, 0.03)].map(|(s, l)| run_of(s, l)).into();
    let mut words = vec!["compare"];
    words.extend(new.iter().map(String::as_str));
    words.push("--against");
    words.extend(old.iter().map(String::as_str));
    let (found, code) = answer(&words);
    assert_eq!((code, found["speed"]["basis"].as_str()), (0, Some("runs")));
    assert!(found["speed"]["test"]["p"].as_f64().unwrap() < 0.001, "{}", found["speed"]);
    assert!((found["speed"]["change"].as_f64().unwrap() - (1.10 / 1.005 - 1.0)).abs() < 1e-9);
    // Losses lie further apart than another order of summation explains, and no further than runs of one job do.
    assert_eq!(found["losses"]["same"], "statistically");
    let mixed = written(&launched(&format!("{DENSE} --tp 4"), usual()));
    let ran = typed(&["compare", &old[0], &mixed, "--against", &old[1]]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("[receipt/mixed-side]"), "{}", ran.stderr);
    let three = typed(&["compare", &old[0], &old[1], &old[2]]);
    assert!(three.code == 1 && three.stderr.contains("[receipt/sides]"), "{}", three.stderr);
}

#[test]
fn losses_have_three_tiers_and_say_what_a_log_cannot_show() {
    let base = launched(DENSE, usual());
    let tier = |change: &dyn Fn(&mut Evidence)| {
        let mut other = base.clone();
        change(&mut other.evidence);
        let (found, _) = answer(&["compare", &written(&base), &written(&other)]);
        found["losses"].clone()
    };
    assert_eq!(tier(&|_| {})["same"]["printed"]["digits"], 7);
    let shifted = |by: f64| move |e: &mut Evidence| e.steps[2].loss = e.steps[2].loss.map(|loss| loss * (1.0 + by));
    assert_eq!(tier(&shifted(1e-6))["same"], "order");
    let far = tier(&shifted(1e-2));
    assert_eq!((&far["same"], far["parted"]["step"].as_u64()), (&Value::from("undecided"), Some(3)));
    // Read as they were held, equal losses are equal bits.
    let mut exact = base.clone();
    exact.evidence.sources[0].digits.clear();
    let path = written(&exact);
    assert_eq!(answer(&["compare", &path, &path]).0["losses"]["same"], "bits");
    // Another batch is another loss.
    let other = written(&launched(&format!("{DENSE} --gbs 64"), usual()));
    let (found, _) = answer(&["compare", &written(&base), &other]);
    assert!(found["losses"].is_null() && found["refused"]["loss"][0].as_str().unwrap().contains("tokens"), "{found}");
}

#[test]
fn drift_names_when_and_in_which_layer() {
    let base = launched(DENSE, usual());
    let day = |day: usize, seconds: f64, gib: f64, version: &str| {
        let mut receipt = Receipt { evidence: evidence(&[seconds; 4], gib), ..base.clone() };
        receipt.recorded = format!("2026-11-{day:02}T00:00:00Z");
        receipt.evidence.versions.insert("torch".to_string(), version.to_string());
        written(&receipt)
    };
    let paces = [1.00, 1.01, 0.99, 1.00, 1.02, 0.98, 1.20, 1.21, 1.19, 1.20];
    let mut days: Vec<String> = paces
        .iter()
        .enumerate()
        .map(|(i, s)| day(i + 1, *s, if i < 9 { 70.0 } else { 71.0 }, if i < 6 { "2.14" } else { "2.15" }))
        .collect();
    days.reverse();
    let mut words = vec!["drift"];
    words.extend(days.iter().map(String::as_str));
    let (found, code) = answer(&words);
    let turns = found["turns"].as_array().unwrap();
    assert_eq!((turns.len(), code), (2, 0), "{turns:#?}");
    assert_eq!((turns[0]["at"].as_u64(), &turns[0]["figure"]), (Some(6), &Value::from("step-seconds")));
    assert_eq!(turns[0]["layer"], "infrastructure");
    assert_eq!(turns[0]["changes"][0]["key"], "torch");
    // Memory moved on the last day, and nothing that is recorded did.
    assert_eq!((turns[1]["at"].as_u64(), turns[1]["layer"].is_null()), (Some(9), true));
    let text = typed(&words).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("nothing that we record changed there"), "{text}");
    let other = written(&launched("gpt3-175b --on 64x8xH200 --tp 8 --pp 8", usual()));
    let mixed = typed(&["drift", &days[0], &other]);
    assert!(mixed.code == 1 && mixed.stderr.contains("[receipt/history]"), "{}", mixed.stderr);
}

#[test]
fn goodput_adds_up_and_is_drawn() {
    let at = |kind, attempt, at: f64, seconds: f64| Event {
        attempt,
        at: Some(at),
        seconds: (seconds > 0.0).then_some(seconds),
        ..event(kind)
    };
    let step = |number, attempt, at: f64, seconds: f64, warm_up| Step {
        number,
        attempt,
        at: Some(at),
        seconds: Some(seconds),
        warm_up,
        ..Step::default()
    };
    // Two starts: five steps, of which the last two are lost, a hundred seconds down, and four steps more.
    let steps = vec![
        step(1, 0, 130.0, 10.0, true),
        step(2, 0, 132.0, 2.0, false),
        step(3, 0, 134.0, 2.0, false),
        step(4, 0, 142.0, 2.0, false),
        step(5, 0, 144.0, 2.0, false),
        step(4, 1, 284.0, 4.0, true),
        step(5, 1, 286.0, 2.0, false),
        step(6, 1, 291.0, 5.0, false),
    ];
    let events = vec![
        at(EventKind::Start, 0, 100.0, 0.0),
        at(EventKind::Setup, 0, 115.0, 15.0),
        at(EventKind::CheckpointSaved, 0, 140.0, 6.0),
        at(EventKind::Failure, 0, 150.0, 0.0),
        at(EventKind::Start, 1, 250.0, 0.0),
        at(EventKind::CheckpointLoaded, 1, 270.0, 8.0),
        at(EventKind::End, 1, 300.0, 0.0),
    ];
    let receipt = Receipt { evidence: Evidence { steps, events, ..usual() }, ..launched(DENSE, usual()) };
    let path = written(&receipt);
    let (found, code) = answer(&["goodput", &path]);
    let spent = |kind: &str| found["spent"][kind].as_f64().unwrap_or(0.0);
    assert_eq!((code, found["seconds"].as_f64()), (0, Some(200.0)), "{found}");
    let all: f64 = found["spent"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
    assert!((all - 200.0).abs() < 1e-9);
    for (kind, seconds) in [
        ("useful steps", 2.0 * 6.0),
        ("setup", 15.0),
        ("compile and warm-up", 8.0 + 2.0),
        ("checkpoints saved", 6.0),
        ("checkpoints loaded", 8.0),
        ("work redone", 4.0),
        ("down after failures", 100.0),
        ("slow steps", 3.0),
        ("start", 5.0 + 22.0),
        ("not explained", 6.0 + 9.0),
    ] {
        assert!((spent(kind) - seconds).abs() < 1e-9, "{kind}: {found}");
    }
    assert_eq!(found["failures"], 1);
    // Young: √(2 · 6 s · 200 s).
    assert!((found["interval"]["best"].as_f64().unwrap() - 2400f64.sqrt()).abs() < 1e-9);
    let picture = fresh("goodput").with_extension("svg");
    let drawn = typed(&["goodput", &path, "--svg", &picture.display().to_string()]);
    assert_eq!(drawn.code, 0, "{}", drawn.stderr);
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("down after failures: 50.0%") && svg.trim_end().ends_with("</svg>")
    );
    let silent = written(&Receipt { evidence: Evidence::default(), ..receipt });
    let nothing = typed(&["goodput", &silent]);
    assert!(nothing.code == 1 && nothing.stderr.contains("[receipt/no-time]"), "{}", nothing.stderr);
}

#[test]
fn a_receipt_is_diagnosed_by_what_it_shows() {
    let base = launched(DENSE, usual());
    let of = |change: &dyn Fn(&mut Evidence)| {
        let mut receipt = base.clone();
        change(&mut receipt.evidence);
        let path = written(&receipt);
        let ran = run_args(&["diagnose", "--receipt", &path, "--json"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let found: Value = serde_json::from_str(&ran.stdout).unwrap();
        let ids = found["symptoms"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["diagnosis"]["id"].as_str().unwrap_or("").to_string());
        (ids.collect::<Vec<_>>(), run_args(&["diagnose", "--receipt", &path]).stdout)
    };
    assert_eq!(of(&|_| {}).0, [] as [&str; 0]);
    let oom = |e: &mut Evidence| {
        e.events.push(Event {
            step: Some(5),
            rank: Some(3),
            detail: "in backward".to_string(),
            ..event(EventKind::OutOfMemory)
        })
    };
    let (ids, text) = of(&oom);
    assert_eq!(ids, ["device-memory"]);
    assert!(text.contains("out of memory at step 5 on rank 3: in backward (log:1)"), "{text}");
    assert_eq!(
        of(&|e| {
            e.steps.clear();
            e.events.push(event(EventKind::OutOfMemory));
        })
        .0,
        ["startup-peak"]
    );
    let (ids, text) = of(&|e| e.steps[4].loss = Some(f64::NAN));
    assert_eq!(ids, ["not-a-number"]);
    assert!(text.contains("Bisect in this order"), "{text}");
    let failure = |e: &mut Evidence| {
        e.events.push(Event { detail: "NCCL watchdog: collective timed out".to_string(), ..event(EventKind::Failure) })
    };
    assert_eq!(of(&failure).0, ["collective-timeout"]);
    assert_eq!(of(&|e| e.events.push(event(EventKind::AllocationRetry))).0, ["device-memory"]);
    assert_eq!(run_args(&["diagnose"]).code, 2);
}
