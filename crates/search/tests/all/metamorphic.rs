//! Asking for less is never answered worse, over the built-in recipes. `cargo run --release -p shardwright-search
//! --example questions 5000 1` asks many more.

use crate::questions::{Outcome, Random, ask, pair};
use rayon::prelude::*;
use work::Limit;

/// Recipes whose replays are short.
const SMALL: &[&str] = &["nam56r-mini", "llama3-8b", "deepseek-v2-lite", "nemotron-h-8b", "mixtral-8x7b"];

#[test]
fn what_is_fastest_among_more_is_never_slower() {
    let mut random = Random(7);
    let pairs: Vec<_> = (0..20).map(|_| pair(&mut random, SMALL)).collect();
    let outcomes: Vec<Outcome> = pairs.par_iter().map(|pair| ask(pair, &Limit::none())).collect();
    let slower: Vec<&str> = pairs
        .iter()
        .zip(&outcomes)
        .filter(|(_, outcome)| !outcome.holds())
        .map(|(pair, _)| pair.what.as_str())
        .collect();
    assert!(slower.is_empty(), "{slower:#?}");
    let compared = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Compared { .. })).count();
    assert!(compared >= 8, "{compared} of {} were compared", outcomes.len());
    let proved = |outcome: &Outcome| !matches!(outcome, Outcome::Compared { unproved, .. } if *unproved > 0.0);
    assert!(outcomes.iter().all(proved), "without a limit everything is proved");
}
