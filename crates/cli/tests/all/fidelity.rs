//! `fidelity` as typed.

use crate::common::{json, run};

/// Launches that we wrote and Megatron's own trainer ran on an H200.
#[test]
fn emitted_launches_hold_what_was_measured() {
    let answer = json("fidelity ../../data/truth/emitted_h200.jsonl");
    let summary = &answer["summary"];
    assert_eq!((summary["rows"].as_u64(), summary["modelled"].as_u64()), (Some(7), Some(7)));
    let keys = ["rows", "modelled", "mean_abs_error", "worst_abs_error", "by_kind"];
    assert!(keys.iter().all(|key| summary.get(key).is_some()), "{summary}");
    for (figure, mean, worst) in [("allocated", 0.005, 0.015), ("reserved", 0.02, 0.05)] {
        let reached = ["mean_abs_error", "worst_abs_error"].map(|key| summary[key][figure].as_f64().unwrap());
        assert!(reached[0] <= mean && reached[1] <= worst, "{figure}: {reached:?}");
        for kind in ["dense", "hybrid", "moe"] {
            let reached = &summary["by_kind"][kind]["worst_abs_error"][figure];
            assert!(reached.as_f64().unwrap() <= worst, "{kind} {figure}: {reached}");
        }
    }
    assert_eq!(answer["param_mismatches"], serde_json::json!([]));
    let rows = answer["rows"].as_array().unwrap();
    for key in ["name", "kind", "measured", "predicted", "error", "why_not"] {
        assert!(rows.iter().all(|row| row.get(key).is_some()), "a row lacks `{key}`");
    }
    // The one that found no memory has no figure, and is no failure of ours.
    let refused: Vec<_> = rows.iter().filter(|row| !row["why_not"].is_null()).collect();
    assert_eq!(refused.len(), 1);
    assert!(refused[0]["why_not"].as_str().unwrap().starts_with("refused as the device did"), "{}", refused[0]);
    assert_eq!(refused[0]["modelled"], true);
}

#[test]
fn emitted_launches_are_told_in_eighty_columns() {
    let text = run("fidelity ../../data/truth/emitted_h200.jsonl").stdout;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(
        text.starts_with("7 rows, 7 modelled: memory 7 of 7, step_time 6 of 6\n1 of them ran out of memory"),
        "{text}"
    );
    assert!(text.contains("nam-best-tp2-mbs16: refused as the device did"), "{text}");
    assert!(!text.contains("Not modelled"), "{text}");
}

#[test]
fn steps_are_priced_as_planned_when_asked() {
    let median = |answer: &serde_json::Value| {
        assert_eq!(answer["summary"]["coverage"]["step_time"]["ready"], 1026);
        let groups = answer["summary"]["by_kind"].as_object().unwrap();
        let (_, target) = groups.iter().find(|(group, _)| group.starts_with("pretraining")).unwrap();
        target["median_abs_error"]["step_time"].as_f64().unwrap()
    };
    let as_run = json("fidelity ../../data/truth/published.jsonl --only step_time");
    let as_planned = json("fidelity ../../data/truth/published.jsonl --only step_time --as-planned");
    assert_eq!((&as_run["as_planned"], &as_planned["as_planned"]), (&false.into(), &true.into()));
    assert!(median(&as_run) < 0.065 && (median(&as_planned) - median(&as_run)).abs() < 0.03);
}

/// Regret by source, and every source by the interval that the others make.
#[test]
fn picks_and_intervals_are_judged() {
    let answer = json("fidelity ../../data/truth/published.jsonl --only step_time --leave-one-out");
    let summary = &answer["summary"];
    let regret = summary["regret"].as_array().unwrap();
    let of = |source: &str, without: bool| {
        regret.iter().find(|one| one["source"] == source && one["without_stages"] == without).unwrap()
    };
    assert_eq!(
        (of("nanotron", false)["sweeps"].as_u64(), of("nanotron", true)["sweeps"].as_u64()),
        (Some(20), Some(8))
    );
    assert!(of("nanotron", true)["worst"].as_f64().unwrap() <= of("nanotron", false)["worst"].as_f64().unwrap());
    let left_out = summary["leave_one_out"].as_array().unwrap();
    let rows: u64 = left_out.iter().map(|one| one["rows"].as_u64().unwrap()).sum();
    let undecided: u64 = summary["undecided"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert!(undecided > 0);
    assert_eq!(summary["coverage"]["step_time"]["modelled"], rows + undecided);
    assert!(left_out.iter().all(|one| (0.0..=1.0).contains(&one["inside"].as_f64().unwrap())));
    let text = run("fidelity ../../data/truth/published.jsonl --only step_time --leave-one-out").stdout;
    let regret = ["Regret within sweeps", "nanotron, without stages", "do not say", "checked every collective"];
    for told in regret.into_iter().chain(["source left out", "of 1026 that say enough"]) {
        assert!(text.contains(told), "{told}: {text}");
    }
}

/// The residuals that are compiled in are what the command in their first lines prints.
#[test]
fn residuals_are_written_by_the_command_they_name() {
    let text = run("fidelity ../../data/truth/published.jsonl --only step_time --residuals").stdout;
    let file = include_str!("../../../../data/time/residuals.toml");
    let named = file.lines().find_map(|line| line.strip_prefix("#   ")).unwrap();
    assert_eq!(
        named,
        "shardwright fidelity data/truth/published.jsonl --only step_time --residuals > data/time/residuals.toml"
    );
    let made = cost::interval::Residuals::parse(&text).unwrap();
    let shipped = cost::interval::Residuals::parse(file).unwrap();
    assert_eq!(made.steps.len(), shipped.steps.len(), "stale: run `{named}`");
    for flags in ["--as-planned", "--leave-one-out", "--all"] {
        let refused = run(&format!("fidelity ../../data/truth/published.jsonl --residuals {flags}"));
        assert_eq!(refused.code, 2, "{flags}");
    }
}

/// NAM56R with latent attention, sparse layers and two prediction depths on 8 H200 in bf16: 289
/// TFLOP/s a device, as its authors measured it (DatasunriseOU/cppmega, `docs/production_status.md`, 2026-04-14), and as docs/time.md prints it.
#[test]
fn nam56r_takes_what_its_authors_measured() {
    let job = "fit nam56r --with mla,dsa,mtp --tp 1 --ep 4 --mbs 8 --microbatches 1 --on 8xH200";
    let answer = json(job);
    let rate = answer["step"]["tflops_per_device"].as_f64().unwrap();
    assert!((rate / 289.0 - 1.0).abs() < 0.1, "{rate}");
    let docs = std::fs::read_to_string("../../docs/time.md").unwrap();
    assert!(docs.contains(&format!("says {rate:.0}. In fp8")), "{rate}");
}
