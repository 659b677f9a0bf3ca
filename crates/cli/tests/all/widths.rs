//! Widths that leave the fastest kernels: said wherever a layout is looked at, with ways out that are ways out.

use crate::common::{json, run};
use serde_json::Value;

fn about<'a>(answer: &'a Value, rule: &str) -> Vec<&'a Value> {
    answer["findings"].as_array().unwrap().iter().filter(|finding| finding["rule"] == rule).collect()
}

#[test]
fn nam56r_at_tp_2_is_told_of_its_in_proj() {
    let answer = json("check nam56r --tp 2 --mode nemo_native --world 8");
    let [finding] = about(&answer, "tp/aligned").try_into().unwrap();
    let message = finding["message"].as_str().unwrap();
    assert!(message.contains("`mamba.in_proj.weight` (in 17 layers) makes 4124 columns"), "{message}");
    assert_eq!((finding["severity"].as_str(), answer["legal"].as_bool()), (Some("note"), Some(true)));
    assert_eq!(finding["fix"], serde_json::json!({ "key": "tp", "values": [1] }));
    assert_eq!(about(&json("check nam56r --tp 1 --mode nemo_native --world 8"), "tp/aligned"), Vec::<&Value>::new());
    for line in ["fit nam56r --on 8xH200 --tp 2", "plan nam56r --on 8xH200 --tp 2 --mode nemo_native"] {
        let said = run(line).stderr;
        assert!(said.contains("4124 columns") && said.contains("[tp/aligned]"), "{line}: {said}");
        assert!(said.contains("tp may be 1; 48 or 64 mamba-head units would do instead of 56 (dt)"), "{line}: {said}");
    }
}

/// What the page on searching shows is what is said.
#[test]
fn the_page_on_searching_shows_what_is_said() {
    let page = include_str!("../../../../docs/search.md");
    let line = page.lines().find_map(|line| line.strip_prefix("$ shardwright ")).expect("a command");
    let said = run(line).stderr;
    for shown in page.lines().filter(|line| line.starts_with("note: ") || line.starts_with("hint: ")) {
        assert!(said.contains(shown.trim_end_matches('…')), "{shown}\n{said}");
    }
}

/// Every way out of every built-in recipe is one: the degree it names makes the finding go.
#[test]
fn ways_out_hold() {
    let mut tried = 0;
    for recipe in json("recipes")["recipes"].as_array().unwrap() {
        let name = recipe["name"].as_str().unwrap();
        for tp in [2, 4] {
            let answer = json(&format!("check {name} --tp {tp} --world 64"));
            for finding in about(&answer, "tp/aligned") {
                for value in finding["fix"]["values"].as_array().into_iter().flatten() {
                    let key = finding["fix"]["key"].as_str().unwrap();
                    let other = json(&format!("check {name} --{key} {value} --world 64"));
                    let left = about(&other, "tp/aligned");
                    assert!(left.iter().all(|f| f["object"] != finding["object"]), "{name}: {finding}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 0, "no built-in recipe has a width that is off");
}

/// A vocabulary that nobody pads is off too, and padding it is the way out.
#[test]
fn a_vocabulary_is_padded() {
    let path = crate::common::scratch(
        "odd_vocab.json",
        r#"{"model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50257, "max_position_embeddings": 2048,
"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu"}"#,
    );
    let line = format!("check {} --engine fsdp2 --world 1", path.display());
    let [finding] = about(&json(&line), "tp/aligned").try_into().map(|[f]: [&Value; 1]| [f.clone()]).unwrap();
    assert!(finding["hint"].as_str().unwrap().contains("--vocab-multiple 8"), "{finding}");
    assert!(about(&json(&format!("{line} --vocab-multiple 8")), "tp/aligned").is_empty());
}

/// Formats of 8 bits want more than bf16, and the engine's words say so.
#[test]
fn eight_bits_want_more() {
    let answer = json("fit nam56r --on 8xH200 --tp 1 --mode author_dp --precision fp8");
    let found = about(&answer, "precision/aligned");
    assert!(!found.is_empty(), "{found:?}");
    assert!(found[0]["message"].as_str().unwrap().contains("no multiple of the 16"), "{}", found[0]);
    assert!(found[0]["quote"].as_str().unwrap().contains("divisible by 16"), "{}", found[0]);
    assert!(about(&json("fit llama3-8b --on 8xH200 --tp 2 --precision fp8"), "precision/aligned").is_empty());
}

/// What a width costs is what the device's curves say, and never less than nothing.
#[test]
fn what_widths_cost_is_said_beside_the_step() {
    for line in ["fit nam56r --on 8xH200 --tp 2", "plan nam56r --on 8xH200 --tp 2 --mode nemo_native"] {
        let answer = json(line);
        let slower = answer["slower_widths"].as_array().or(answer["best"]["slower_widths"].as_array()).unwrap();
        assert_eq!(slower.len(), 1, "{line}: an H200's curves tell widths apart");
        for one in slower {
            assert!(one["times"].as_f64().unwrap() > 1.0 && one["seconds"].as_f64().unwrap() > 0.0, "{one}");
            assert_eq!(one["next"].as_u64().unwrap() % 8, 0);
        }
    }
    assert_eq!(json("fit llama3-8b --on 8xH200 --tp 2")["slower_widths"], serde_json::json!([]));
}
