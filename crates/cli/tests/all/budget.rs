//! A whole run: its page, the smallest fleet that does it, and what it is held to.

use crate::common::{folder, json, run, run_args, shell};
use recipe::import::megatron_args::shell_words;
use serde_json::Value;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The issue's own question, at eighty columns: everything on one page.
#[test]
fn a_run_of_a_large_fleet_is_one_page() {
    let at = folder("budget-page");
    let ran = shell("shardwright plan deepseek-v3 --on 16384xH100 --tokens 15T --price-per-device-hour 2", &at, "80");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines.len() <= 60 && lines.iter().all(|line| line.chars().count() <= 110), "{}", ran.stdout);
    for words in [
        "--tp ",
        "step ",
        "in 8 of 10 such runs",
        "days ",
        "useful steps",
        "set a checkpoint every",
        "cost ",
        "device-hours",
    ] {
        assert!(ran.stdout.contains(words), "{words}:\n{}", ran.stdout);
    }
    let begin = lines.iter().position(|line| line.ends_with(" tokens")).unwrap();
    assert!(lines.len() - begin <= 42, "the run itself");
}

/// What is shown adds up: steps, days, device-hours, energy, cost, shares of the time.
#[test]
fn a_run_adds_up() {
    let line = "plan llama3-8b --on 64xH100 --gbs 512 --tokens 1T --price-per-device-hour 2.5 --pue 1.2";
    let answer = json(line);
    let (run, best) = (&answer["budget"], &answer["best"]);
    let steps = (1e12f64 / (512.0 * 8192.0)).ceil();
    assert_eq!(number(&run["steps"]), steps);
    let seconds = number(&best["step"]["seconds"]);
    let shares: Vec<f64> =
        ["useful", "saved", "redone", "down"].iter().map(|kind| number(&run["goodput"][kind])).collect();
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
    let days = steps * seconds / shares[0] / 86_400.0;
    assert!((number(&run["days"]) / days - 1.0).abs() < 1e-9);
    let hours = 64.0 * 24.0 * days;
    assert!((number(&run["device_hours"]) / hours - 1.0).abs() < 1e-9);
    assert!((number(&run["cost"]) / (2.5 * hours) - 1.0).abs() < 1e-9);
    assert!((number(&run["energy_mwh"]) / (hours * 10_200.0 / 8.0 * 1.2 / 1e6) - 1.0).abs() < 1e-9);
    let interval = &best["step"]["interval"];
    let low = number(&interval["low"]) / seconds * days;
    assert!((number(&run["days_low"]) / low - 1.0).abs() < 1e-9);
    // 8 B parameters: weights, a copy and two moments.
    let bytes = number(&run["checkpoint"]["bytes"]) / 8_030_261_248.0;
    assert!((13.9..14.2).contains(&bytes), "{bytes} bytes a parameter");
    // The page answers with the layout that the screen has.
    assert_eq!(json("plan llama3-8b --on 64xH100 --gbs 512")["best"]["flags"], best["flags"]);
}

/// What failures and storage are said to be decides the interval: more failures, sooner saves; faster storage, sooner too.
#[test]
fn what_is_typed_of_a_fleet_counts() {
    let of = |more: &str| json(&format!("plan llama3-8b --on 64xH100 --gbs 512 --tokens 1T {more}"))["budget"].clone();
    let (usual, often) = (of(""), of("--node-mtbf 2"));
    let every = |run: &Value| number(&run["checkpoint"]["every_steps"]);
    let useful = |run: &Value| number(&run["goodput"]["useful"]);
    assert!(every(&often) < every(&usual) && useful(&often) < useful(&usual));
    let fast = of("--node-mtbf 2 --storage-rate 500");
    assert!(every(&fast) < every(&often) && useful(&fast) > useful(&often));
    assert!(useful(&of("--node-mtbf 2 --restart 60")) > useful(&often));
    let beside = of("--node-mtbf 2 --async-save");
    assert!(number(&beside["checkpoint"]["lag_seconds"]) > 0.0 && useful(&beside) > useful(&often));
}

/// Every smaller fleet, skipped or tried, is searched whole and does not do it.
#[test]
fn the_smallest_fleet_agrees_with_trying_all() {
    for (device, tokens, days) in [("H100", "1T", "30"), ("H200", "400B", "20"), ("A100-40G", "100B", "9")] {
        let asked = format!("--tokens {tokens} --days {days}");
        let answer = json(&format!("plan llama3-8b --on ?x{device} {asked}"));
        let fleet = &answer["fleets"][0];
        let list = |key: &str| fleet[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
        let (skipped, tried) = (list("skipped"), list("tried"));
        assert!(!skipped.is_empty() && !tried.is_empty(), "{fleet}");
        assert!(number(&answer["budget"]["days"]) <= days.parse::<f64>().unwrap(), "{fleet}");
        for size in skipped.iter().chain(&tried) {
            let whole = json(&format!("plan llama3-8b --on {size}x{device} {asked}"));
            let does = whole["budget"]["days"].as_f64().is_some_and(|taken| taken <= days.parse::<f64>().unwrap());
            assert!(!does, "{size}x{device} takes {} days", whole["budget"]["days"]);
        }
        let largest = skipped.iter().chain(&tried).max().unwrap();
        assert!(fleet["devices"].as_u64().unwrap() > *largest);
    }
}

#[test]
fn the_cheapest_device_is_by_price_or_by_count() {
    let line = "plan llama3-8b --on ?xH100,H200,Gaudi-3 --tokens 1T --days 60";
    let devices = |answer: &Value, row: usize| answer["fleets"][row]["devices"].as_u64().unwrap();
    let by_count = json(line);
    let fewest = devices(&by_count, 0).min(devices(&by_count, 1));
    assert!(by_count["on"].as_str().unwrap().starts_with(&format!("{fewest}x")), "{}", by_count["on"]);
    let dear = json(&format!("{line} --price-per-device-hour H100=9,H200=1"));
    assert!(dear["on"].as_str().unwrap().ends_with("xH200"), "{}", dear["on"]);
    let cheap = json(&format!("{line} --price-per-device-hour H100=0.1,H200=9"));
    assert!(cheap["on"].as_str().unwrap().ends_with("xH100"), "{}", cheap["on"]);
    let refused = &cheap["fleets"][2];
    assert!(refused["why_not"].as_str().unwrap().contains("Gaudi-3 is an Intel accelerator"), "{refused}");
}

#[test]
fn how_many_hold_a_model() {
    let answer = json("fit llama3-8b --on ?xH200,A100-40G");
    let rows = answer["fleets"].as_array().unwrap();
    let devices: Vec<u64> = rows.iter().map(|row| row["devices"].as_u64().unwrap()).collect();
    assert!(devices[0] < devices[1], "{devices:?}");
    for row in rows {
        for size in row["tried"].as_array().unwrap() {
            let on = format!("{size}x{}", row["device"].as_str().unwrap());
            let planned = run(&format!("plan llama3-8b --on {on} --offload-optimizer 0"));
            assert_ne!(planned.code, 0, "{on} holds it after all");
        }
    }
    let flags = answer["flags"].as_str().unwrap();
    assert_eq!(run(&format!("fit {flags}")).code, 0, "{flags}");
    assert_eq!(run("fit llama3-8b --on ?xH100 --serve").code, 1);
}

#[test]
fn a_growing_batch_takes_longer_and_its_sizes_divide() {
    let of = |more: &str| json(&format!("plan llama3-8b --on 16xH100 --gbs 256 --tp 1 --tokens 200B {more}"));
    let (flat, grown) = (of(""), of("--ramp 64:64:50B"));
    let sizes: Vec<u64> =
        grown["budget"]["batches"].as_array().unwrap().iter().map(|level| level["gbs"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [64, 128, 192, 256]);
    assert!(number(&grown["budget"]["days"]) > number(&flat["budget"]["days"]));
    assert!(number(&grown["budget"]["steps"]) > number(&flat["budget"]["steps"]));
    let refused = of("--ramp 63:1:50B");
    assert_eq!(refused["findings"][0]["rule"], "plan/ramp", "{refused}");
}

#[test]
fn a_sweep_of_doublings_has_a_line_a_fleet() {
    let answer = json("plan llama3-8b --on 8..48xH200 --tokens 1T");
    let on: Vec<&str> = answer["sweep"].as_array().unwrap().iter().map(|row| row["on"].as_str().unwrap()).collect();
    assert_eq!(on, ["8xH200", "16xH200", "32xH200", "48xH200"]);
    assert!(answer["sweep"].as_array().unwrap().iter().all(|row| row["budget"]["days"].is_number()));
    let shown = run("plan llama3-8b --on 8..48xH200 --tokens 1T").stdout;
    assert_eq!(shown.lines().filter(|line| line.contains("xH200 ")).count(), 4, "{shown}");
}

/// Sizes and numbers that no fleet has end with a finding, quickly.
#[test]
fn hostile_words_are_refused() {
    for line in [
        "plan llama3-8b --on ?",
        "plan llama3-8b --on ?x --tokens 1T --days 1",
        "plan llama3-8b --on 1..99999999999999999999xH100 --tokens 1T",
        "plan llama3-8b --on 8..16777217xH100",
        "plan llama3-8b --on 8xH100+A100",
        "plan llama3-8b --on ?xH100 --tokens 1T --days 0",
        "plan llama3-8b --on 8xH100 --tokens 1e30",
        "plan llama3-8b --on 8xH100 --tokens 1T --price-per-device-hour nan",
        "plan llama3-8b --on 8xH100 --tokens 1T --ramp 1:1:99999999999T",
        "plan llama3-8b --on 8xH100 --tokens 1T --pue 0.5",
        "plan llama3-8b --on 8xH100 --days 3",
    ] {
        let ran = run(line);
        assert!(matches!(ran.code, 1 | 2), "{line}: {}\n{}", ran.code, ran.stderr);
        assert!(!ran.stderr.is_empty(), "{line}");
    }
}

/// A launch that is told tokens saves as often as the plan says, and runs as many steps.
#[test]
fn a_launch_is_told_the_interval() {
    let layout = "llama3-8b --tp 2 --pp 1 --zero 1 --mbs 1 --gbs 512 --recompute full --engine megatron --on 64xH100";
    let budget = "--tokens 1T --node-mtbf 40 --storage-rate 10";
    let plan = json(&format!("plan {layout} {budget}"));
    // The plan's own job: its engine may be given more than the layout.
    let job = plan["best"]["flags"].as_str().unwrap();
    let words = shell_words(&format!("launch {job} {budget} --json"));
    let ran = run_args(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let launched: Value = serde_json::from_str(&ran.stdout).unwrap();
    let argument = |flag: &str| {
        let arguments = launched["arguments"].as_array().unwrap();
        let found = arguments.iter().find(|argument| argument["flag"] == flag);
        found.unwrap_or_else(|| panic!("{flag}: {}", launched["arguments"]))["values"][0].as_str().unwrap().to_string()
    };
    let every = plan["budget"]["checkpoint"]["every_steps"].to_string();
    assert_eq!(argument("--save-interval"), every);
    assert_eq!(argument("--train-iters"), plan["budget"]["steps"].to_string());
    assert!(launched["findings"].as_array().unwrap().iter().any(|finding| finding["rule"] == "launch/budget"));
    let seldom = json(&format!("launch {layout} --tokens 1T --node-mtbf 4000 --storage-rate 10"));
    assert_ne!(seldom["arguments"], launched["arguments"], "the interval hangs on failures");
    let plain = run(&format!("launch {layout} --node-mtbf 40"));
    assert_ne!(plain.code, 0, "without tokens there is no run");
    let unpriced = run("launch llama3-8b --engine maxtext --on 8xTPU-v5e --tokens 1T");
    assert!(unpriced.code == 1 && unpriced.stderr.contains("[launch/budget]"), "{}", unpriced.stderr);
}

/// A report holds the run that its search was asked about.
#[test]
fn a_report_has_the_run() {
    let at = folder("budget-report");
    let line = "shardwright report llama3-8b --on 8xH200 --plan --tokens 100B --price-per-device-hour 2 -o run.html";
    let ran = shell(line, &at, "80");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let html = std::fs::read_to_string(at.join("run.html")).unwrap();
    for words in ["every_steps", "device_hours", "A run of"] {
        assert!(html.contains(words), "{words}");
    }
    let refused = shell("shardwright report llama3-8b --on 8xH200 --tokens 100B -o no.html", &at, "80");
    assert!(refused.code != 0 && refused.stderr.contains("--plan"), "{}", refused.stderr);
}
