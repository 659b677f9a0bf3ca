//! `rehearse` as typed: keys, curves, refusals, and what each fault looks like.

use crate::common::{json, run};
use serde_json::Value;

const SMALL: &str = "--dims hidden=16,vocab=32,depth=12";

/// Every axis of an answer moved what was predicted, and something moved.
fn moves_what_was_predicted(answer: &Value) {
    let rows = answer["traffic"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["predicted_bytes"] == row["moved_bytes"]), "{rows:?}");
    assert!(rows.iter().any(|row| row["moved_bytes"].as_u64().unwrap() > 0), "{rows:?}");
}

#[test]
fn a_split_that_is_right_says_so_in_numbers() {
    let answer = json(&format!("rehearse nam56r --tp 2 --ep 2 --etp 1 --steps 2 {SMALL}"));
    assert_eq!(answer["schema"], "shardwright/1");
    assert_eq!(answer["parity"]["pass"], true);
    for key in ["loss", "gradient", "weight"] {
        assert!(answer["parity"][key].as_f64().unwrap() < 1e-9, "{key}");
    }
    moves_what_was_predicted(&answer);
    let lines = answer["memory"].as_array().unwrap();
    assert_eq!(lines.len(), 2 * 4);
    assert!(lines.iter().all(|l| l["predicted_bytes"] == l["held_bytes"]), "{lines:?}");
    let phases = answer["phases"].as_array().unwrap();
    let names: Vec<&str> = phases[..4].iter().map(|p| p["phase"].as_str().unwrap()).collect();
    assert_eq!((phases.len(), names), (2 * 4, vec!["state", "fwdbwd", "reduce", "opt"]));
    for phase in phases {
        let bytes = |key: &str| phase[key].as_u64().unwrap() as f64;
        let off = bytes("predicted_peak_bytes") / bytes("peak_bytes") - 1.0;
        assert!(off.abs() < 0.05, "{off}: {phase}");
        let is_exact = |l: &Value| l["predicted_bytes"] == l["held_bytes"];
        assert!(phase["lines"].as_array().unwrap().iter().all(is_exact), "{phase}");
    }
    assert_eq!(answer["losses"]["all_ranks"].as_array().unwrap().len(), 2);
    assert!(answer["shrunk"].to_string().contains("\"size\":\"hidden\",\"from\":3584,\"to\":16"));
    assert_eq!(answer["router_load"].as_array().unwrap().len(), 5);
}

#[test]
fn a_text_is_learned_and_replicas_follow_the_same_curve() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/rehearsal.txt");
    let curve = |dp: u64, which: &str| {
        let line = format!("rehearse nam56r-mini --steps 16 --gbs 4 --zero 0 --dp {dp} --text {text} --dims hidden=32");
        let answer = json(&line);
        answer["losses"][which].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let (one, four) = (curve(1, "one_rank"), curve(4, "all_ranks"));
    assert!(one[15] < 0.6 * one[0], "{one:?}");
    assert_eq!(one, four);
}

#[test]
fn faults_show_what_a_user_would_see() {
    let cases = [
        ("die:1@1", "ranks 0-3: rank 1 died", "killed by --inject"),
        ("dtype:2@0", "ranks 0-3: members of", "disagree"),
        ("drop:3@1", "ranks 0-3:", "[comm/deadline]"),
    ];
    for (fault, first, second) in cases {
        let ran = run(&format!(
            "rehearse mixtral-8x7b --tp 2 --dp 2 --etp 1 --steps 2 --deadline 1 --inject {fault} {SMALL}"
        ));
        assert_eq!(ran.code, 1, "{fault}: {}{}", ran.stdout, ran.stderr);
        let words = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(first) && words.contains(second), "{fault}: {}", ran.stdout);
    }
    let skewed = json(&format!("rehearse mixtral-8x7b --ep 2 --steps 1 --inject skew:2 {SMALL}"));
    let load =
        |layer: &Value| layer["tokens"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
    assert!(!skewed["router_load"].as_array().unwrap().is_empty());
    for layer in skewed["router_load"].as_array().unwrap() {
        assert_eq!(load(layer)[0] * load(layer).len() as u64, 2 * load(layer).iter().sum::<u64>());
    }
    let idle = run(&format!("rehearse mixtral-8x7b --ep 2 --steps 1 --inject zero-expert:5 {SMALL}"));
    assert_eq!(idle.code, 0, "{}", idle.stderr);
    assert!(idle.stdout.contains("experts without tokens"), "{}", idle.stdout);
}

/// The flagship with everything its recipe names.
#[test]
fn every_feature_bundle_is_rehearsed() {
    let features = "--with mla --with dsa --with mtp --with ngram_hash --with structure";
    let answer = json(&format!("rehearse nam56r {features} --tp 2 --pp 2 --steps 1 {SMALL}"));
    assert_eq!(answer["parity"]["pass"], true, "{answer}");
    moves_what_was_predicted(&answer);
}

#[test]
fn refusals_name_the_way_out() {
    let many = run("rehearse llama3-8b --dp 128");
    assert_eq!(many.code, 1);
    assert!(many.stderr.contains("[rehearse/ranks]") && many.stderr.contains("--dp 2"), "{}", many.stderr);
    assert_eq!(run("rehearse nam56r --inject burn:1@1").code, 2);
    assert!(run("rehearse nam56r --dims hiden=8").stderr.contains("did you mean `hidden`"));
    if cfg!(not(feature = "mpi")) {
        assert!(run("rehearse nam56r --ranks mpi").stderr.contains("[rehearse/processes]"));
    }
}
