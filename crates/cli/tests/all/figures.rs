//! Figures that cannot be negative are not, nothing is NaN or minus zero, and a hint that asks for less of
//! something names something there is more than the least of: over drawn recipes, layouts, engines and clusters.

use crate::common::{Ran, run};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Keys that say by how much something falls short, or differs.
const SIGNED: &[&str] = &["headroom_bytes", "delta_bytes", "error", "relative", "slower"];

/// Every number of an answer by the key it stands under.
fn numbers<'a>(value: &'a Value, key: &'a str, out: &mut Vec<(&'a str, &'a serde_json::Number)>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| numbers(value, key, out)),
        Value::Array(list) => list.iter().for_each(|value| numbers(value, key, out)),
        Value::Number(number) => out.push((key, number)),
        _ => {}
    }
}

fn texts<'a>(value: &'a Value, key: &str, out: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            out.extend(map.get(key).and_then(Value::as_str));
            map.values().for_each(|value| texts(value, key, out));
        }
        Value::Array(list) => list.iter().for_each(|value| texts(value, key, out)),
        _ => {}
    }
}

/// What a hint asks for less of: the words behind `less`, `lower` and `fewer`, as far as they are flags.
fn asked_less(hint: &str) -> Vec<String> {
    const FLAGS: &[&str] = &["tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs", "headroom", "zero"];
    let words: Vec<String> =
        hint.split_whitespace().map(|word| word.trim_matches([',', '.', ';', ':', '`', '-']).to_string()).collect();
    let mut found = Vec::new();
    for (at, _) in words.iter().enumerate().filter(|(_, word)| ["less", "lower", "fewer"].contains(&word.as_str())) {
        let rest = words[at + 1..].iter().filter(|word| *word != "or" && *word != "and" && *word != "by");
        found.extend(rest.take_while(|word| FLAGS.contains(&word.as_str())).cloned());
    }
    found
}

/// What was typed for a flag.
fn typed<'a>(line: &'a str, flag: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == format!("--{flag}"))?;
    words.next()
}

#[track_caller]
fn assert_sound(line: &str, said: &Ran, json: &Value) {
    let mut found = Vec::new();
    numbers(json, "", &mut found);
    for (key, number) in found {
        let value = number.as_f64().unwrap();
        let is_fine = value > 0.0 || (value == 0.0 && value.is_sign_positive()) || SIGNED.contains(&key);
        assert!(is_fine && value.is_finite(), "{line}: {key} is {number}");
        assert!(value != 0.0 || value.is_sign_positive(), "{line}: {key} is {number}");
    }
    // Programs that are printed have words of their own, such as `kill -0`.
    let shown: &[&String] = if line.starts_with("launch") { &[&said.stderr] } else { &[&said.stdout, &said.stderr] };
    for text in shown {
        for word in text.split(|c: char| c.is_whitespace() || "()%,;".contains(c)) {
            let is_zero = word.starts_with("-0") && word.parse::<f64>().is_ok_and(|value| value == 0.0);
            assert!(!is_zero && !["NaN", "inf", "-inf"].contains(&word), "{line}: {word}\n{text}");
        }
    }
    let mut hints = Vec::new();
    texts(json, "hint", &mut hints);
    for (hint, flag) in hints.iter().flat_map(|hint| asked_less(hint).into_iter().map(move |flag| (hint, flag))) {
        let least = if ["zero", "headroom"].contains(&flag.as_str()) { 0.0 } else { 1.0 };
        let degree =
            typed(line, &flag).map_or(if flag == "headroom" { 4.0 } else { least }, |word| word.parse().unwrap());
        assert!(degree > least, "{line}: {hint}: there is no less {flag}");
    }
}

/// Numbers that are the same in every run (Knuth's MMIX generator).
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % most
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn command(&mut self) -> String {
        let recipes: Vec<&str> = recipe::builtin::RECIPES.iter().map(|(name, _)| *name).collect();
        let clusters = ["8xH200", "16xH100", "1xH200", "64xH100", "4xGB200", "8xTPU-v6e"];
        let engines = ["any", "megatron", "fsdp2", "torchtitan", "deepspeed", "nanotron", "maxtext", "xla-spmd"];
        let what = self.one(&["fit", "fit", "check", "stages", "launch"]);
        let mut line =
            format!("{what} {} --on {} --engine {}", self.one(&recipes), self.one(&clusters), self.one(&engines));
        let flags: [(&str, &[&str]); 9] = [
            ("tp", &["1", "2", "4", "8"]),
            ("pp", &["1", "2", "4"]),
            ("cp", &["1", "2"]),
            ("ep", &["1", "2", "8"]),
            ("vpp", &["1", "2"]),
            ("mbs", &["1", "2"]),
            ("zero", &["0", "1", "3"]),
            ("schedule", &["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipev"]),
            ("recompute", &["none", "full"]),
        ];
        for (flag, values) in flags {
            if self.below(3) == 0 {
                line += &format!(" --{flag} {}", self.one(values));
            }
        }
        line
    }
}

#[test]
fn no_figure_is_less_than_nothing() {
    let mut drawn = Drawn(13);
    let begun = Instant::now();
    for tried in 0..60 {
        if tried >= 12 && begun.elapsed() > Duration::from_secs(12) {
            break;
        }
        let line = drawn.command();
        let json: Value = serde_json::from_str(&run(&format!("{line} --json")).stdout).unwrap();
        assert_sound(&line, &run(&line), &json);
    }
}

#[test]
fn what_was_seen_stays_mended() {
    for line in [
        "fit gpt3-175b --on 16xH100 --tp 1",
        "plan nam56r --on 8xH200",
        "plan turing-530b --on 1xH200 --headroom 0",
        "rehearse nam56r-mini --steps 1 --seq 2",
        "rehearse llama3-8b --steps 1 --tp 8 --pp 16",
        "rehearse llama3-8b --steps 1 --dp 128",
    ] {
        let json: Value = serde_json::from_str(&run(&format!("{line} --json")).stdout).unwrap();
        assert_sound(line, &run(line), &json);
    }
    let hint = |line: &str| {
        let json: Value = serde_json::from_str(&run(&format!("{line} --json")).stdout).unwrap();
        json["findings"][0]["hint"].as_str().unwrap().to_string()
    };
    assert_eq!(hint("rehearse nam56r-mini --steps 1 --seq 2"), "sequences of 3 tokens or more: --seq");
    assert_eq!(hint("rehearse llama3-8b --steps 1 --tp 8 --pp 16"), "one replica alone has 128 ranks: lower tp or pp");
    let nothing = hint("plan turing-530b --on 1xH200 --headroom 0");
    assert_eq!(nothing, "more devices, or a smaller --gbs or --seq");
    let pinned = hint("plan turing-530b --on 1xH200 --tp 1");
    assert!(pinned.ends_with("less --headroom, or fewer axes pinned"), "{pinned}");
}
