//! From a plan to a run and back: the README's ten commands as printed, and calibrations that help or are refused.

use crate::common::{folder, run_args, shell};
use serde_json::Value;
use std::path::{Path, PathBuf};

const README: &str = include_str!("../../../../README.md");
/// What `probe.sh` wrote on an H200 for the README's job.
const LINES: &str = include_str!("../data/probe-rank0.jsonl");

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/receipts/h200").canonicalize().unwrap()
}

#[test]
fn ten_commands_lead_from_a_plan_to_a_run_and_back() {
    let at = folder("calibrated-ten-commands");
    std::os::unix::fs::symlink(shipped().join("../.."), at.join("data")).unwrap();
    let begin = README.find("Ten commands from a plan to a run and back").expect("the section");
    let block = README[begin..].split("```").nth(1).expect("a block");
    let lines: Vec<&str> = block.lines().skip(1).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 10);
    for line in lines {
        let ran = shell(line, &at, "80");
        if line.contains("probe.sh") {
            // No GPU here: it says so. The lines an H200 wrote for this very job stand in.
            assert_eq!(ran.code, 3, "{line}\n{}{}", ran.stdout, ran.stderr);
            std::fs::write(at.join("probe/probe-rank0.jsonl"), LINES).unwrap();
            continue;
        }
        assert_eq!(ran.code, 0, "{line}\n{}{}", ran.stdout, ran.stderr);
        if line.contains("receipt record") {
            assert!(ran.stdout.contains("a step took 859 ms"), "{}", ran.stdout);
        }
        if line.contains("mine.toml") && line.contains("plan") {
            assert!(ran.stdout.contains("calibrated by"), "{}", ran.stdout);
        }
    }
}

#[test]
fn half_of_the_shipped_receipts_lowers_the_error_on_the_other_half() {
    let shipped = shipped();
    let ran =
        run_args(&["receipt", "calibrate", shipped.to_str().unwrap(), "--device", "H200", "--hold-out", "2", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    for key in ["judged", "held_out"] {
        let error = |when: &str| answer[key][when].as_f64().unwrap();
        let figures = answer[key]["figures"].as_array().unwrap().len();
        assert!(figures > 20 && error("error_after") < error("error_before"), "{key}: {}", answer[key]["error_after"]);
    }
    let page = include_str!("../../../../docs/receipts.md").replace('\n', " ");
    let percent = |when: &str| format!("{:.1}%", 100.0 * answer["held_out"][when].as_f64().unwrap());
    let said = format!("{} off as shipped and {} calibrated", percent("error_before"), percent("error_after"));
    assert!(page.contains(&said), "docs/receipts.md does not say {said}");
    // What nothing was seen of stays, and what cannot be judged is named.
    assert!(answer["kept"].as_array().unwrap().iter().any(|term| term["term"] == "network"));
    assert!(answer["unusable"].as_array().unwrap().iter().any(|one| one["why"].as_str().unwrap().contains("plain")));
}

#[test]
fn receipts_that_say_nothing_or_contradict_each_other_calibrate_nothing() {
    let at = folder("calibrated-contradiction");
    let few = run_args(&["receipt", "calibrate", at.to_str().unwrap(), "--device", "H200"]);
    assert!(few.code == 1 && few.stderr.contains("[receipt/too-few]"), "{}", few.stderr);
    // One job twice, once half as fast and once twice as fast as priced: leaving one out is worse than leaving all.
    let text = std::fs::read_to_string(shipped().join("llama8b-tp2-mbs1.json")).unwrap();
    for (name, factor) in [("a.json", 0.5), ("b.json", 2.0)] {
        let mut receipt: Value = serde_json::from_str(&text).unwrap();
        for key in ["steps", "benches"] {
            for one in receipt["evidence"][key].as_array_mut().unwrap() {
                let seconds = one["seconds"].as_f64().unwrap();
                one["seconds"] = (factor * seconds).into();
            }
        }
        std::fs::write(at.join(name), receipt.to_string()).unwrap();
    }
    let out = at.join("mine.toml");
    let words = ["receipt", "calibrate", at.to_str().unwrap(), "--device", "H200", "-o", out.to_str().unwrap()];
    let ran = run_args(&words);
    assert!(ran.code == 1 && ran.stderr.contains("[receipt/no-better]"), "{}{}", ran.stdout, ran.stderr);
    assert!(!out.exists());
}

/// A calibrated file is a device file: read back, priced with, and calibrated again without growing.
#[test]
fn a_calibrated_device_is_calibrated_again() {
    let at = folder("calibrated-again");
    let (one, two) = (at.join("one.toml"), at.join("two.toml"));
    let shipped = shipped();
    let calibrate = |device: &Path, to: &Path| {
        let words = [
            "receipt",
            "calibrate",
            shipped.to_str().unwrap(),
            "--device",
            device.to_str().unwrap(),
            "-o",
            to.to_str().unwrap(),
        ];
        let ran = run_args(&words);
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    };
    calibrate(Path::new("H200"), &one);
    calibrate(&one, &two);
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(&one).matches("[calibration]").count(), 1);
    assert_eq!(read(&two).matches("[calibration]").count(), 1);
    let on = format!("8x{}", one.display());
    let fit = run_args(&["fit", "llama3-8b", "--tp", "2", "--on", &on]);
    assert!(fit.code == 0 && fit.stdout.contains("calibrated by"), "{}", fit.stderr);
}
