//! Sizes at their limits through whole commands: an answer or a refusal by name, never a panic, and never
//! "fits" of more than a device has.

use crate::common::{run, scratch};
use serde_json::Value;

fn nam56r(change: (&str, &str)) -> String {
    let text = recipe::builtin::find("nam56r").expect("built in").to_toml();
    assert!(text.contains(change.0), "{text}");
    text.replacen(change.0, change.1, 1)
}

const WIDE: &str = "name = \"wide\"\npattern = \"(AF)\"\ndepth = 32\nhidden = 16777216\nvocab = 1024\n\
    sequence = 4294967296\n[attention]\nheads = 8\nkv_heads = 8\nhead_dim = 64\n[mlp]\nffn = 1024\n";

#[test]
fn room_for_more_tokens_than_there_are_is_no_capacity() {
    for (factor, name) in [("1e12", "cap-1e12.toml"), ("1e17", "cap-1e17.toml"), ("4.000001", "cap-4.toml")] {
        let text = nam56r(("top_k = 4\n", &format!("top_k = 4\ncapacity_factor = {factor}\n")));
        let path = scratch(name, &text).display().to_string();
        for command in ["fit --on 8xH200", "launch --on 8xH200", "plan --on 8xH200", "check", "params", "stages"] {
            let (word, flags) = command.split_once(' ').unwrap_or((command, ""));
            let ran = run(&format!("{word} {path} {flags}"));
            assert_eq!(ran.code, 1, "{command}: {}{}", ran.stdout, ran.stderr);
            assert!(ran.stderr.contains("[moe/capacity]"), "{command}: {}", ran.stderr);
            assert!(ran.stderr.contains("capacity_factor may be up to 4"), "{command}: {}", ran.stderr);
        }
    }
    let all = scratch("cap-all.toml", &nam56r(("top_k = 4\n", "top_k = 4\ncapacity_factor = 4\n")));
    assert_eq!(run(&format!("fit {} --on 8xH200 --ep 8", all.display())).code, 0);
}

#[test]
fn a_product_beyond_counting_is_refused_under_every_engine() {
    let path = scratch("wide.toml", WIDE).display().to_string();
    for engine in ["megatron", "fsdp2", "torchtitan", "deepspeed", "nanotron", "shardwright", "any"] {
        for command in ["fit --on 8xH200", "launch --on 8xH200", "check"] {
            let (word, flags) = command.split_once(' ').unwrap_or((command, ""));
            let ran = run(&format!("{word} {path} {flags} --engine {engine}"));
            assert_eq!(ran.code, 1, "{command} {engine}: {}{}", ran.stdout, ran.stderr);
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert!(said.contains("[layout/bytes]"), "{command} {engine}: {said}");
        }
    }
    let plan = run(&format!("plan {path} --on 8xH200"));
    assert!(plan.code == 1 && plan.stderr.contains("[layout/bytes]"), "{}", plan.stderr);
}

/// What a refusal says is small enough is priced, and does not fit.
#[test]
fn below_the_bound_the_answer_is_the_real_figure() {
    let path = scratch("wide-short.toml", WIDE).display().to_string();
    let refused = run(&format!("fit {path} --on 8xH200"));
    let (_, most) = refused.stderr.split_once("seq may be up to ").expect("a hint");
    let most: String =
        most.chars().take_while(|c| c.is_ascii_digit() || *c == ',').filter(char::is_ascii_digit).collect();
    for engine in ["megatron", "fsdp2", "torchtitan", "deepspeed", "shardwright"] {
        let ran = run(&format!("fit {path} --on 8xH200 --seq {most} --engine {engine} --json"));
        assert_eq!(ran.code, 3, "{engine}: {}", ran.stderr);
        let answer: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let held = answer["rank_classes"][0]["total_bytes"].as_u64().expect("bytes");
        // The inputs of both blocks of every layer, two bytes each, at least.
        let least = most.parse::<u64>().expect("a number") * 16_777_216 * 32 * 2 * 2;
        assert!(held > least, "{engine}: {held} of {least}");
        assert_eq!(answer["verdict"], "does-not-fit");
    }
}
