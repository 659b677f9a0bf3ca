//! What `plan` calls fastest, best and nearest, against what it could have said instead: questions that were once
//! answered worse than narrower ones.

use crate::common::{folder, json, run, run_args};
use recipe::import::megatron_args::shell_words;
use serde_json::Value;

/// Seconds of the fastest layout, and how much faster something can be that was not looked at.
fn fastest(line: &str) -> (f64, f64) {
    let plan = json(line);
    let seconds = plan["fastest"]["step"]["seconds"].as_f64();
    let open = plan["proof"]["faster_at_most"].as_f64();
    (seconds.unwrap_or_else(|| panic!("{line}: {}", plan["findings"])), open.unwrap_or(0.0))
}

/// Holds that a question with more to choose from is answered no slower than one with less.
fn no_slower([less, more]: [(&str, (f64, f64)); 2]) {
    let ((narrow, (slower, _)), (wide, (faster, open))) = (less, more);
    assert_eq!(open, 0.0, "`{wide}` is not proved");
    assert!(faster <= slower * (1.0 + 1e-9), "`{wide}` takes {faster}, `{narrow}` {slower}");
}

#[test]
fn less_headroom_is_never_slower() {
    for (question, headrooms) in [
        ("plan qwen3-235b-a22b --on 32xH200 --gbs 512 --seq 2048", &[12, 6, 3][..]),
        ("plan llama3-70b --on 16xH100 --gbs 256", &[2, 1]),
        ("plan nemotron-3-nano-30b-a3b --on 8xH100 --gbs 256 --seq 8192", &[8, 4]),
    ] {
        let lines: Vec<String> = headrooms.iter().map(|headroom| format!("{question} --headroom {headroom}")).collect();
        let asked: Vec<(&str, (f64, f64))> = lines.iter().map(|line| (line.as_str(), fastest(line))).collect();
        asked.windows(2).for_each(|pair| no_slower([pair[0], pair[1]]));
    }
}

#[test]
fn a_pinned_flag_is_never_faster() {
    for (question, pin) in [
        ("plan gpt3-175b --on 64xH100 --engine any --gbs 512 --seq 2048", "--zero 1"),
        ("plan qwen3-235b-a22b --on 24xB200 --gbs 192 --seq 8192", "--recompute none"),
        ("plan llama3-70b --on 8xGB200 --gbs 128 --seq 2048", "--cp 2"),
        ("plan llama3-8b --on 2x8xH100", "--pp 2 --vpp 1 --schedule 1f1b"),
        ("plan qwen3-30b-a3b --on 64xH100 --engine megatron --gbs 1024 --seq 4096", "--vpp 5"),
        ("plan mixtral-8x7b --on 8xH200", "--recompute none"),
    ] {
        let pinned = format!("{question} {pin}");
        no_slower([(&pinned, fastest(&pinned)), (question, fastest(question))]);
    }
}

/// Nothing that stands beside the best is at least as good in time, headroom and simplicity, and better in one.
#[test]
fn nothing_beats_the_best_in_everything() {
    for question in [
        "plan qwen3-30b-a3b --on 64xH100 --engine megatron --gbs 1024 --seq 4096",
        "plan llama3-8b --on 2x8xH100",
        "plan mixtral-8x7b --on 8xH200",
    ] {
        let plan = json(&format!("{question} --top 5"));
        let best = [&plan["best"]["step"]["seconds"], &plan["best"]["headroom_bytes"], &plan["best"]["complexity"]];
        let [seconds, headroom, complexity] = best.map(|value| value.as_f64().unwrap_or_else(|| panic!("{plan}")));
        let replayed = |one: &&Value| one["is_replayed"] == true;
        let beside = plan["equal"].as_array().into_iter().chain(plan["top"].as_array()).flatten();
        for one in beside.filter(|one| one["is_replayed"].is_null() || replayed(one)) {
            let of = |key: &str| one[key].as_f64().unwrap_or_else(|| panic!("no {key} in {one}"));
            let beats = of("seconds") < seconds * (1.0 - 1e-9)
                && of("headroom_bytes") > headroom
                && of("complexity") < complexity;
            assert!(!beats, "{question}: {one}");
        }
        for one in plan["alternatives"].as_array().into_iter().flatten() {
            let (slower, left) = (one["slower"].as_f64().unwrap(), one["headroom_bytes"].as_f64().unwrap());
            let is_simpler_too = slower < -0.02 && left >= headroom;
            assert!(!is_simpler_too, "{question}: {one}");
        }
    }
}

fn missing(line: &str) -> f64 {
    let fit = json(line);
    let left = fit["rank_classes"].as_array().unwrap().iter().map(|class| class["headroom_bytes"].as_f64().unwrap());
    f64::from(4 << 20) * 1024.0 - left.fold(f64::INFINITY, f64::min)
}

#[test]
fn the_nearest_is_no_further_than_a_layout_by_hand() {
    let job = "llama3-8b --on 4xRTX-4090 --engine fsdp2 --gbs 64 --seq 4096";
    let plan = json(&format!("plan {job}"));
    let by_hand = missing(&format!("fit {job} --zero 3 --tp 4 --recompute full --levers no"));
    match plan["best"].is_null() {
        true => assert!(plan["nearest"]["missing_bytes"].as_f64().unwrap() <= by_hand, "{}", plan["nearest"]),
        false => assert_eq!(plan["best"]["verdict"], "fits"),
    }
}

/// Every command that is offered where nothing fits ends in a layout that does.
fn ways_fit(line: &str) -> Vec<String> {
    let plan = json(line);
    let ways: Vec<String> =
        plan["ways"].as_array().into_iter().flatten().map(|way| way["command"].as_str().unwrap().to_string()).collect();
    for way in &ways {
        let words = shell_words(way);
        let ran = run_args(&words.iter().skip(1).map(String::as_str).collect::<Vec<_>>());
        assert_eq!(ran.code, 0, "{way}\n{}", ran.stderr);
        assert!(ran.stdout.contains("\nBest for"), "{way}\n{}", ran.stdout);
    }
    ways
}

#[test]
fn where_nothing_fits_commands_that_do_are_printed() {
    let ways = ways_fit("plan llama3-8b --on 2xRTX-4090");
    assert!(!ways.is_empty());
    let at = folder("adapters-of-70b");
    let path = at.join("lora70b.toml");
    let adapters = r#"targets = ["attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2"]"#;
    let recipe = format!("{}\n[adapters]\nrank = 16\n{adapters}\n", run("recipes llama3-70b").stdout);
    std::fs::write(&path, recipe).unwrap();
    let ways = ways_fit(&format!("plan {} --on 1xH100", path.display()));
    assert!(ways.iter().any(|way| way.contains("base=nf4")), "{ways:?}");
}

#[test]
fn engines_are_compared_side_by_side() {
    for list in ["megatron,torchtitan,fsdp2", "all"] {
        let ran = run(&format!("plan llama3-70b --on 64xH100 --engine {list}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        for engine in ["megatron", "torchtitan", "fsdp2"] {
            let row = ran.stdout.lines().find(|row| row.trim_start().starts_with(engine));
            assert!(row.is_some_and(|row| row.contains("GiB")), "no row of {engine} in\n{}", ran.stdout);
        }
        assert!(ran.stdout.contains("is the fastest that fits"), "{}", ran.stdout);
    }
    let ran = run("plan llama3-8b --on 8xH100 --engine megatron,nothing");
    assert!(ran.code != 0 && ran.stderr.contains("[plan/engines]"), "{}", ran.stderr);
}

#[test]
fn torchtitan_is_planned_compiled() {
    let plan = json("plan llama3-8b --on 64xH100 --engine torchtitan");
    let fastest = plan["fastest"]["flags"].as_str().unwrap_or_default();
    assert!(fastest.contains("compile.enable=true"), "{fastest}");
    let typed = json("plan llama3-8b --on 64xH100 --engine torchtitan --engine-args compile.enable=false");
    let fastest = typed["fastest"]["flags"].as_str().unwrap_or_default();
    assert!(!fastest.contains("compile.enable=true"), "{fastest}");
}

/// What is chosen of the engine's options is in every command that is printed, and `fit` prices the same.
#[test]
fn options_that_were_chosen_are_priced_again_as_printed() {
    let question = "plan qwen3-30b-a3b --on 8xH200";
    let plan = json(question);
    let best = plan["best"]["flags"].as_str().unwrap();
    assert!(best.contains("--engine-args '"), "{best}");
    let words: Vec<String> = ["fit".to_string()].into_iter().chain(shell_words(best)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--levers", "no", "--json"]).collect();
    let fit: Value = serde_json::from_str(&run_args(&words).stdout).unwrap();
    assert_eq!(fit["step"]["seconds"], plan["best"]["step"]["seconds"]);
}

#[test]
fn memory_that_is_not_modelled_is_not_let_through() {
    let directory = folder("unmodelled");
    for (line, code) in [
        ("llama3-405b --engine fsdp2 --pp 4 --vpp 2 --schedule interleaved --microbatches 16 --on 8xH200", 3),
        ("llama3-405b --engine maxtext --on 4xTPU-v5e", 3),
        ("llama3-8b --engine maxtext --on 8xTPU-v6e", 1),
    ] {
        let ran = run(&format!("launch {line} --out {}", directory.join("refused").display()));
        assert_eq!(ran.code, code, "{line}\n{}", ran.stderr);
        assert!(ran.stderr.contains("--override-memory") && ran.stderr.contains("[launch/memory"), "{}", ran.stderr);
    }
}
