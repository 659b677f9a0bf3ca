//! `plan`, `fit` and `launch` are one job: what `plan` says of its best layout, the commands it prints
//! say again, to the byte and to the microsecond.
//!
//! By default four recipes of different families are searched with a part of the axes pinned; every
//! built-in recipe with nothing pinned takes most of an hour:
//! `cargo test --release -p shardwright --test all agreement -- --ignored`.

use crate::common::{Ran, scratch};
use recipe::import::megatron_args::shell_words;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const CLUSTERS: [&str; 3] = ["8xH200", "64xH100", "512xH100"];

const ENGINES: [&str; 5] = ["megatron", "fsdp2", "torchtitan", "deepspeed", "nanotron"];

/// Recipes of different families, for every day.
const QUICK: [&str; 4] = ["nam56r-mini", "llama3-8b", "mixtral-8x7b", "nemotron-h-8b"];

/// A dense Llama without grouped queries, the only kind that is priced on nanotron.
fn llama_of_whole_heads() -> String {
    let ran = run(&["recipes", "llama3-8b"].map(str::to_string));
    let text = ran.stdout.replace("kv_heads = 8", "kv_heads = 32").replace("name = \"llama3-8b\"", "name = \"whole\"");
    assert!(text.contains("kv_heads = 32") && text.contains("\"whole\""), "{text}");
    scratch("llama of whole heads.toml", &text).to_str().expect("text").to_string()
}

/// Runs the binary on one core: two of them run beside each other.
fn run(words: &[String]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
    let output = command.args(words).env("RAYON_NUM_THREADS", "1").output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code().unwrap_or(-1) }
}

/// Runs a command for its JSON; in words why it gave none.
fn answer(words: &[String]) -> Result<(i32, Value), String> {
    let ran = run(&[words, &["--json".to_string()]].concat());
    let value = serde_json::from_str(&ran.stdout);
    value.map(|value| (ran.code, value)).map_err(|why| format!("{}: {why}\n{}", words.join(" "), ran.stderr))
}

/// The same of a command that must be answered with a yes.
fn yes(words: &[String]) -> Result<Value, String> {
    match answer(words)? {
        (0, value) => Ok(value),
        (code, value) => Err(format!("{}: exit {code}: {}", words.join(" "), value["findings"])),
    }
}

/// A command that a screen prints, as a shell would hand it over, without a directory to write.
fn printed(screen: &str, command: &str) -> Option<Vec<String>> {
    let start = format!("shardwright {command} ");
    let line = screen.lines().map(str::trim).find(|line| line.starts_with(&start))?;
    let mut words: Vec<String> = shell_words(line).into_iter().skip(1).collect();
    if let Some(at) = words.iter().position(|word| word == "--out") {
        words.drain(at..at + 2);
    }
    Some(words)
}

/// What every rank class holds: in all, allocated, reserved, on the host.
fn held(classes: &Value) -> Vec<[Option<u64>; 4]> {
    let keys = ["total_bytes", "allocated_peak_bytes", "reserved_peak_bytes", "host_bytes"];
    classes.as_array().into_iter().flatten().map(|class| keys.map(|key| class[key].as_u64())).collect()
}

/// Why an answer is not the plan's.
fn differs(words: &[String], classes: &Value, step: &Value, best: &Value) -> Option<String> {
    let seconds = |step: &Value| step["seconds"].as_f64().unwrap_or(f64::NAN);
    let (plans, own) = (held(&best["stages"]), held(classes));
    let apart = (seconds(step) - seconds(&best["step"])).abs();
    let is_known = !plans.is_empty() && plans.iter().flatten().all(Option::is_some);
    let agrees = is_known && own == plans && apart <= 1e-6;
    (!agrees).then(|| {
        format!(
            "{}\n  holds {own:?} for {} s; plan says {plans:?}, {} s",
            words.join(" "),
            seconds(step),
            seconds(&best["step"])
        )
    })
}

/// What became of one cell of the grid.
enum Cell {
    /// Nothing is legal, priced or fits, which was said.
    NoPlan,
    /// There is a plan that `launch` does not write, which was said.
    Planned,
    /// There is a plan, and it was launched.
    Launched,
}

/// Plans one cell and does what the plan says.
fn cell(recipe: &str, cluster: &str, engine: &str, pinned: &str) -> Result<Cell, String> {
    let mut plan = ["plan", recipe, "--on", cluster, "--engine", engine].map(str::to_string).to_vec();
    plan.extend(pinned.split_whitespace().map(str::to_string));
    let (code, planned) = answer(&plan)?;
    let text = run(&plan);
    if code != text.code {
        return Err(format!("{}: exit {code} with --json, {} without", plan.join(" "), text.code));
    }
    if code != 0 {
        let is_told = !text.stderr.is_empty() || text.stdout.contains("No layout");
        let refused = matches!(code, 1 | 3) && is_told;
        return if refused { Ok(Cell::NoPlan) } else { Err(format!("{}: exit {code}", plan.join(" "))) };
    }
    let best = &planned["best"];
    let fit = printed(&text.stdout, "fit").ok_or_else(|| format!("{}: no fit", plan.join(" ")))?;
    let fitted = yes(&fit)?;
    if let Some(why) = differs(&fit, &fitted["rank_classes"], &fitted["step"], best) {
        return Err(why);
    }
    let Some(launch) = printed(&text.stdout, "launch") else {
        let is_told = text.stderr.contains(&format!("[{engine}/")) || text.stderr.contains("[launch/");
        return if is_told { Ok(Cell::Planned) } else { Err(format!("{}: no launch, no reason", plan.join(" "))) };
    };
    let launched = yes(&launch)?;
    match differs(&launch, &launched["memory"]["by_stage"], &launched["step"], best) {
        Some(why) => Err(why),
        None => Ok(Cell::Launched),
    }
}

/// Walks recipes × clusters × engines two at a time, with these flags pinned; plans and launches of
/// every engine.
fn walk(recipes: &[String], pinned: fn(&str) -> &'static str) -> BTreeMap<&'static str, (u64, u64)> {
    let cells: Vec<(&String, &str, &'static str)> = recipes
        .iter()
        .flat_map(|recipe| CLUSTERS.iter().flat_map(move |on| ENGINES.iter().map(move |engine| (recipe, *on, *engine))))
        .collect();
    let (next, wrong, counts) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((recipe, on, engine)) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let found = cell(recipe, on, engine, pinned(on));
                    println!("{recipe} {on} {engine}: {:.1} s", start.elapsed().as_secs_f64());
                    let mut counts = counts.lock().unwrap();
                    let (plans, launches): &mut (u64, u64) = counts.entry(*engine).or_default();
                    match found {
                        Ok(Cell::NoPlan) => {}
                        Ok(Cell::Planned) => *plans += 1,
                        Ok(Cell::Launched) => (*plans, *launches) = (*plans + 1, *launches + 1),
                        Err(why) => wrong.lock().unwrap().push(why),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} cells disagree:\n{}", wrong.len(), cells.len(), wrong.join("\n"));
    counts.into_inner().unwrap()
}

/// Holds the plans and launches of every engine to a least number, so that nothing passes by being
/// refused.
fn at_least(counts: &BTreeMap<&'static str, (u64, u64)>, least: [(&'static str, u64, u64); 5]) {
    println!("{counts:?}");
    for (engine, plans, launches) in least {
        let (planned, launched) = counts[engine];
        assert!(planned >= plans && launched >= launches, "{engine}: {planned} planned, {launched} launched");
    }
}

#[test]
fn what_plan_says_its_commands_say_again() {
    let mut recipes = QUICK.map(str::to_string).to_vec();
    recipes.push(llama_of_whole_heads());
    let counts = walk(&recipes, |on| match on {
        "512xH100" => "--optimizer adamw --seq 1024 --mbs 1 --cp 1 --gbs 512",
        _ => "--optimizer adamw --seq 1024 --mbs 1 --cp 1 --gbs 64",
    });
    at_least(
        &counts,
        [("megatron", 15, 15), ("fsdp2", 15, 15), ("torchtitan", 9, 9), ("deepspeed", 12, 12), ("nanotron", 3, 3)],
    );
}

#[test]
#[ignore = "every built-in recipe, nothing pinned: most of an hour"]
fn what_plan_says_its_commands_say_again_for_every_recipe() {
    let mut recipes: Vec<String> = recipe::builtin::RECIPES.iter().map(|(name, _)| name.to_string()).collect();
    recipes.push(llama_of_whole_heads());
    at_least(
        &walk(&recipes, |_| ""),
        [("megatron", 38, 35), ("fsdp2", 21, 21), ("torchtitan", 15, 15), ("deepspeed", 27, 27), ("nanotron", 3, 3)],
    );
}
