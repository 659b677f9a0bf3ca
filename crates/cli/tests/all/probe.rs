//! `probe`: the directory it writes, the smaller world it says, and the program in it as far as a machine without a
//! GPU runs it. With `SHARDWRIGHT_TORCH` naming a Python that has torch, the emitted FSDP2 trainer takes a step.

use crate::common::{ran, run, run_args, scratch};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TINY: &str = "name = \"tiny\"\npattern = \"(AF)\"\ndepth = 2\nhidden = 64\nvocab = 256\ntied = false\nsequence = 32\n\
[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 16\n[mlp]\nffn = 128\nactivation = \"swiglu\"\n";

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

/// Probes into a folder of the test's own.
fn probed(name: &str, line: &str) -> (PathBuf, String) {
    let out = folder(name);
    let mut words: Vec<&str> = line.split_whitespace().collect();
    words.extend(["--out", out.to_str().unwrap()]);
    let ran = run_args(&[&["probe"], words.as_slice()].concat());
    assert_eq!(ran.code, 0, "{line}: {}", ran.stderr);
    (out, ran.stdout)
}

fn plan(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("probe.json")).unwrap()).unwrap()
}

/// Python with a torch of a few lines that sees a GPU, or none.
fn stubbed(name: &str, sees: &str) -> Command {
    let place = folder(&format!("stub-{name}"));
    fs::create_dir_all(&place).unwrap();
    let torch = format!("class cuda:\n    is_available = staticmethod(lambda: {sees})\n");
    fs::write(place.join("torch.py"), torch).unwrap();
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", &place).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn a_directory_is_a_launch_and_what_becomes_a_rank_of_it() {
    let (out, text) = probed("files", "llama3-8b --tp 4 --pp 2 --all-classes --on 8xH200");
    let mut names: Vec<String> =
        fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected = "SHA256SUMS arguments.json cause.py environment.env launch.json launch.sh packages.json packages.py \
                    plan.json probe.json probe.sh recipe.toml shardwright_probe.py";
    assert_eq!(names.join(" "), expected);
    let sums = ran(Command::new("sha256sum").args(["-c", "--quiet", "SHA256SUMS"]).current_dir(&out));
    assert_eq!(sums.code, 0, "{}", sums.stderr);
    assert!(text.contains(&format!("cd {} && ./probe.sh", out.display())), "{text}");
    let plan = plan(&out);
    // A class is a stage here, and what is predicted of it is what `fit` says.
    let fit = run("fit llama3-8b --tp 4 --pp 2 --on 8xH200 --json");
    let fit: Value = serde_json::from_str(&fit.stdout).unwrap();
    let classes = plan["classes"].as_array().unwrap();
    assert_eq!(classes.iter().map(|c| c["rank"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 4]);
    for (class, said) in classes.iter().zip(fit["rank_classes"].as_array().unwrap()) {
        assert_eq!(class["predicted"]["allocated_peak"], said["allocated_peak_bytes"], "{said}");
        let phases: Vec<&str> =
            class["predicted"]["phases"].as_array().unwrap().iter().map(|p| p["phase"].as_str().unwrap()).collect();
        assert_eq!(phases[..6], ["context", "model", "ddp", "optimizer", "fwdbwd0", "opt0"]);
        let seconds = |key: &str| class["predicted"][key].as_f64().unwrap();
        let (kernels, host, step) = (seconds("kernel_seconds"), seconds("host_seconds"), seconds("step_seconds"));
        assert!(kernels > 0.0 && host > 0.0 && step >= kernels, "{kernels} {host} {step}");
    }
    assert_eq!(plan["changes"], serde_json::json!([]));
    // Nothing of a cluster's storage is asked of the machine that probes.
    assert_eq!(plan["environment"], serde_json::json!({ "CUDA_DEVICE_MAX_CONNECTIONS": "1" }));
}

#[test]
fn a_large_world_is_made_smaller_and_the_difference_is_priced() {
    let (out, text) = probed("large", "qwen3-30b-a3b --ep 8 --rank 300 --on 64x8xH200");
    let plan = plan(&out);
    assert_eq!(plan["world"], serde_json::json!({ "asked": 512, "probed": 128 }));
    assert_eq!(plan["dp"], serde_json::json!({ "asked": 512, "probed": 128 }));
    let class = &plan["classes"][0];
    assert_eq!((class["asked_rank"].as_u64(), class["rank"].as_u64()), (Some(300), Some(44)));
    let changes: Vec<&str> = plan["changes"].as_array().unwrap().iter().map(|c| c["what"].as_str().unwrap()).collect();
    assert_eq!(changes, ["dp 512 -> 128, world 512 -> 128", "--moe-router-force-load-balancing"]);
    // What is added to the probe's bytes is what the job asked for holds.
    let asked = run("fit qwen3-30b-a3b --ep 8 --on 64x8xH200 --json");
    let asked: Value = serde_json::from_str(&asked.stdout).unwrap();
    let peak = class["correction"].as_array().unwrap().iter().find(|c| c["what"] == "allocated peak").unwrap();
    let sum = class["predicted"]["allocated_peak"].as_i64().unwrap() + peak["add"].as_i64().unwrap();
    assert_eq!(sum, asked["rank_classes"][0]["allocated_peak_bytes"].as_i64().unwrap());
    let shards = class["correction"].as_array().unwrap().iter().find(|c| c["what"] == "other-optimizer").unwrap();
    assert!(shards["add"].as_i64().unwrap() < -(1 << 30), "{shards}");
    assert!(text.contains("Correction for the smaller world"), "{text}");
    // The launch beside it is of the world that runs.
    let arguments = fs::read_to_string(out.join("arguments.json")).unwrap();
    assert!(arguments.contains("--moe-router-force-load-balancing"));
    let launch: Value = serde_json::from_str(&fs::read_to_string(out.join("launch.json")).unwrap()).unwrap();
    assert_eq!(launch["case"]["layout"]["world"], 128);
}

#[test]
fn stages_that_hold_and_do_the_same_are_one_class() {
    let (out, _) = probed("same", "llama3-8b --pp 4 --microbatches 1 --engine megatron --all-classes --on 4xH200");
    let plan = plan(&out);
    let stands: Vec<&Value> = plan["classes"].as_array().unwrap().iter().map(|class| &class["stands_for"]).collect();
    assert_eq!(serde_json::json!(stands), serde_json::json!([[0], [1, 2], [3]]));
}

#[test]
fn who_cannot_be_probed_is_refused_by_name() {
    let out = folder("refused");
    for (line, rule, says) in [
        ("llama3-8b --engine deepspeed --rank 0 --on 8xH200", "probe/engine", "training script of your own"),
        ("llama3-8b --engine nanotron --rank 0 --on 8xH200", "probe/engine", "ParallelContext"),
        ("llama3-8b --engine maxtext --rank 0 --on 16xTPU-v6e", "probe/engine", "no rank is alone"),
        ("llama3-8b --rank 8 --on 8xH200", "probe/rank", "the job has 8, counted from 0"),
        ("llama3-70b --rank 0 --on 8xH200", "launch/memory", "does not fit"),
    ] {
        let words: Vec<&str> = line.split_whitespace().chain(["--out", out.to_str().unwrap()]).collect();
        let ran = run_args(&[&["probe"], words.as_slice()].concat());
        assert!(ran.code != 0 && ran.stderr.contains(&format!("[{rule}]")), "{line}: {} {}", ran.code, ran.stderr);
        assert!(ran.stderr.contains(says), "{line}: {}", ran.stderr);
        assert!(!out.exists(), "{line}");
    }
    let nobody = run("probe llama3-8b --on 8xH200 --out nowhere");
    assert_eq!(nobody.code, 2);
    assert!(nobody.stderr.contains("--rank <R>|--all-classes"), "{}", nobody.stderr);
}

#[test]
fn a_machine_without_a_gpu_is_told_where_to_go() {
    let (out, _) = probed("no-gpu", "llama3-8b --tp 2 --rank 0 --on 8xH200");
    let mut command = stubbed("no-gpu", "False");
    let ran = ran(command.arg(out.join("shardwright_probe.py")));
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let name = out.file_name().unwrap().to_str().unwrap();
    assert!(ran.stderr.contains("torch sees no GPU") && ran.stderr.contains(&format!("cd {name} && ./probe.sh")));
    assert!(ran.stderr.contains("one H200 and Megatron-LM"), "{}", ran.stderr);
    let script = crate::common::ran(Command::new(out.join("probe.sh")).env("PYTHON", "false"));
    assert_eq!(script.code, 1);
}

#[test]
fn the_engine_is_told_what_the_launch_says_and_what_a_probe_needs() {
    let (out, _) = probed("dry", "qwen3-30b-a3b --ep 8 --rank 3 --steps 4 --on 8xH200");
    let mut command = stubbed("dry", "True");
    let ran = ran(command.arg(out.join("shardwright_probe.py")).args(["--dry", "--class", "0"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let said = &ran.stdout;
    assert!(said.starts_with("RANK=3 WORLD_SIZE=8 LOCAL_RANK=0"), "{said}");
    for word in ["--fake-process-group", "--moe-router-force-load-balancing", "--train-iters 12", "--mock-data"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    for word in ["--save", "--load", "--tensorboard-dir", "--ckpt-format"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
    let lines = fs::read_to_string(out.join("probe-rank3.jsonl")).unwrap();
    let kinds: Vec<Value> = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect();
    assert_eq!((kinds.len(), &kinds[0]["kind"], &kinds[1]["status"]), (2, &"start".into(), &"dry".into()));
    assert!(kinds.iter().all(|line| line["schema"] == "shardwright/hook/1" && line["rank"] == 3));
}

/// What an engine throws is a line with the phase it was in, and no success.
#[test]
fn a_failure_is_a_line_with_its_phase() {
    let (out, _) = probed("fails", "llama3-8b --tp 2 --rank 0 --on 8xH200");
    let mut command = stubbed("fails", "True");
    let ran = ran(command.arg(out.join("shardwright_probe.py")).args(["--class", "0"]));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let lines = fs::read_to_string(out.join("probe-rank0.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let event = lines.iter().find(|line| line["kind"] == "event").unwrap();
    assert_eq!((event["event"].as_str(), event["phase"].as_str()), (Some("failure"), Some("start")));
    assert_eq!(lines.last().unwrap()["status"], "failed");
}

/// The emitted FSDP2 program as rank 1 of 2, on a CPU, where there is a torch.
#[test]
fn a_real_torch_takes_steps() {
    let Ok(python) = std::env::var("SHARDWRIGHT_TORCH") else { return };
    let recipe = scratch("probe-tiny.toml", TINY);
    let line = format!("{} --engine fsdp2 --mbs 1 --rank 1 --steps 2 --on 2xH200", recipe.display());
    let (out, _) = probed("torch", &line);
    let program = out.join("shardwright_probe.py");
    let ran = ran(Command::new(python).arg(program).args(["--device", "cpu", "--class", "0"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines = fs::read_to_string(out.join("probe-rank1.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
    assert_eq!((of("start"), of("step"), of("end")), (1, 2, 1), "{lines:#?}");
    let parameters = lines.iter().find(|line| line["what"] == "parameters").unwrap();
    // Whole tensors by name, each a shard here.
    assert!(parameters["value"].as_str().unwrap().parse::<u64>().unwrap() > 0);
}
