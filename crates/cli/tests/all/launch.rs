//! `launch` and `preflight` as a user types them: a directory to hand on, whole and provable.

use crate::common::{self, json, run, run_args};
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

#[test]
fn an_override_of_memory_is_in_the_record() {
    let line = "launch llama3-70b --on 8xH200 --zero 0";
    assert_eq!(run(line).code, 3);
    let record = json(&format!("{line} --override-memory"));
    assert_eq!((&record["memory"]["verdict"], &record["memory"]["overridden"]), (&"does not fit".into(), &true.into()));
}

#[test]
fn an_engine_without_a_ledger_is_unmodelled_and_no_refusal() {
    let policy = common::scratch("unmodelled.toml", &run("preflight --example").stdout);
    for (engine, on) in [("maxtext", "8xH200"), ("maxtext", "8xTPU-v6e"), ("xla-spmd", "8xTPU-v6e")] {
        let record = json(&format!("launch llama3-8b --engine {engine} --on {on}"));
        assert_eq!(record["memory"]["verdict"], "unmodelled", "{engine}");
        let line = format!("preflight llama3-8b --on {on} --engine {engine} --policy {}", policy.display());
        let report = json(&line);
        let checks = report["checks"].as_array().unwrap();
        let memory = checks.iter().find(|check| check["rule"] == "preflight/memory-verdict").unwrap();
        assert_eq!(memory["verdict"], "unknown", "{engine}");
    }
    let told = run("launch llama3-8b --engine maxtext --on 8xH200 --precision fp8-delayed");
    assert!(told.code == 1 && told.stderr.contains("[case/format]"), "{}", told.stderr);
}

#[test]
fn tpus_are_called_tpus_and_get_the_engine_that_runs_there() {
    let lanes = run("lanes --for nam56r --on 16xTPUv6e");
    assert!(lanes.code == 0 && lanes.stdout.contains("lane tpu-pretraining"), "{}", lanes.stdout);
    assert!(!lanes.stdout.to_lowercase().contains("nvidia"), "{}", lanes.stdout);
    let next = lanes.stdout.lines().rev().find(|line| line.contains("shardwright launch")).unwrap();
    assert_eq!(run(next.trim().trim_start_matches("shardwright ")).code, 0, "{next}");
    // Without an engine, launch takes the one of the lane.
    let record = json("launch llama3-8b --on 256xTPU-v5e --scheduler jobset");
    assert_eq!(record["engine"], "maxtext");
    let files = record["files"].as_array().unwrap();
    let jobset = files.iter().find(|f| f["path"] == "jobset.yaml").unwrap()["contents"].as_str().unwrap();
    assert!(jobset.contains("gke-tpu-topology: \"16x16\"") && !jobset.contains("nvidia"), "{jobset}");
    // plan says what is missing, in words and in JSON, and what it names works.
    let plan = run("plan llama3-8b --on 8xTPU-v6e");
    assert!(plan.code == 1 && plan.stderr.contains("no ledger replays it"), "{}", plan.stderr);
    let hint = plan.stderr.split('`').find(|part| part.starts_with("shardwright launch")).unwrap();
    assert_eq!(
        run(&hint.split_whitespace().collect::<Vec<_>>().join(" ").replace("shardwright ", "")).code,
        0,
        "{hint}"
    );
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

#[test]
fn seams_are_offered_only_where_they_help() {
    let offers = |line: &str| run(line).stderr.contains("--allow-seams");
    assert!(offers("launch nam56r --engine torchtitan --on 8xH200"));
    assert_eq!(run("launch nam56r --engine torchtitan --on 8xH200 --allow-seams").code, 0);
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
