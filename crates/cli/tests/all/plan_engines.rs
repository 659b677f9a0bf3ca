//! What `plan --engine E` proposes is what `stages --engine E` cuts and `launch --engine E`
//! writes down, by the commands it prints.

use crate::common::{self, json, run, run_args};

const RECIPES: &[&str] =
    &["llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b", "nemotron-h-8b"];

const ENGINES: &[&str] = &["megatron", "fsdp2", "torchtitan", "deepspeed"];

/// The command of a screen that begins so, in words.
fn printed(screen: &str, command: &str) -> Vec<String> {
    let line = screen.lines().find(|line| line.trim_start().starts_with(&format!("shardwright {command}")));
    let words = line.unwrap_or_else(|| panic!("no {command} in\n{screen}")).split_whitespace().skip(1);
    words.map(str::to_string).take_while(|word| word != "--out").collect()
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
