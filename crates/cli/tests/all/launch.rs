//! `launch` and `preflight` as a user types them: a directory to hand on, whole and provable.

use crate::common::{self, json, run, run_args};
use recipe::kinds::attention::Window;
use std::path::PathBuf;
use std::process::Command;

/// A place of this test's own where nothing stands.
fn nowhere(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    path
}

#[test]
fn a_launch_directory_is_whole_proves_itself_and_is_never_overwritten() {
    let out = nowhere("launch it's");
    let words = ["launch", "nam56r", "--on", "8xH200", "--scheduler", "slurm", "--out", out.to_str().unwrap()];
    let ran = run_args(&words);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for name in ["plan.json", "recipe.toml", "arguments.json", "environment.env", "launch.json", "job.sbatch"] {
        assert!(out.join(name).is_file(), "{name}");
    }
    let verify = || Command::new("sha256sum").args(["-c", "--quiet", "SHA256SUMS"]).current_dir(&out).output().unwrap();
    assert!(verify().status.success());
    let again = run_args(&words);
    assert!(again.code == 1 && again.stderr.contains("[launch/out]"), "{}", again.stderr);
    std::fs::write(out.join("launch.sh"), "echo\n").unwrap();
    assert!(!verify().status.success(), "a changed file is told");
    let beside = std::fs::read_dir(out.parent().unwrap()).unwrap();
    assert!(beside.flatten().all(|entry| !entry.file_name().to_string_lossy().ends_with(".tmp")));
}

/// What Megatron is told of a recipe with a window, and the window that its list is read back to.
fn windows_told(name: &str, window: Window) -> (Vec<(String, String)>, Option<Window>) {
    let mut recipe = recipe::builtin::find(name).unwrap();
    recipe.attention.as_mut().unwrap().window = Some(window);
    let file = common::scratch(&format!("window-{name}.toml"), &recipe.to_toml());
    let out = nowhere(&format!("window-{name}"));
    let words = ["launch", file.to_str().unwrap(), "--on", "64xH200", "--engine", "megatron", "--override-memory"];
    let ran = run_args(&[&words[..], &["--out", out.to_str().unwrap()]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let text = std::fs::read_to_string(out.join("arguments.json")).unwrap();
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    let all = told.as_array().or(told["arguments"].as_array()).unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    let flags: Vec<(String, Vec<String>)> = all
        .map(|argument| (text(&argument["flag"]), argument["values"].as_array().unwrap().iter().map(text).collect()))
        .collect();
    let list: Vec<String> = flags
        .iter()
        .map(|(flag, values)| format!("{flag} {}", values.iter().map(|v| format!("'{v}' ")).collect::<String>()))
        .collect();
    let back = recipe::import::megatron_args::import(&list.join(" "), "back");
    let back = back.unwrap_or_else(|findings| panic!("{findings:#?}")).recipe;
    let told =
        flags.into_iter().filter(|(flag, _)| flag.contains("window")).map(|(flag, values)| (flag, values.join(" ")));
    (told.collect(), back.attention.unwrap().window)
}

#[test]
fn megatron_is_told_windows_and_reads_them_back() {
    let every_fourth = Window::sliding(1024, vec![3, 7, 11, 15, 19, 23, 27, 31]);
    let (told, back) = windows_told("llama3-8b", every_fourth.clone());
    assert_eq!(back, Some(every_fourth));
    let said = [("--window-size", "1023,0"), ("--window-attn-skip-freq", "4")];
    assert_eq!(told, said.map(|(flag, value)| (flag.to_string(), value.to_string())));
    // A hybrid stack counts symbols, and its list says nothing where none attends.
    let two = Window::sliding(2048, vec![0, 1]);
    let (told, back) = windows_told("nemotron-h-8b", two.clone());
    assert_eq!(back, Some(two));
    assert!(told[1].1.starts_with("([1]*") && told[1].1.contains("[0]*"), "{told:?}");
    // Chunks have no flag, and a ring has no windows.
    let mut recipe = recipe::builtin::find("llama3-8b").unwrap();
    recipe.attention.as_mut().unwrap().window = Some(Window { chunked: true, ..Window::sliding(1024, vec![]) });
    let file = common::scratch("window-chunks.toml", &recipe.to_toml());
    let line = format!("launch {} --on 8xH200 --engine megatron", file.display());
    let ran = run(&line);
    assert!(ran.code == 1 && ran.stderr.contains("[megatron/unsayable]"), "{}", ran.stderr);
    let ran = run(&format!("{line} --cp 2"));
    assert!(ran.code == 1 && ran.stderr.contains("[megatron/window-cp]"), "{}", ran.stderr);
}

#[test]
fn an_override_of_memory_is_in_the_record() {
    let line = "launch llama3-70b --on 8xH200 --zero 0";
    assert_eq!(run(line).code, 3);
    let record = json(&format!("{line} --override-memory"));
    assert_eq!((&record["memory"]["verdict"], &record["memory"]["overridden"]), (&"does not fit".into(), &true.into()));
}

/// Launches whose memory nobody models, and whether what is counted of them is more than a device.
const UNMODELLED: &[(&str, bool)] = &[
    ("llama3-405b --engine fsdp2 --pp 4 --vpp 2 --schedule interleaved --microbatches 16 --on 8xH200", true),
    ("llama3-8b --engine fsdp2 --pp 4 --vpp 2 --schedule interleaved --microbatches 16 --on 8xH200", false),
    ("llama3-70b --engine maxtext --on 4xTPU-v5e", true),
    ("llama3-8b --engine maxtext --on 16xTPU-v5e", false),
    ("llama3-70b --engine xla-spmd --on 4xTPU-v5e", true),
    ("llama3-405b --engine deepspeed --pp 4 --on 8xH200 --policy {policy}", true),
    ("llama3-8b --engine deepspeed --pp 4 --on 8xH200 --policy {policy}", false),
];

#[test]
fn what_nobody_models_is_launched_by_name_only_and_never_over_the_device() {
    let policy = common::scratch("own-script.toml", "[job]\nscript = \"mine.py\"\n");
    for (line, is_over) in UNMODELLED {
        let line = format!("launch {}", line.replace("{policy}", policy.to_str().unwrap()));
        let refused = run(&line);
        let (code, rule) = if *is_over { (3, "[launch/memory]") } else { (1, "[launch/memory-unknown]") };
        assert_eq!(refused.code, code, "{line}: {}", refused.stderr);
        for words in [rule, "cannot be priced", "of state and inputs", "shows", "--override-memory"] {
            assert!(refused.stderr.contains(words), "{line}: {words}: {}", refused.stderr);
        }
        let went_on = format!("{line} --override-memory");
        let memory = &json(&went_on)["memory"];
        let verdict = if *is_over { "does not fit" } else { "unmodelled" };
        assert_eq!((&memory["verdict"], &memory["overridden"]), (&verdict.into(), &true.into()), "{line}");
        assert!(memory["at_least_bytes"].as_u64().unwrap() > 0 && memory["total_bytes"].is_null(), "{line}");
        let said = run(&went_on);
        let text = said.stdout + &said.stderr;
        assert_eq!(text.matches("cannot be priced").count(), 1, "{line}: {text}");
    }
}

#[test]
fn preflight_does_not_know_the_memory_of_an_engine_without_a_ledger() {
    let policy = common::scratch("unmodelled.toml", &run("preflight --example").stdout);
    for (engine, on) in [("maxtext", "8xH200"), ("maxtext", "8xTPU-v6e"), ("xla-spmd", "8xTPU-v6e")] {
        let line = format!("preflight llama3-8b --on {on} --engine {engine} --policy {}", policy.display());
        let report = json(&line);
        let checks = report["checks"].as_array().unwrap();
        let memory = checks.iter().find(|check| check["rule"] == "preflight/memory-verdict").unwrap();
        assert_eq!(memory["verdict"], "unknown", "{engine}");
    }
    let told = run("launch llama3-8b --engine maxtext --on 8xH200 --precision fp8-delayed");
    assert!(told.code == 1 && told.stderr.contains("[case/format]"), "{}", told.stderr);
}

/// How a printed launch ends that goes on without knowing its memory.
fn launched_by_name(printed: &str) -> i32 {
    let words = printed.split_whitespace().collect::<Vec<_>>().join(" ").replace("shardwright ", "");
    let allowed = if words.contains("--override-memory") { "" } else { " --override-memory" };
    run(&format!("{words}{allowed}")).code
}

#[test]
fn tpus_are_called_tpus_and_get_the_engine_that_runs_there() {
    let lanes = run("lanes --for nam56r --on 16xTPUv6e");
    assert!(lanes.code == 0 && lanes.stdout.contains("lane tpu-pretraining"), "{}", lanes.stdout);
    assert!(!lanes.stdout.to_lowercase().contains("nvidia"), "{}", lanes.stdout);
    let next = lanes.stdout.lines().rev().find(|line| line.contains("shardwright launch")).unwrap();
    assert_eq!(launched_by_name(next), 0, "{next}");
    // Without an engine, launch takes the one of the lane.
    let record = json("launch llama3-8b --on 256xTPU-v5e --scheduler jobset --override-memory");
    assert_eq!(record["engine"], "maxtext");
    let files = record["files"].as_array().unwrap();
    let jobset = files.iter().find(|f| f["path"] == "jobset.yaml").unwrap()["contents"].as_str().unwrap();
    assert!(jobset.contains("gke-tpu-topology: \"16x16\"") && !jobset.contains("nvidia"), "{jobset}");
    // plan says what is missing, in words and in JSON, and what it names works.
    let plan = run("plan llama3-8b --on 8xTPU-v6e");
    assert!(plan.code == 1 && plan.stderr.contains("no ledger replays it"), "{}", plan.stderr);
    let hint = plan.stderr.split('`').find(|part| part.starts_with("shardwright launch")).unwrap();
    assert_eq!(launched_by_name(hint), 0, "{hint}");
    let finding = &json("plan llama3-8b --on 8xTPU-v6e")["findings"][0];
    assert_eq!(finding["rule"], "plan/ledger");
}

#[test]
fn a_word_for_a_kind_of_scheduler_suggests_those_there_are() {
    let said = |word: &str| run(&format!("launch llama3-8b --on 8xH200 --scheduler {word}")).stderr;
    assert!(said("k8s").contains("did you mean `jobset` or `trainjob`?"), "{}", said("k8s"));
    assert!(said("kubernetes").contains("`jobset` or `trainjob`"));
    assert!(said("ray").contains("did you mean `rayjob`?"));
    assert!(said("slurmm").contains("did you mean `slurm`?"));
}

/// Sparse attention needs a package. Where Megatron's fused kernels decline, author_dp has ours, asked for or not.
#[test]
fn a_launch_says_what_it_needs_and_what_will_stop_it() {
    let job = "launch nam56r --with mla,dsa --tp 1 --ep 4 --on 8xH200 --engine megatron --override-memory";
    let own = run(job);
    assert!(own.code == 0 && !own.stderr.contains("launch/seams"), "our modules fill them: {}", own.stderr);
    let bare = run("launch nam56r --engine torchtitan --on 8xH200");
    assert!(bare.code == 1 && bare.stderr.contains("--allow-seams"), "{}", bare.stderr);
    let allowed = run("launch nam56r --engine torchtitan --on 8xH200 --allow-seams --override-memory");
    let said = allowed.stderr.replace("\n  ", " ");
    assert!(allowed.code == 0 && said.contains("stops at start") && said.contains("[launch/seams]"), "{said}");
    assert!(said.contains("recurrent-mixer, mamba3-mixer"), "{said}");
    assert!(own.stdout.contains("fast_hadamard_transform") && !own.stdout.contains("tilelang ("), "{}", own.stdout);
    let fused = run(&format!("{job} --engine-args --dsa-kernel-backend=tilelang"));
    for ran in [&own, &fused] {
        let said = ran.stdout.replace("\n    ", " ");
        assert!(said.contains("filled by shardwright_megatron/sparse.py") && !said.contains("tilelang ("), "{said}");
    }
    let native = run("launch nam56r --mode nemo_native --on 8xH200");
    assert!(native.code == 0 && !native.stderr.contains("launch/seams"), "{}", native.stderr);
    let turned = run("launch deepseek-v3 --ep 32 --on 32xH200 --engine-args --rope-fusion");
    assert!(turned.code == 1 && turned.stderr.contains("only works with YARN RoPE"), "{}", turned.stderr);
}

#[test]
fn seams_are_offered_only_where_they_help() {
    let offers = |line: &str| run(line).stderr.contains("--allow-seams");
    assert!(offers("launch nam56r --engine torchtitan --on 8xH200"));
    assert_eq!(run("launch nam56r --engine torchtitan --on 8xH200 --allow-seams --override-memory").code, 0);
    assert!(!offers("launch nam56r --engine maxtext --on 8xH200"));
    assert!(!offers("launch nam56r --with dsa --on 8xH200"));
}

#[test]
#[cfg(unix)]
fn a_directory_whose_name_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let name = std::ffi::OsString::from_vec(b"launch-\xff".to_vec());
    let out = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let ran = Command::new(env!("CARGO_BIN_EXE_shardwright"))
        .args(["launch", "llama3-8b", "--on", "8xH200", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    assert!(!ran.status.success() && String::from_utf8_lossy(&ran.stderr).contains("[launch/path]"));
    assert!(!out.exists());
}
