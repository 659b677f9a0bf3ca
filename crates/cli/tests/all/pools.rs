//! Jobs over pools of unlike devices: held to the plain answer where the pools are alike, to the printed line, and to
//! what is refused.

use crate::common::{json, run, scratch};
use serde_json::Value;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A built-in device whose memory somebody else has read, so that pools of it are two.
fn twin(device: &str) -> String {
    let text = run(&format!("hardware {device} --toml")).stdout;
    let text = text.replacen("memory_source = \"", "memory_source = \"a twin: ", 1);
    scratch(&format!("twin-{device}.toml"), &text).display().to_string()
}

/// Two pools of one kind are one cluster: every stage's bytes and the step's seconds are the plain ones.
#[test]
fn pools_of_like_devices_are_one_cluster() {
    let twin = twin("H200");
    for layout in ["--tp 8 --pp 2 --gbs 32", "--tp 4 --cp 2 --pp 2 --gbs 64 --boundaries 13 --recompute full"] {
        let plain = json(&format!("fit llama3-8b --on 2x8xH200 {layout} --levers no"));
        let pooled = json(&format!("fit llama3-8b --on 8xH200+1x8x{twin}@ndr400 {layout}"));
        let [one, two] = [&plain, &pooled].map(|answer| number(&answer["step"]["seconds"]));
        assert!((one / two - 1.0).abs() < 1e-9, "{layout}: {one} and {two}");
        let classes = |answer: &Value| answer["rank_classes"].as_array().unwrap().clone();
        for (one, two) in classes(&plain).iter().zip(classes(&pooled)) {
            assert_eq!(one["total_bytes"], two["total_bytes"], "{layout}");
            assert_eq!(one["headroom_bytes"], two["headroom_bytes"], "{layout}");
        }
    }
}

/// Slower devices get fewer layers, each stage is held to its own memory, and the line that is printed says the same.
#[test]
fn stages_are_cut_by_the_speed_of_their_pools() {
    let answer = json("plan llama3-8b --on 8xH100+8xA100");
    let best = &answer["best"];
    assert_eq!(answer["left_out"], serde_json::json!([]));
    let stages = best["stages"].as_array().unwrap();
    let layers = |device: &str| {
        let own = stages.iter().filter(|stage| stage["device"] == device);
        let counts: Vec<u64> = own.map(|stage| stage["layers"].as_u64().unwrap()).collect();
        counts.iter().sum::<u64>() as f64 / counts.len() as f64
    };
    assert!(layers("H100") > 1.5 * layers("A100"), "{stages:?}");
    assert!(stages.iter().all(|stage| number(&stage["headroom_bytes"]) >= f64::from(1 << 30) * 4.0));
    let shown: Vec<&Value> = stages.iter().map(|stage| &stage["visible_bytes"]).collect();
    assert_ne!(shown.first(), shown.last(), "each stage is held to its own devices");
    let ways = answer["ways"].as_array().unwrap();
    let rate = |on: &str| number(&ways.iter().find(|way| way["on"] == on).unwrap()["tokens_per_second"]);
    let together = number(&ways[0]["tokens_per_second"]);
    assert!(together > rate("8xH100") && together < rate("8xH100") + rate("8xA100"));
    let again = json(&format!("fit {}", best["job"].as_str().unwrap()));
    assert_eq!(again["step"]["seconds"], best["step"]["seconds"]);
    assert_eq!(again["stages"], best["stages"]);
    assert_eq!(again["verdict"], "fits");
}

/// A pool that gains too little is left out, and the answer says what it would have taken.
#[test]
fn a_pool_that_is_not_worth_it_is_left_out() {
    let ran = run("plan llama3-8b --on 64xB200+8xA100-40G");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("Run on 64xB200 alone"), "{}", ran.stdout);
    assert!(ran.stdout.contains("leave 8xA100-40G out: with it a step takes"), "{}", ran.stdout);
}

#[test]
fn what_cannot_lie_on_pools_is_refused_by_name() {
    let refused = |line: &str, rule: &str| {
        let ran = run(line);
        assert!(ran.code != 0 && ran.stderr.contains(&format!("[{rule}]")), "{line}: {}{}", ran.stdout, ran.stderr);
    };
    refused("fit llama3-8b --on 8xH100+8xA100 --tp 8", "pools/replicas");
    refused("fit llama3-8b --on 16xH100+8xA100 --tp 4 --pp 2 --gbs 24", "pools/straddle");
    refused("fit llama3-8b --on 8xH100+8xA100 --pp 2 --engine shardwright", "pools/engine");
    refused("fit llama3-8b --on 8xH100+8xA100 --pp 2 --checklist", "pools/flag");
    refused("plan llama3-8b --on 8xH100+8xMI300X", "pools/makers");
    refused("plan llama3-8b --on 8xTPU-v5e+8xTPU-v6e", "pools/slices");
    refused("plan llama3-8b --on 8xH100+8xA100+8xH200+8xB200", "pools/many");
    refused("plan llama3-8b --on 8xH100+16xH100", "pools/twice");
    refused("plan llama3-8b --on 8xH100+1x4xGB200", "pools/nodes");
    refused("plan llama3-8b --on 8xH100+8xA100 --vpp 2 --schedule interleaved", "pools/schedule");
    refused("plan llama3-8b --on 8xH100+8xA100 --tokens 1T", "pools/flag");
    refused("launch llama3-8b --on 8xH100+8xA100 --pp 2", "hardware/mixed");
    refused("plan llama3-8b --on 8xH100+8xA100 --precision mxfp8", "case/format");
}

/// Engines without a pipeline run on one pool.
#[test]
fn engines_without_stages_run_on_one_pool() {
    let answer = json("plan llama3-8b --on 8xH100+8xA100 --engine fsdp2 --gbs 64");
    assert_eq!(answer["best"]["on"], "8xH100");
    let together = answer["ways"].as_array().unwrap().iter().find(|way| way["pools"].as_array().unwrap().len() == 2);
    assert!(together.unwrap()["why"].as_str().unwrap().contains("fsdp2"), "{together:?}");
}
