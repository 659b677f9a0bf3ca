//! Flags and JSON of a case read back as the case.

use crate::drawn::{build, case, config, placed};
use case::{Asked, Case, Terms};
use layout::Engine;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRng, TestRunner};
use recipe::Mixer;
use serde_json::Value;
use std::collections::BTreeMap;

/// In what a case read back is another, in words.
fn differing(one: &Case, two: &Case) -> String {
    format!("{:#?}\n{:?}\n{:?}", one.differences(two), one.words(), two.words())
}

fn from_flags(one: &Case, terms: Terms) -> Case {
    case(&one.words(), terms).unwrap_or_else(|findings| panic!("{:?}\n{findings:#?}", one.words()))
}

fn from_json(one: &Case, terms: Terms) -> Case {
    let text = one.to_json().to_string();
    let value: Value = serde_json::from_str(&text).unwrap();
    Case::from_json(&value, terms).unwrap_or_else(|findings| panic!("{text}\n{findings:#?}"))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn flags_and_json_read_back((words, terms) in placed()) {
        let Some(words) = words else { return Ok(()) };
        let one = case(&words, terms).unwrap();
        let flags = from_flags(&one, terms);
        prop_assert!(flags == one, "flags: {}", differing(&one, &flags));
        prop_assert_eq!(flags.words(), one.words());
        prop_assert_eq!(&flags.recipe, &one.recipe);
        let json = from_json(&one, terms);
        prop_assert!(json == one, "JSON: {}", differing(&one, &json));
        prop_assert_eq!(json.to_json()["layout"].clone(), one.to_json()["layout"].clone());
        // Each in the other's words.
        let both = from_json(&flags, terms);
        prop_assert!(both == one, "JSON of flags: {}", differing(&one, &both));
        let both = from_flags(&json, terms);
        prop_assert!(both == one, "flags of JSON: {}", differing(&one, &both));
        prop_assert!(one.differences(&json).is_empty());
    }

    #[test]
    fn what_plan_pins_is_the_same_job((words, terms) in placed()) {
        let Some(words) = words else { return Ok(()) };
        let one = case(&words, terms).unwrap();
        let pinned = one.asked.pinned_to(&one.layout, one.recipe.uses(Mixer::Moe), one.options.offload);
        let pinned = build(pinned, terms).unwrap_or_else(|findings| panic!("{words:?}\n{findings:#?}"));
        prop_assert!(pinned == one, "pinned: {}", differing(&one, &pinned));
        let flags = from_flags(&pinned, terms);
        prop_assert!(flags == one, "flags of pinned: {}", differing(&one, &flags));
        let whole = build(one.pinned(), terms).unwrap_or_else(|findings| panic!("{words:?}\n{findings:#?}"));
        prop_assert!(whole == one, "all pinned: {}", differing(&one, &whole));
    }
}

/// Draws that are refused test nothing: most are legal, on every engine, with every kind of flag.
#[test]
fn most_draws_are_legal_on_every_engine() {
    let rng = TestRng::from_seed(Default::default(), &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..300 {
        let (words, terms) = placed().new_tree(&mut runner).unwrap().current();
        let Some(words) = words else { continue };
        let case = case(&words, terms).unwrap();
        let engine = case.layout.engine.map_or("any", |engine| engine.name());
        for key in words.iter().filter(|word| word.starts_with("--")).map(String::as_str).chain([engine]) {
            *seen.entry(key.split([' ', '=']).next().unwrap_or(key).to_string()).or_default() += 1;
        }
    }
    println!("{seen:?}");
    let engines = Engine::ALL.iter().map(|(name, _)| *name).chain(["any"]);
    let flags = ["--tp", "--vpp", "--schedule", "--boundaries", "--no-sp", "--with", "--without", "--engine-args"];
    for key in engines.chain(flags).chain(["--precision", "--optimizer", "--offload-optimizer", "--vocab-multiple"]) {
        assert!(seen.get(key).is_some_and(|number| *number >= 5), "{key}: {seen:?}");
    }
}

#[test]
fn text_that_is_no_case_is_refused_by_name() {
    let words: Vec<String> = "llama3-8b --on 8xH200".split(' ').map(str::to_string).collect();
    let good = case(&words, Terms::RUN).unwrap().to_json();
    let refused = |change: fn(&mut Value)| {
        let mut value = good.clone();
        change(&mut value);
        Case::from_json(&value, Terms::RUN).unwrap_err()[0].rule
    };
    assert_eq!(refused(|v| v["schema"] = "shardwright/case/0".into()), "case/json");
    assert_eq!(refused(|v| v["recipe"]["toml"] = Value::Null), "case/json");
    assert_eq!(refused(|v| v["layout"]["engine"] = "megatorn".into()), "case/json");
    assert_eq!(refused(|v| v["state"]["precision"] = "fp7".into()), "case/json");
    assert_eq!(refused(|v| v["state"]["gradients"] = "fp7".into()), "case/json");
    assert_eq!(refused(|v| v["options"]["--rope-fusion"] = 1.into()), "case/json");
    assert_eq!(refused(|v| v["options"]["--rope-fusion"] = "maybe".into()), "engine-args/value");
    assert_eq!(refused(|v| v["options"]["--no-such-word"] = "true".into()), "engine-args/unknown");
    assert_eq!(refused(|v| v["cluster"]["typed"] = "8xH2".into()), "hardware/device");
}

#[test]
fn one_word_too_many_is_told() {
    assert!(Asked::parse(&["llama3-8b", "--tpp", "2"]).unwrap_err().contains("--tpp"));
    assert!(Asked::parse(&["llama3-8b", "--engine", "pax"]).is_err());
}
