//! Memory rows of the mission as a reader types them.

use crate::common::{json, run, scratch};
use serde_json::Value;

fn worst(fit: &Value) -> &Value {
    &fit["rank_classes"][fit["worst"].as_u64().unwrap() as usize]
}

fn line(fit: &Value, name: &str) -> u64 {
    let lines = worst(fit)["lines"].as_array().unwrap();
    lines.iter().find(|line| line["line"] == name).map_or(0, |line| line["bytes"].as_u64().unwrap())
}

/// A2: one figure for what no axis divides, in `fit`, `fit --serve` and `splits`.
#[test]
fn replicated_parameters_are_the_same_everywhere() {
    for job in ["nam56r --mode author_dp --ep 8", "llama3-8b --tp 2", "llama3-8b"] {
        let trained = line(&json(&format!("fit {job} --on 8xH200")), "replicated-params");
        let served = json(&format!("fit {job} --on 8xH200 --serve"));
        let served = served["stages"][0]["lines"][0]["bytes"].as_u64().unwrap();
        let splits = json(&format!("splits {job} --world 8"));
        let whole = splits["tensors"].as_array().unwrap().iter().filter(|row| row["split"] == "replicated");
        let elements =
            |row: &Value| row["logical"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).product::<u64>();
        let counted: u64 = whole.map(elements).sum();
        assert_eq!((trained, served), (2 * counted, 2 * counted), "{job}");
    }
    let splits = run("splits nam56r --mode author_dp --ep 8 --world 8");
    assert!(splits.stdout.contains("2.20 M parameters"), "{}", splits.stdout);
    let alone = json("splits llama3-8b");
    let embedding = alone["tensors"].as_array().unwrap().iter().find(|row| row["path"] == "embedding.tokens.weight");
    assert_eq!(embedding.unwrap()["split"], "whole at tp 1, by token");
    assert!(line(&json("fit llama3-8b --on 8xH200"), "tp-params") > 14 << 30);
}

/// A5: the worked figure, from a recipe that ships and a command that its comment prints.
#[test]
fn the_worked_routing_figure_can_be_typed() {
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/routing.toml");
    let job = format!("fit {recipe} --ep 32 --on 32xH200 --routing");
    let text = run(&job);
    assert_eq!(text.code, 0, "{}", text.stderr);
    for words in ["capacity per expert: 77", "32.0 KiB", "2.41 MiB", "4.84 MiB", "expert-inputs"] {
        assert!(text.stdout.contains(words), "lacks `{words}`:\n{}", text.stdout);
    }
    let answer = json(&job);
    let one = &answer["routing"]["of_one_sender"];
    assert_eq!(one["capacity_per_expert"], 77);
    assert_eq!(one["dispatch_counts"]["bytes"], 32 << 10);
    assert_eq!(one["receive"]["bytes"], 2_523_136);
    assert_eq!(one["combine"]["bytes"], 2_523_136);
    assert_eq!(one["total"], 5_079_040);
    assert_eq!(answer["routing"]["held"]["receive"]["bytes"], 32 * 2_523_136);
}

/// A5: scratch and saved inputs are two lines in every engine, under fp8 too.
#[test]
fn every_engine_shows_scratch_apart_from_expert_inputs() {
    for job in [
        "nam56r --mode author_dp --ep 8",
        "nam56r --mode author_dp --ep 8 --precision fp8-tensorwise",
        "nam56r --engine shardwright --ep 8",
        "nam56r --engine fsdp2 --ep 8",
        "qwen3-30b-a3b --engine torchtitan --ep 8",
    ] {
        let fit = json(&format!("fit {job} --on 8xH200"));
        let (scratch, inputs) = (line(&fit, "routing-scratch"), line(&fit, "expert-inputs"));
        assert!(scratch > 0 && inputs > 0, "{job}: {scratch} {inputs}");
        assert!(fit["routing"]["held"]["total"].as_u64().unwrap() > 0, "{job}");
    }
    assert!(json("fit llama3-8b --on 8xH200")["routing"].is_null());
}

/// A6: context and communicators stand in the phases, and so does compiling, of which nothing is known.
#[test]
fn phases_hold_what_lies_outside_and_name_what_nobody_knows() {
    let fit = json("fit llama3-8b --tp 2 --on 8xH200");
    let (class, phases) = (worst(&fit), worst(&fit)["phases"].as_array().unwrap());
    assert_eq!(phases[0]["phase"], "context");
    assert_eq!(phases[0]["device_bytes"], class["outside_bytes"]);
    assert!(class["outside_bytes"].as_u64().unwrap() > 1 << 30);
    let last = phases.iter().filter_map(|phase| phase["device_bytes"].as_u64()).max();
    assert_eq!(last, class["total_bytes"].as_u64());
    let compile = |fit: &Value| {
        let phases = worst(fit)["phases"].as_array().unwrap();
        phases.iter().find(|phase| phase["phase"] == "compile").unwrap()["allocated_peak_bytes"].clone()
    };
    assert!(compile(&fit).is_null());
    assert_eq!(compile(&json("fit llama3-8b --engine deepspeed --on 8xH200")), 0);
    assert_eq!(compile(&json("fit llama3-8b --engine torchtitan --on 8xH200")), 0);
}

/// A6: expandable segments are replayed where they can be, and refused by name where not.
#[test]
fn expandable_segments_are_modelled_or_refused() {
    let words = "--engine-args PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    let basis = |job: &str| {
        let fit = json(job);
        let lines = worst(&fit)["lines"].as_array().unwrap();
        lines.iter().find(|line| line["line"] == "allocator-overhead").unwrap()["basis"].to_string()
    };
    assert!(basis(&format!("fit llama3-8b --on 8xH200 {words}")).contains("expandable segments"));
    assert!(!basis("fit llama3-8b --on 8xH200").contains("expandable segments"));
    let refused = run(&format!("fit llama3-8b --engine fsdp2 --on 8xH200 {words}"));
    assert!(refused.code != 0 && refused.stderr.contains("expandable segments"), "{}", refused.stderr);
}

/// A7: which layer owns which slot.
#[test]
fn serving_shows_the_attention_layer_map() {
    let text = run("fit nam56r --serve --tp 2 --on 8xH200").stdout;
    assert!(text.contains("layer→slot: 0→0, 4→1, 8→2, 12→3"), "{text}");
    let answer = json("fit nam56r --serve --tp 2 --on 8xH200");
    let map = answer["stages"][0]["attention_map"].as_array().unwrap();
    assert_eq!(map.len(), 13);
    assert_eq!((&map[1]["layer"], &map[1]["slot"]), (&4.into(), &1.into()));
}

/// A10: formats of state are priced or refused, and `plan` knows of them too.
#[test]
fn formats_of_moments_are_priced_or_refused() {
    let text = format!("{}\n[precision]\nmoments = \"bf16\"\n", run("recipes llama3-8b").stdout);
    let path = scratch("moments.toml", &text);
    let path = path.to_str().unwrap();
    let state = |job: &str| line(&json(&format!("fit {job} --on 8xH200")), "other-optimizer") as f64;
    assert!((state(path) / state("llama3-8b") - 0.5).abs() < 0.01);
    let refused = run(&format!("fit {path} --engine fsdp2 --on 8xH200"));
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("moments in bf16"), "{}", refused.stderr);
    let plan = run(&format!("plan {path} --tp 1 --pp 1 --cp 1 --mbs 1 --gbs 64 --on 8xH200"));
    assert_eq!(plan.code, 0, "{}{}", plan.stdout, plan.stderr);
}

/// A12: an item that does not hold ends the command with 1.
#[test]
fn a_checklist_with_a_no_exits_1() {
    let sound = run("fit nam56r --mode author_dp --ep 8 --on 8xH200 --checklist");
    assert_eq!((sound.code, sound.stdout.contains("  NO")), (0, false), "{}", sound.stdout);
    let gives_up = run("fit nam56r --mode nemo_native --on 8xH200 --checklist");
    assert_eq!((gives_up.code, gives_up.stdout.contains("  NO")), (1, true), "{}", gives_up.stdout);
    assert_eq!(run("fit nam56r --mode nemo_native --on 8xH200").code, 0);
}

/// D2: the cut of `stages --balance time` runs no slower than the one found by hand.
#[test]
fn stages_of_several_chunks_are_balanced_as_stages() {
    let job = "llama3-8b --pp 4 --vpp 2 --on 16xH200";
    let stages = json(&format!("stages {job} --balance time"));
    let mut starts: Vec<u64> = Vec::new();
    for stage in stages["stages"].as_array().unwrap() {
        starts.extend(stage["chunks"].as_array().unwrap().iter().map(|c| c["first_layer"].as_u64().unwrap()));
    }
    starts.sort_unstable();
    let words = starts[1..].iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let seconds = |cut: &str| json(&format!("fit {job} --boundaries {cut}"))["step"]["seconds"].as_f64().unwrap();
    assert!(seconds(&words) <= seconds("4,8,12,16,21,26,31"), "{words}");
}
