//! Asking for less is never answered worse, over the built-in recipes. `cargo run --release -p shardwright-search
//! --example questions 5000 1` asks many more.

use crate::common;
use crate::questions::{Outcome, Random, ask, pair};
use hardware::Cluster;
use layout::LayoutRequest;
use rayon::prelude::*;
use units::Bytes;
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

/// A typed tensor degree searches the mode that it is part of: another one would be another run of the model, which the
/// freed question does not have.
#[test]
fn a_tensor_degree_says_the_mode() {
    let recipe = recipe::builtin::find("nam56r-mini").unwrap();
    let cluster = Cluster::parse("8xH200").unwrap();
    let searched = |tp: Option<u64>| {
        let pinned = LayoutRequest { tp, global_batch: Some(16), sequence: Some(1024), ..LayoutRequest::default() };
        let space = common::space(common::question(&recipe, &cluster, &pinned, Bytes(0)));
        let named: Vec<&str> =
            space.modes.iter().filter(|own| own.args.is_empty()).map(|own| own.mode.unwrap().name()).collect();
        named
    };
    assert_eq!(searched(Some(1)), ["author_dp"]);
    assert_eq!(searched(Some(2)), ["nemo_native"]);
    assert_eq!(searched(None).len(), 2);
}
