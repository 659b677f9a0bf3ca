//! Every reader on its corpus, and on seeded changes of it. `SHARDWRIGHT_FUZZ_RUNS` and
//! `SHARDWRIGHT_FUZZ_SEED` explore further; `fuzz/nightly` explores with coverage.

use shardwright_fuzz::{Mutator, READERS, Reader};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Runs a reader, and shows the input that breaks it.
fn hold(reader: &Reader, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (reader.run)(input))).is_err() {
        let shown: String = input.iter().flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect();
        panic!("`{}` breaks on:\n{shown}", reader.name);
    }
}

#[test]
fn every_reader_has_a_corpus_and_holds_on_it() {
    for reader in READERS {
        let corpus = reader.corpus();
        assert!(!corpus.is_empty(), "`{}` has neither seeds nor a folder in fuzz/corpus", reader.name);
        corpus.iter().for_each(|input| hold(reader, input));
    }
}

#[test]
fn readers_hold_on_seeded_changes() {
    let (runs, seed) = (number("SHARDWRIGHT_FUZZ_RUNS", 600), number("SHARDWRIGHT_FUZZ_SEED", 1));
    for reader in READERS {
        let corpus = reader.corpus();
        let mut mutator = Mutator::new(seed);
        (0..runs).for_each(|_| hold(reader, &mutator.changed(&corpus)));
    }
}

/// Every reader is a target of libFuzzer, and every target a reader.
#[test]
fn targets_and_readers_are_the_same() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/targets");
    let mut targets: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    targets.sort();
    let mut names: Vec<&str> = READERS.iter().map(|reader| reader.name).collect();
    names.sort_unstable();
    assert_eq!(targets, names);
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/Cargo.toml")).unwrap();
    names.iter().for_each(|name| assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}"));
}
