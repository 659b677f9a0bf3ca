//! The command line asked from inside a process.

use crate::common::folder;
use shardwright::{Answer, Call, Reads, answer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn ask(line: &str, call: Call) -> Answer {
    let words: Vec<_> = std::iter::once("shardwright").chain(line.split_whitespace()).map(Into::into).collect();
    answer(&words, call)
}

fn rule(answer: &Answer) -> String {
    answer.json.as_ref().unwrap()["findings"][0]["rule"].as_str().unwrap_or_default().to_string()
}

#[test]
fn a_search_tells_how_far_it_is_and_ends_where_nobody_waits() {
    let told = Arc::new(AtomicU64::new(0));
    let (counter, stop) = (told.clone(), Arc::new(AtomicBool::new(false)));
    let call = Call {
        stop: stop.clone(),
        progress: Some(Arc::new(move |done, all| {
            assert!(done <= all);
            counter.fetch_add(1, Ordering::Relaxed);
            stop.store(true, Ordering::Relaxed);
        })),
        ..Call::default()
    };
    let stopped = ask("plan deepseek-v3 --on 64xH100 --engine megatron --json", call);
    assert_eq!((stopped.exit, rule(&stopped).as_str()), (1, "plan/stopped"), "{}", stopped.messages);
    assert_eq!(told.load(Ordering::Relaxed), 1, "one batch, and not another");
}

#[test]
fn a_recipe_may_come_as_a_text_and_files_only_from_where_they_may() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/recipes/nam56r.toml")).unwrap();
    let texts = BTreeMap::from([("mine".to_string(), text)]);
    let closed = Call { reads: Reads::Nothing, texts, ..Call::default() };
    assert_eq!(ask("params mine", closed.clone()).exit, 0);
    assert_eq!(ask("fit nam56r --on 8xH200 --svg never.svg", closed.clone()).exit, 1);
    assert!(!std::path::Path::new("never.svg").exists());
    let folder = folder("library");
    let recipe = folder.join("own.toml");
    std::fs::write(&recipe, &closed.texts["mine"]).unwrap();
    let below = Call { reads: Reads::Below(folder.clone()), ..Call::default() };
    let line = format!("params {}", recipe.display());
    assert_eq!(ask(&line, below.clone()).exit, 0);
    for call in [closed, Call { reads: Reads::Below(folder.join("further")), ..Call::default() }] {
        let refused = ask(&line, call);
        assert_eq!((refused.exit, rule(&refused).as_str()), (1, "recipe/unknown"), "{}", refused.messages);
    }
    let outside = ask("params data/recipes/../../Cargo.toml", below);
    assert_eq!(outside.exit, 1);
}
