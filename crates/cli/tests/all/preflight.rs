//! `preflight` as typed, on the machine the tests run on: only what holds on every machine is
//! asserted of it.

#![cfg(target_os = "linux")]

use crate::common::{folder, json, run, run_args, scratch};
use serde_json::Value;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The checks of a policy by one rule.
fn checks(file: &str, policy: &str, more: &str, rule: &str) -> Vec<Value> {
    let path = scratch(file, policy);
    let answer = json(&format!("preflight --policy {} {more}", path.display()));
    assert_eq!(answer["schema"], "shardwright/1", "{answer}");
    let all = answer["checks"].as_array().unwrap().iter();
    all.filter(|check| check["rule"] == rule).cloned().collect()
}

#[test]
fn a_policy_is_asked_for_and_an_example_given() {
    assert_eq!(run("preflight").code, 2);
    assert_eq!(run("preflight --policy x --on 8xH200").code, 2, "a cluster without a model");
    let example = run("preflight --example");
    assert_eq!(example.code, 0);
    let path = scratch("example.toml", &example.stdout);
    let answer = json(&format!("preflight --policy {}", path.display()));
    assert!(answer["checks"].as_array().unwrap().len() >= 5, "{answer}");
    for check in answer["checks"].as_array().unwrap() {
        let keys: Vec<&String> = check.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["rule", "verdict", "object", "found", "required", "fix"]);
        assert_eq!(check["fix"].is_null(), check["verdict"] == "pass", "{check}");
    }
}

#[test]
fn mistakes_in_a_policy_are_answered_where_they_stand() {
    let path = scratch("mistaken.toml", "[storage]\ncheckpoint = \"/x\"\n");
    let ran = run(&format!("preflight --policy {}", path.display()));
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("did you mean `checkpoints`?") && ran.stderr.contains(":2:1"), "{}", ran.stderr);
}

#[test]
fn the_root_is_on_the_root_volume() {
    let policy = "[storage]\nlogs = \"/no-such-folder-of-shardwright/logs\"\ndata = \"/proc/self\"\n";
    let found = checks("root.toml", policy, "", "preflight/root-volume");
    let verdict = |key: &str| found.iter().find(|check| check["object"] == key).unwrap()["verdict"].clone();
    assert_eq!(verdict("logs"), "violation");
    assert_eq!(verdict("data"), "pass", "/proc is a mount of its own");
    let path = scratch("root.toml", policy);
    let ran = run(&format!("preflight --policy {}", path.display()));
    assert_eq!(ran.code, 1);
    assert!(
        ran.stdout.contains("not fit to launch") && ran.stdout.contains("fix: mount a volume there"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_port_and_a_process_are_named_and_left_alone() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let name = format!("trainer-{}", std::process::id());
    let mut child = Command::new("sleep").arg0(&name).arg("60").spawn().unwrap();
    let policy = format!("[job]\nport = {port}\n[processes]\ntraining = [\"trainer-{}*\"]\n", std::process::id());
    let ports = checks("stale.toml", &policy, "", "preflight/port-in-use");
    let processes = checks("stale.toml", &policy, "", "preflight/stale-process");
    let lives = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(lives, "preflight ends nothing");
    assert_eq!(ports[0]["verdict"], "violation");
    assert!(ports[0]["found"].as_str().unwrap().starts_with(&format!("pid {}", std::process::id())), "{}", ports[0]);
    let stale = processes.iter().find(|check| check["object"] == format!("pid {}", child.id())).expect("our child");
    assert_eq!(stale["found"], format!("{name} 60"));
}

#[test]
fn hostile_names_are_shown_escaped_and_never_run() {
    let root = folder("hostile");
    let odd = root.join(std::ffi::OsStr::from_bytes(b"a\n\x1b[2J$(touch pwned)`touch pwned`'\" \xff"));
    fs::create_dir(&odd).unwrap();
    symlink(&odd, root.join("link")).unwrap();
    let place = root.join("link").to_str().unwrap().to_string();
    let policy = format!("[storage]\nlogs = '{place}'\n[storage.free]\nlogs = \"900 TiB\"\n");
    let path = scratch("hostile.toml", &policy);
    for more in ["", "--all", "--write-probe", "--json"] {
        let mut words = vec!["preflight", "--policy", path.to_str().unwrap()];
        words.extend(more.split_whitespace());
        let ran = run_args(&words);
        assert_eq!(ran.code, 1);
        assert!(ran.stdout.chars().all(|c| c == '\n' || !c.is_control()), "{more}: {:?}", ran.stdout);
    }
    assert_eq!(fs::read_dir(&odd).unwrap().count(), 0, "the probe was removed, and nothing was run");
    assert!(!root.join("pwned").exists() && !PathBuf::from("pwned").exists());
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_folder_that_took_a_file_is_proven_writable() {
    let root = folder("probed");
    let policy = format!("[storage]\nlogs = '{}'\n", root.display());
    let found = |more: &str| {
        let all = checks("probed.toml", &policy, more, "preflight/not-writable");
        all.into_iter().find(|check| check["object"] == "logs").unwrap()["found"].as_str().unwrap().to_string()
    };
    assert!(found("").ends_with("may be written"), "{}", found(""));
    assert!(found("--write-probe").ends_with("took a file"), "{}", found("--write-probe"));
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
}

#[test]
fn the_plans_memory_is_part_of_it_and_may_be_overridden_by_name() {
    let plan = "nam56r --tp 1 --ep 8 --mbs 10 --on 8xH200 --engine megatron";
    let verdict = |more: &str| {
        let found = checks("memory.toml", "", &format!("{plan} {more}"), "preflight/memory-verdict");
        found[0]["verdict"].as_str().unwrap().to_string()
    };
    assert_eq!(verdict(""), "violation");
    assert_eq!(verdict("--override-memory"), "overridden");
    assert_eq!(verdict("--recompute full"), "pass");
}

#[test]
fn the_environment_is_judged_as_the_processes_get_it() {
    let plan = "llama3-8b --tp 2 --on 8xH200 --engine megatron";
    let of = |more: &str| {
        let found = checks("variables.toml", "", &format!("{plan} {more}"), "preflight/env-value");
        found.into_iter().find(|check| check["object"] == "CUDA_DEVICE_MAX_CONNECTIONS").unwrap()
    };
    assert_eq!(of("")["verdict"], "pass", "`launch` sets it");
    let is_set = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").is_ok_and(|value| value == "1");
    assert_eq!(of("--as-is")["verdict"], if is_set { "pass" } else { "violation" });
}

/// A driver's program that leaves a child with its output, or prints without end, is cut off.
#[test]
fn programs_are_bounded() {
    use std::os::unix::fs::PermissionsExt;
    let path = folder("programs");
    let policy = scratch("programs.toml", "[job]\nport = 1\n");
    let program = path.join("nvidia-smi");
    for (script, found) in [
        ("sleep 600 &\necho $! > \"${0%/*}/child\"\n", "nvidia-smi lists no device"),
        ("exec yes\n", "nvidia-smi printed more than 1 MiB"),
    ] {
        fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let search = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
        let start = std::time::Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
        command.args(["preflight", "--all", "--json", "llama3-8b", "--on", "8xH200", "--policy"]).arg(&policy);
        let ran = crate::common::ran(command.env("PATH", search));
        assert!(start.elapsed().as_secs() < 15, "{:?}", start.elapsed());
        assert!(ran.stdout.contains(found), "{found}: {}", ran.stdout);
    }
    let child = fs::read_to_string(path.join("child")).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.trim()));
    assert!(stat.is_err() || stat.is_ok_and(|text| text.contains(") Z")), "{child} still runs");
}

/// A launch needs no policy, and the machine is held to what it would do without one.
#[test]
fn a_job_is_judged_without_a_policy() {
    let ran = run("preflight llama3-8b --on 1xH200");
    assert!(ran.code == 0 || ran.code == 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("[preflight/default-policy]"), "{}", ran.stderr);
    assert!(
        !ran.stdout.contains("preflight/root-volume") && ran.stdout.contains("preflight/not-writable"),
        "{}",
        ran.stdout
    );
    assert_eq!(run("preflight").code, 2, "a policy, or a job");
}
