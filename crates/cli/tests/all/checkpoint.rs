//! `checkpoint` as typed: saved by a rehearsal under one layout, written again for another, loaded there.

use crate::common::{Ran, run_args};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of a test's own, removed at the end.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Temp {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Temp(path)
    }

    /// Runs a line in which `@` is this folder.
    fn run(&self, line: &str) -> Ran {
        let line = line.replace('@', self.0.to_str().unwrap());
        run_args(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// The same; it must say yes, and no line of it is wider than a terminal but for paths.
    fn yes(&self, line: &str) -> Value {
        let ran = self.run(line);
        assert_eq!(ran.code, 0, "{line}\n{}{}", ran.stdout, ran.stderr);
        let json = self.json(line);
        assert_ne!(json, Value::Null);
        json
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.run(&format!("{line} --json")).stdout).unwrap_or_default()
    }

    /// Rules of a refusal.
    fn no(&self, line: &str) -> Vec<String> {
        let ran = self.run(&format!("{line} --json"));
        assert_eq!(ran.code, 1, "{line}\n{}{}", ran.stdout, ran.stderr);
        let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
        answer["findings"].as_array().unwrap().iter().map(|f| f["rule"].as_str().unwrap().to_string()).collect()
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SMALL: &str = "--dims hidden=16,vocab=32,depth=4 --gbs 4";

fn losses(answer: &Value) -> Vec<u64> {
    let all = answer["losses"]["all_ranks"].as_array().unwrap();
    all.iter().map(|loss| loss.as_f64().unwrap().to_bits()).collect()
}

/// Trained on one layout, written for a second and back for the first, the run goes on bit by bit as if
/// it had never stopped; on the second it goes on as a load of the first checkpoint does there.
#[test]
fn a_run_goes_on_from_what_was_resharded() {
    let temp = Temp::new("goes-on");
    let tp = "rehearse nam56r --tp 2 --dtype f32";
    let whole = temp.json(&format!("{tp} {SMALL} --steps 4"));
    let first = temp.json(&format!("{tp} {SMALL} --steps 2 --save @/runs"));
    assert_eq!(losses(&first), losses(&whole)[..2]);
    assert_eq!(temp.no(&format!("{tp} {SMALL} --steps 2 --save @/runs")), ["checkpoint/exists"]);
    temp.run("checkpoint reshard @/runs/step-2 --out @/pp --pp 2");
    temp.run("checkpoint reshard @/pp --out @/dcp --format dcp --tp 2 --pp 2");
    temp.run("checkpoint reshard @/dcp --out @/back --format shardwright --tp 2");
    let back = temp.json(&format!("{tp} --steps 2 --load @/back"));
    assert_eq!(losses(&back), losses(&whole)[2..]);
    assert_eq!((&back["first_step"], &back["seed"]), (&2.into(), &whole["seed"]));
    let pp = "rehearse nam56r --pp 2 --dtype f32 --steps 2";
    let (direct, resharded) =
        (temp.json(&format!("{pp} --load @/runs/step-2")), temp.json(&format!("{pp} --load @/pp")));
    assert_eq!(direct["parity"]["pass"], true);
    assert_eq!(losses(&direct), losses(&resharded));
}

/// Side embeddings belong to a stage. When depth is cut elsewhere they move with it, moments included, and
/// stay loadable.
#[test]
fn side_embeddings_follow_their_stage() {
    let temp = Temp::new("sides");
    let text = temp.run("recipes nam56r").stdout;
    assert!(text.contains("scales = 2\n"));
    fs::write(temp.0.join("n.toml"), text.replace("scales = 2\n", "scales = 2\nstage = \"last\"\n")).unwrap();
    let model = "rehearse @/n.toml --with ngram_hash,structure --dtype f64";
    temp.json(&format!("{model} {SMALL} --steps 1 --save @/runs"));
    assert_eq!(temp.json("checkpoint reshard @/runs/step-1 --out @/pp2 --pp 2")["world"], 2);
    let files = |path: &str, feature: &str| -> Vec<String> {
        let answer = temp.json(&format!("checkpoint inspect {path}"));
        let tensors = answer["tensors"].as_object().unwrap().iter().filter(|(key, _)| key.contains(feature));
        let pieces: Vec<Value> = tensors.flat_map(|(_, t)| t["pieces"].as_array().unwrap().clone()).collect();
        assert!(pieces.len() >= 3, "tables and two moments: {pieces:?}");
        let files: BTreeSet<&str> = pieces.iter().map(|p| p["file"].as_str().unwrap()).collect();
        files.into_iter().map(str::to_string).collect()
    };
    for (path, feature, file) in [
        ("@/runs/step-1", "ngram", "rank-00000.safetensors"),
        ("@/runs/step-1", "structure", "rank-00000.safetensors"),
        ("@/pp2", "ngram", "rank-00000.safetensors"),
        ("@/pp2", "structure", "rank-00001.safetensors"),
    ] {
        assert_eq!(files(path, feature), [file], "{feature} in {path}");
    }
    for (path, pp) in [("@/pp2", 2), ("@/pp2", 1), ("@/runs/step-1", 2)] {
        let answer = temp.json(&format!("{model} --pp {pp} --steps 1 --load {path}"));
        assert_eq!(answer["parity"]["pass"], true, "{path} under pp {pp}: {answer:#}");
    }
    assert_eq!(temp.no("rehearse @/n.toml --dtype f64 --steps 1 --load @/pp2"), ["checkpoint/recipe"]);
}

#[test]
fn another_mode_or_recipe_is_refused_by_name() {
    let temp = Temp::new("modes");
    temp.json(&format!("rehearse nam56r --mode author_dp {SMALL} --steps 1 --save @/runs"));
    let load = "--steps 1 --load @/runs/step-1";
    assert_eq!(temp.json(&format!("rehearse nam56r --mode author_dp {load}"))["parity"]["pass"], true);
    assert_eq!(temp.no(&format!("rehearse nam56r --mode nemo_native {load}")), ["checkpoint/mode"]);
    assert_eq!(temp.no(&format!("rehearse llama3-8b {load}")), ["checkpoint/mode"]);
    assert_eq!(temp.no(&format!("rehearse nam56r --mode author_dp --gbs 8 {load}")), ["rehearse/position"]);
    // The text of the recipe it holds verifies it; the model at full size does not.
    let recipe = temp.run("checkpoint inspect @/runs/step-1 --recipe");
    fs::write(temp.0.join("small.toml"), recipe.stdout).unwrap();
    let verify = "checkpoint verify @/runs/step-1 --against";
    assert_eq!(temp.yes(&format!("{verify} @/small.toml --mode author_dp"))["whole"], true);
    assert_eq!(temp.no(&format!("{verify} @/small.toml")), ["checkpoint/mode"]);
    let other = temp.no(&format!("{verify} nam56r --mode author_dp"));
    assert!(other.contains(&"checkpoint/recipe".to_string()) && other.contains(&"checkpoint/tensors".to_string()));
    assert_eq!(temp.no("checkpoint reshard @/runs/step-1 --out @/x --mode nemo_native"), ["checkpoint/mode"]);
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/checkpoints").join(name);
    path.canonicalize().unwrap().to_str().unwrap().to_string()
}

#[test]
fn what_torch_wrote_is_shown_verified_and_refused() {
    let temp = Temp::new("torch");
    let dcp = fixture("dcp");
    let shown = temp.yes(&format!("checkpoint inspect {dcp}"));
    assert_eq!((&shown["format"], &shown["step"]), (&"dcp".into(), &10.into()));
    assert_eq!(shown["tensors"]["model.both"]["cut"], "2 × 2");
    let text = temp.run(&format!("checkpoint inspect {dcp}")).stdout;
    let plain = |line: &str| line.replace("\u{1b}[1m", "").replace("\u{1b}[2m", "").replace("\u{1b}[0m", "");
    let wide = text.lines().map(plain).find(|line| line.chars().count() > 80 && !line.contains(&dcp));
    assert_eq!(wide, None);
    assert!(text.contains("run.note") && text.contains("'as it is'"));
    temp.yes(&format!("checkpoint verify {dcp}"));
    assert_eq!(temp.no(&format!("checkpoint verify {dcp} --tp 2")), ["checkpoint/layout"]);
    assert_eq!(temp.no(&format!("checkpoint reshard {dcp} --out @/x --tp 2")), ["checkpoint/layout"]);
    assert_eq!(temp.no(&format!("checkpoint reshard {dcp} --out @/x --of llama3-8b --tp 2"))[0], "checkpoint/tensors");
    assert_eq!(temp.no(&format!("checkpoint inspect {dcp} --recipe")), ["checkpoint/recipe"]);
    assert!(!temp.0.join("x").exists());
    let copied = temp.json(&format!("checkpoint reshard {dcp} --out @/two --world 2"));
    assert_eq!(copied["files"], 2);
    assert_eq!(temp.no(&format!("checkpoint reshard {dcp} --out @/two --world 2")), ["checkpoint/exists"]);
    assert_eq!(temp.no("checkpoint inspect @"), ["checkpoint/format"]);
}

/// A tensor far larger than the memory the process may have.
#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_the_checkpoint() {
    use std::io::Write;
    let temp = Temp::new("constant");
    let rows = 192u64 << 10;
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{rows},256],"data_offsets":[0,{}]}}}}"#, rows * 1024);
    let mut file = fs::File::create(temp.0.join("a.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    // The data is a hole of 192 MiB: zeros that take no room.
    file.set_len(8 + header.len() as u64 + rows * 1024).unwrap();
    let limited = |kib: u64, words: &str| {
        let line = format!("ulimit -v {kib}; exec '{}' {words}", env!("CARGO_BIN_EXE_shardwright"));
        std::process::Command::new("sh").args(["-c", &line]).current_dir(&temp.0).output().unwrap()
    };
    let ran = limited(128 << 10, "checkpoint reshard a.safetensors --out out --world 3 --format dcp --json");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let answer: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(answer["bytes"], rows * 1024);
    assert_eq!(answer["largest_buffer_bytes"], 4 << 20);
    assert!(!limited(1 << 10, "recipes").status.success(), "the limit is one");
}
