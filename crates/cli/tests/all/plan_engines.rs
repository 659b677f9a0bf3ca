//! What `plan --engine E` proposes is what `stages --engine E` cuts and `launch --engine E`
//! writes down, by the commands it prints.

use crate::common::{self, json, run, run_args};
use recipe::import::megatron_args::shell_words;

const RECIPES: &[&str] =
    &["llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b", "nemotron-h-8b"];

const ENGINES: &[&str] = &["megatron", "fsdp2", "torchtitan", "deepspeed"];

/// The command of a screen that begins so, in words.
fn printed(screen: &str, command: &str) -> Vec<String> {
    let line = screen.lines().find(|line| line.trim_start().starts_with(&format!("shardwright {command}")));
    let words = shell_words(line.unwrap_or_else(|| panic!("no {command} in\n{screen}")));
    words.into_iter().skip(1).take_while(|word| word != "--out").collect()
}

fn run_words(words: &[String]) -> common::Ran {
    run_args(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn the_best_is_legal_and_can_be_launched() {
    let (mut planned, mut num_launched) = (0, 0);
    for recipe in RECIPES {
        for engine in ENGINES {
            let line = format!(
                "plan {recipe} --on 16xH200 --engine {engine} --optimizer adamw --gbs 64 --mbs 1 --seq 2048 --cp 1"
            );
            let ran = run(&line);
            if ran.code != 0 {
                // A block that torchtitan does not have: no layout is legal, and the rule is named.
                assert!(ran.stderr.contains(&format!("[{engine}/")), "{line}\n{}{}", ran.stdout, ran.stderr);
                continue;
            }
            planned += 1;
            let stages = printed(&ran.stdout, "stages");
            let cut = run_words(&stages);
            assert_eq!(cut.code, 0, "{stages:?}\n{}", cut.stderr);
            if !ran.stdout.contains("shardwright launch") {
                // The engine has no words for a part of the model, whatever the layout: that is said.
                assert!(ran.stderr.contains(&format!("[{engine}/")), "{line}\n{}", ran.stderr);
                continue;
            }
            let launch = printed(&ran.stdout, "launch");
            let launched = run_words(&launch);
            assert_eq!(launched.code, 0, "{launch:?}\n{}", launched.stderr);
            num_launched += 1;
        }
    }
    assert!(planned >= 20, "{planned} of {} were planned", RECIPES.len() * ENGINES.len());
    assert!(num_launched >= 15, "{num_launched} of {planned} were launched");
}

#[test]
fn what_an_engine_needs_a_patch_for_is_said_with_the_plan() {
    let line = "plan mixtral-8x7b --on 16xH200 --engine torchtitan --gbs 64 --mbs 1 --seq 2048 --cp 1";
    let ran = run(line);
    assert!(ran.code == 0 && ran.stderr.contains("warning") && ran.stderr.contains("[torchtitan/model]"));
    assert!(ran.stdout.contains("--allow-seams"));
}

#[test]
fn an_engine_without_a_price_is_refused_by_name() {
    for (line, word) in [
        ("plan llama3-8b --on 8xH200 --engine maxtext", "compiler"),
        ("plan llama3-8b --on 8xTPU-v6e --engine xla-spmd", "compiler"),
        ("plan llama3-8b --on 8xH200 --engine shardwright", "rehearse"),
        ("plan mixtral-8x7b --on 8xH200 --engine nanotron", "a layer other than attention and an MLP"),
        ("plan gpt3-175b --on 64xH100 --engine torchtitan", "learned positions"),
    ] {
        let ran = run(line);
        assert!(ran.code == 1 && ran.stderr.contains("[plan/ledger]") && ran.stderr.contains(word), "{}", ran.stderr);
    }
}

#[test]
fn a_refused_model_is_told_the_engines_that_price_it() {
    // Without a ledger, and without a legal layout.
    for (line, first) in [
        ("plan mixtral-8x7b --on 8xH200 --engine nanotron", "megatron"),
        ("plan nemotron-h-8b --on 8xH200 --engine torchtitan", "megatron"),
    ] {
        let ran = run(line);
        let note = ran.stderr.lines().find(|text| text.starts_with("note: ")).unwrap_or_default();
        assert!(ran.code == 1 && note.contains(&format!("`{first}`")) && note.contains("`fsdp2`"), "{}", ran.stderr);
        let hint = format!("--engine {first}`");
        assert!(ran.stderr.contains("[plan/other-engines]") && ran.stderr.contains(&hint), "{}", ran.stderr);
        let because = json(line)["findings"].to_string();
        assert!(because.contains("plan/other-engines"), "{because}");
    }
    // Where any other engine refuses it too, nothing is promised.
    let ran = run("plan llama3-8b --on 8xTPU-v6e");
    assert!(ran.code == 1 && !ran.stderr.contains("[plan/other-engines]"), "{}", ran.stderr);
}

#[test]
fn state_goes_to_the_host_where_the_engine_has_that() {
    let offload = |engine: &str| {
        json(&format!("plan llama3-8b --on 8xH200 --engine {engine} --offload-optimizer 1 --gbs 64 --mbs 1 --zero 3"))
    };
    assert_eq!(offload("deepspeed")["best"]["layout"]["offload_optimizer"], 1.0);
    let ran = run("plan llama3-8b --on 8xH200 --engine fsdp2 --offload-optimizer 1 --gbs 64 --mbs 1 --zero 3");
    assert!(ran.code == 1 && ran.stderr.contains("[case/state]"), "{}{}", ran.stdout, ran.stderr);
}

/// Documents are not shared out over cp: such layouts would be the fastest, and are no layouts.
#[test]
fn layouts_that_an_option_rules_out_do_not_crowd_out_the_others() {
    let plan = json("plan llama3-8b --on 8xH200 --engine megatron --seq 32k --documents 4k");
    let flags = plan["best"]["flags"].as_str().unwrap_or_default();
    assert!(flags.contains("--tp ") && !flags.contains("--cp "), "{plan}");
    assert!(plan["unpriced"].to_string().contains("megatron/documents"), "{}", plan["unpriced"]);
}

/// Megatron's optimizer config asserts both: "only supported with distributed optimizer", "only supported with adam".
#[test]
fn state_on_the_host_is_offered_where_the_engine_takes_it() {
    let plan = json("plan llama3-8b --on 1xH200");
    let flags = plan["best"]["flags"].as_str().unwrap_or_default();
    assert!(flags.contains("--offload-optimizer 1") && flags.contains("--zero 1"), "{flags}");
    let muon = run("plan nam56r --on 1xH200");
    assert!(muon.code == 0 && !muon.stdout.contains("--offload-optimizer"), "{}{}", muon.stdout, muon.stderr);
    for line in [
        "fit llama3-8b --zero 0 --offload-optimizer 1 --on 1xH200",
        "launch llama3-8b --zero 0 --offload-optimizer 1 --on 1xH200",
        "launch nam56r --mode author_dp --zero 1 --offload-optimizer 1 --on 1xH200",
    ] {
        let ran = run(line);
        let said = (ran.stdout + &ran.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(ran.code == 1 && said.contains("megatron/precision-aware"), "{line}: {}\n{said}", ran.code);
    }
    let pinned = run("plan llama3-8b --zero 0 --offload-optimizer 1 --on 1xH200");
    assert!(pinned.code == 3 && pinned.stdout.contains("megatron/precision-aware"), "{}", pinned.stdout);
}

/// On one machine nothing has to be told a scheduler, and nothing is handed to a cluster.
#[test]
fn one_device_needs_no_scheduler() {
    let plan = run("plan llama3-8b --on 1xH200").stdout;
    assert!(plan.contains("shardwright launch ") && !plan.contains("--scheduler"), "{plan}");
    assert!(plan.contains("`./launch.sh` in it starts the run") && !plan.contains("your cluster"), "{plan}");
    assert!(!plan.contains("nothing is on"), "{plan}");
    let on_two = run("plan llama3-8b --on 2x8xH200 --tp 8 --cp 1 --pp 1 --mbs 1").stdout;
    assert!(on_two.contains("--scheduler slurm") && on_two.contains("your cluster"), "{on_two}");
}

/// 128 Ki tokens a device, and no more than 4 Mi in all.
#[test]
fn the_batch_that_is_assumed_fits_the_machine() {
    for (on, tokens) in [("1xH200", 128 << 10), ("8xH200", 1 << 20), ("64xH200", 4 << 20), ("512xH200", 4 << 20)] {
        let line = format!("plan llama3-8b --on {on} --tp 1 --cp 1 --pp 1 --mbs 1 --zero 1 --recompute full");
        let layout = &json(&line)["best"]["layout"];
        let found = layout["gbs"].as_u64().zip(layout["seq"].as_u64());
        assert_eq!(found.map(|(sequences, length)| sequences * length), Some(tokens), "{line}: {layout}");
    }
}

/// A best layout starts as it is written: one that needs a module of the reader's own is called something else.
#[test]
fn what_needs_a_module_of_ones_own_is_never_the_best() {
    let folder = common::folder("plan-jamba");
    let config = include_str!("../../../../data/truth/configs/Jamba-v0.1.json");
    std::fs::write(folder.join("config.json"), config).unwrap();
    let path = folder.join("config.json").display().to_string();
    for engine in ["megatron", "fsdp2"] {
        let ran =
            run_args(&["plan", &path, "--on", "64xH200", "--engine", engine, "--gbs", "64", "--mbs", "1", "--cp", "1"]);
        let best = ran.stdout.lines().any(|line| line.starts_with("Best "));
        assert!(!best, "{engine}: {}", ran.stdout);
        let said = ran.stdout + &ran.stderr;
        assert!(ran.code == 1 || said.contains("With a module you bring"), "{engine}: {said}");
    }
}

/// Megatron-Core 0.19 asserts against Transformer Engine's loss fusion: neither `plan` offers it nor `launch` writes it.
#[test]
fn a_loss_that_the_engine_switched_off_is_not_emitted() {
    let plan = run("plan llama3-8b --on 8xH200 --tp 1 --cp 1 --pp 1 --mbs 1 --zero 1").stdout;
    assert!(plan.contains("--cross-entropy-loss-fusion") && !plan.contains("cross-entropy-fusion-impl te"), "{plan}");
    let words = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl";
    let launched = |named: &str| {
        let engine_args = format!("{words} {named}");
        run_args(&["launch", "llama3-8b", "--on", "8xH200", "--engine-args", &engine_args])
    };
    let refused = launched("te");
    let said = refused.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(refused.code == 1 && said.contains("[megatron/te-loss]") && said.contains("stability issues"), "{said}");
    let native = launched("native");
    assert!(native.code == 0 && !native.stdout.contains("fusion-impl te"), "{}", native.stderr);
}

/// Beside every figure: seconds, tokens, memory, and the tables made of them.
#[test]
fn what_has_no_price_is_named_beside_every_figure() {
    let beside = "(not priced: --deterministic-mode)";
    let job = ["llama3-8b", "--on", "8xH200", "--tp", "1", "--cp", "1", "--pp", "1", "--mbs", "1", "--zero", "1"];
    let said = |command: &str| {
        let words: Vec<&str> =
            [command].into_iter().chain(job).chain(["--engine-args", "--deterministic-mode"]).collect();
        run_args(&words).stdout
    };
    let plan = said("plan");
    let figures = |line: &&str| {
        let headings = ["Memory of one rank", "Step, on the stage", "One change away", "What megatron can be told"];
        line.contains("tokens/s a device") || line.starts_with("  step ") || headings.iter().any(|h| line.contains(h))
    };
    let lines: Vec<&str> = plan.lines().filter(figures).collect();
    assert!(lines.len() >= 4 && lines.iter().all(|line| line.contains(beside)), "{lines:#?}\n{plan}");
    let fit = said("fit");
    let step: Vec<&str> = fit.lines().filter(|line| line.starts_with("a step takes ")).collect();
    assert!(step.len() == 1 && step[0].contains(beside), "{fit}");
}

/// Cuts are weighed without what is pinned, and whether a layout has a price is asked with it.
#[test]
fn a_pinned_degree_that_no_ledger_replays_is_refused_by_the_ledger() {
    let ran = run("plan qwen3-30b-a3b --engine deepspeed --ep 8 --on 8xH100");
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(ran.stderr.contains("plan/ledger") && ran.stderr.contains("expert parallelism"), "{}", ran.stderr);
}
