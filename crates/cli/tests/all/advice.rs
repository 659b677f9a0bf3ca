//! Advice that commands give one another: one answer from `lanes` and `plan`, one mode everywhere, hints that keep what
//! was typed, and commands that run as they are printed.

use crate::common::{Ran, json, run, run_args};
use recipe::import::megatron_args::shell_words;

/// The text of a screen on one line, as a reader takes it in.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The command that an answer ends with, without the program's name.
fn next(screen: &str) -> Vec<String> {
    let tail = screen.split_once("\nNext").unwrap_or_else(|| panic!("no next command in\n{screen}")).1;
    let line = tail.lines().find_map(|line| line.trim().strip_prefix("shardwright "));
    shell_words(line.unwrap_or_else(|| panic!("no command in\n{screen}")))
}

fn run_words(words: &[String]) -> Ran {
    run_args(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Words that name the same layout, whatever else stands on the line.
fn layout_of(words: &[String]) -> Vec<(String, String)> {
    const FLAGS: [&str; 13] = [
        "--tp",
        "--cp",
        "--pp",
        "--vpp",
        "--ep",
        "--etp",
        "--dp",
        "--zero",
        "--mbs",
        "--seq",
        "--mode",
        "--engine",
        "--recompute",
    ];
    let mut found: Vec<(String, String)> = words
        .windows(2)
        .filter(|pair| FLAGS.contains(&pair[0].as_str()))
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect();
    found.sort();
    found
}

/// The launch that `plan` ends with, where it ends with one.
fn planned_launch(screen: &str) -> Option<Vec<String>> {
    let line = screen.lines().rev().find_map(|line| line.trim().strip_prefix("shardwright launch "))?;
    Some(shell_words(line))
}

/// Recipes and clusters on which both commands are asked.
const JOBS: [(&str, &str); 9] = [
    ("nam56r", "8xH200"),
    ("nam56r", "16xTPUv6e"),
    ("nam56r-mini", "4xRTX-4090"),
    ("llama3-8b", "8xH200"),
    ("llama3-8b", "4xRTX-4090"),
    ("llama3-8b", "8xMI300X"),
    ("llama3-8b", "8xTPU-v6e"),
    ("nemotron-h-8b", "8xH100"),
    ("gpt3-175b", "8xTPU-v6e"),
];

#[test]
fn lanes_and_plan_give_one_answer_and_it_runs_as_printed() {
    let mut num_launched = 0;
    for (recipe, on) in JOBS {
        let job = format!("{recipe} on {on}");
        let advice = run(&format!("lanes --for {recipe} --on {on}"));
        assert_eq!(advice.code, 0, "{job}: {}", advice.stderr);
        let words = next(&advice.stdout);
        let plan = json(&format!("plan {recipe} --on {on}"));
        let best = &plan["best"];
        if words[0] == "launch" {
            let ran = run_words(&words);
            assert_eq!(ran.code, 0, "{words:?}\n{}", ran.stderr);
            num_launched += 1;
        }
        let is_unpriced = plan["findings"][0]["rule"] == "plan/ledger";
        if best.is_null() {
            // A lane without a price may be launched; where nothing fits there is no launch.
            assert!(is_unpriced || words == ["plan", recipe, "--on", on], "{job}: {words:?}");
            continue;
        }
        let head = advice.stdout.lines().next().unwrap();
        let said = head.split_once("mode ").map(|(_, mode)| mode);
        assert_eq!(said, best["layout"]["mode"].as_str(), "{job}");
        let engine = format!("--engine {}", plan["engine"].as_str().unwrap());
        assert!(advice.stdout.lines().nth(2).unwrap().ends_with(&engine), "{job}: {engine}\n{}", advice.stdout);
        let flags: Vec<String> = shell_words(best["flags"].as_str().unwrap());
        assert_eq!(layout_of(&words), layout_of(&flags), "{job}");
    }
    assert!(num_launched >= 6, "{num_launched}");
}

#[test]
fn lanes_ends_with_the_launch_that_plan_ends_with() {
    for (recipe, on) in [("nam56r", "8xH200"), ("llama3-8b", "8xH200"), ("nam56r", "8xMI300X")] {
        let advice = next(&run(&format!("lanes --for {recipe} --on {on}")).stdout);
        let plan = planned_launch(&run(&format!("plan {recipe} --on {on}")).stdout).unwrap();
        assert_eq!(layout_of(&advice), layout_of(&plan), "{recipe} on {on}");
    }
}

#[test]
fn goals_end_in_commands_that_run() {
    for (recipe, on, goal) in [
        ("llama3-8b", "8xH200", "control"),
        ("nam56r", "8xH200", "control"),
        ("llama3-70b", "8xH200", "offload"),
        ("nam56r", "8xH200", "offload"),
        ("llama3-8b", "4xRTX-4090", "offload"),
        ("llama3-8b", "8xTPU-v6e", "control"),
    ] {
        let advice = run(&format!("lanes --for {recipe} --on {on} --goal {goal}"));
        assert_eq!(advice.code, 0, "{recipe} on {on}: {}", advice.stderr);
        let words = next(&advice.stdout);
        let ran = run_words(&words);
        let is_answered = ran.code == 0 || words[0] == "plan" && (ran.code == 3 || ran.stderr.contains("[plan/"));
        assert!(is_answered, "{words:?}: {}\n{}", ran.code, ran.stderr);
    }
}

#[test]
fn the_engine_nobody_typed_has_its_reason() {
    let plan = |job: &str| json(&format!("plan {job}"));
    let reason = |job: &str| plan(job)["why_engine"].as_str().unwrap_or_default().to_string();
    assert!(reason("llama3-8b --on 8xH200").contains("pretraining on NVIDIA GPUs"));
    let small = run("plan llama3-8b --on 4xRTX-4090");
    let said = flat(&small.stdout);
    assert!(said.contains("few devices of little memory") && said.contains("deepspeed"), "{said}");
    assert!(plan("llama3-8b --on 8xH200 --engine fsdp2")["why_engine"].is_null());
    let text = flat(&run("plan llama3-8b --on 8xH200").stdout);
    assert!(text.contains("engine megatron: pretraining on NVIDIA GPUs"), "{text}");
    let tpu = flat(&run("lanes --for llama3-8b --on 8xTPU-v6e").stdout);
    assert!(tpu.contains("lane maxtext") && tpu.contains("unpriced for now"), "{tpu}");
    let adapters = adapted();
    let lora = json(&format!("lanes --for {adapters} --on 8xH100"));
    assert_eq!(lora["recommended"]["lane"]["engine"], "fsdp2", "{lora}");
}

/// A recipe of a small model with adapters.
fn adapted() -> String {
    let text = recipe::builtin::RECIPES.iter().find(|(name, _)| *name == "llama3-8b").unwrap().1;
    let adapters = "\n[adapters]\nrank = 16\nalpha = 32\ntargets = [\"attention.qkv\", \"attention.out\"]\n";
    crate::common::scratch("advice-adapted.toml", &format!("{text}{adapters}")).display().to_string()
}

#[test]
fn check_names_a_sequence_that_satisfies_every_rule() {
    let ran = run("check nam56r --tp 8 --ep 6 --cp 3 --world 48");
    assert!(!ran.stdout.contains("no single seq"), "{}", ran.stdout);
    let line = ran.stdout.lines().find(|line| line.starts_with("every rule about seq")).unwrap_or(&ran.stdout);
    assert!(line.contains("4128"), "{line}");
    let mended = run("check nam56r --tp 8 --ep 6 --cp 3 --world 48 --seq 4128");
    assert!(!mended.stderr.contains("/sequence]") && !mended.stdout.contains("/sequence]"), "{}", mended.stdout);
}

#[test]
fn a_price_without_tokens_is_refused_by_name() {
    for flag in ["--price-per-device-hour 2", "--price 2", "--pue 1.2"] {
        let ran = run(&format!("plan nam56r --on 8xH200 {flag}"));
        assert!(ran.code == 2 && ran.stderr.contains("--tokens"), "{flag}: {} {}", ran.code, ran.stderr);
    }
}

#[test]
fn a_hint_of_another_engine_keeps_what_was_typed() {
    let ran = run("plan mixtral-8x7b --on 8xH200 --engine nanotron --gbs 64 --seq 4k --tokens 1T --price 2.5");
    let hint = flat(&ran.stderr);
    let command = hint.split('`').find(|part| part.starts_with("shardwright plan")).unwrap_or(&hint).to_string();
    for words in
        ["--engine megatron", "--gbs 64", "--seq 4096", "--tokens 1000000000000", "--price-per-device-hour 2.5"]
    {
        assert!(command.contains(words), "{words}: {command}");
    }
    let again = run(command.trim_start_matches("shardwright "));
    assert_eq!(again.code, 0, "{command}\n{}", again.stderr);
    let swept = flat(&run("plan mixtral-8x7b --on 8xH200 --engine nanotron --sequences 2k").stderr);
    assert!(swept.contains("--engine megatron --seq 2048"), "{swept}");
}

#[test]
fn a_hint_about_tpus_keeps_what_was_typed() {
    let said = flat(&run("plan llama3-8b --on 8xTPU-v6e --gbs 64 --seq 4k").stderr);
    let commands: Vec<&str> = said.split('`').filter(|part| part.starts_with("shardwright ")).collect();
    assert_eq!(commands.len(), 2, "{said}");
    for command in commands {
        assert!(command.contains("--gbs 64") && command.contains("--seq 4096"), "{command}");
        let ran = run(command.trim_start_matches("shardwright "));
        assert_eq!(ran.code, 0, "{command}\n{}", ran.stderr);
    }
}

#[test]
fn the_header_says_the_sequence_that_was_typed() {
    for line in
        ["plan llama3-8b --on 8xH200 --seq 4k", "fit llama3-8b --on 8xH200 --seq 4k", "check llama3-8b --seq 4k"]
    {
        let text = run(line).stdout;
        let head = text.lines().find(|line| line.starts_with("llama3-8b")).unwrap_or_else(|| panic!("{text}"));
        assert!(head.ends_with("sequence 4096 (the recipe's is 8192)"), "{line}: {head}");
    }
    let head = run("plan llama3-8b --on 8xH200 --tp 2 --mbs 1").stdout;
    assert!(head.starts_with("llama3-8b") && head.lines().next().unwrap().ends_with("sequence 8192"), "{head}");
}

#[test]
fn an_axis_is_said_with_its_own_degree() {
    let note = |line: &str| -> String {
        let said = flat(&run(line).stderr);
        let found = said.split("note: ").find(|note| note.contains("[placement/cp]"));
        found.unwrap_or_else(|| panic!("{line}: {said}")).to_string()
    };
    let said = note("plan llama3-8b --on 16xH200 --cp 4 --tp 4 --seq 32k --gbs 16");
    assert!(said.starts_with("cp 4 over tp 4 reaches over 16 ranks"), "{said}");
    let said = note("plan llama3-8b --on 16xH200 --cp 16");
    assert!(said.starts_with("cp 16 reaches over 16 ranks"), "{said}");
}

#[test]
fn check_takes_the_mode_that_fit_and_choices_take() {
    let words = "--engine megatron --tp 2 --ep 4 --etp 1";
    let check = json(&format!("check nam56r {words} --world 4"));
    let fit = json(&format!("fit nam56r --on 4xH100 {words}"));
    let choices = json(&format!("choices nam56r --on 4xH100 {words}"));
    assert_eq!((&check["legal"], &choices["legal"]), (&true.into(), &true.into()), "{}", check["findings"]);
    assert_eq!(fit["verdict"], "fits", "{fit}");
    let now = choices["axes"].as_array().unwrap().iter().find(|axis| axis["axis"] == "mode").unwrap();
    for mode in [&check["layout"]["mode"], &fit["layout"]["mode"], &now["now"]] {
        assert_eq!(mode, "nemo_native");
    }
    let said = run(&format!("check nam56r {words} --world 4")).stdout;
    assert!(said.contains("mode = nemo_native: the mode that is pinned to tp 2"), "{said}");
    // With a cluster, and under an engine that runs another mode.
    assert_eq!(json(&format!("check nam56r {words} --on 4xH100"))["legal"], true);
    let native = json("check nam56r --engine fsdp2 --on 8xH200");
    assert_eq!((&native["legal"], &native["layout"]["mode"]), (&true.into(), &"author_dp".into()), "{native}");
    // A split of a typed engine is that engine's.
    let splits = json(&format!("splits nam56r {words} --world 4"));
    assert_eq!(splits["layout"]["mode"], "nemo_native", "{}", splits["layout"]);
}

/// Modes that commands settle on, over engines and degrees.
#[test]
fn commands_settle_on_one_mode() {
    for engine in ["megatron", "fsdp2", "deepspeed", "shardwright"] {
        for tp in ["", "--tp 1", "--tp 2"] {
            let words = format!("nam56r-mini --engine {engine} {tp} --on 8xH200");
            let [check, choices] = ["check", "choices"].map(|command| json(&format!("{command} {words}")));
            assert_eq!(check["legal"], choices["legal"], "{words}");
            let axes = choices["axes"].as_array().unwrap();
            let now = &axes.iter().find(|axis| axis["axis"] == "mode").unwrap()["now"];
            assert_eq!(&check["layout"]["mode"], now, "{words}");
        }
    }
}

#[test]
fn plan_and_fit_say_the_same_of_an_optimizer_without_a_price() {
    let words = "nam56r-mini --on 24xH200 --engine fsdp2 --gbs 24 --seq 4096 --mode nemo_native";
    let plan = run(&format!("plan {words}"));
    let fit = run(&format!("fit {words} --pp 6 --zero 3"));
    assert_eq!((plan.code, fit.code), (1, 1));
    for ran in [&plan, &fit] {
        assert!(
            flat(&ran.stderr).contains("Muon gathers whole matrices, which is not replayed here yet"),
            "{}",
            ran.stderr
        );
    }
    // With an optimizer that has one, both price it.
    let adamw = format!("{words} --optimizer adamw --pp 6 --zero 3");
    assert_eq!((run(&format!("plan {adamw}")).code, run(&format!("fit {adamw}")).code), (0, 0));
}

#[test]
fn an_engine_that_nobody_compares_is_refused_by_name() {
    let ran = run("plan llama3-8b --on 8xH200 --engines fsdp2,fsdp3");
    assert!(ran.code == 1 && ran.stderr.contains("[plan/engines]") && ran.stderr.contains("`fsdp3`"), "{}", ran.stderr);
}
