//! `differences` is empty for equal jobs and nothing else, and names what was changed.

use crate::drawn::{case, config, placed};
use case::{Case, Terms};
use proptest::prelude::*;

fn of(words: &str) -> Case {
    let words: Vec<String> = recipe::import::megatron_args::shell_words(words);
    case(&words, Terms::RUN).unwrap_or_else(|findings| panic!("{words:?}\n{findings:#?}"))
}

/// The keys in which two jobs differ.
fn keys(one: &str, two: &str) -> Vec<String> {
    of(one).differences(&of(two)).into_iter().map(|d| format!("{}.{}", d.part, d.key)).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn jobs_differ_exactly_where_they_are_not_equal((one, terms) in placed(), (two, _) in placed(), twin in any::<bool>()) {
        let two = if twin { one.clone() } else { two };
        let (Some(one), Some(two)) = (one, two) else { return Ok(()) };
        let (Ok(one), Ok(two)) = (case(&one, terms), case(&two, terms)) else { return Ok(()) };
        prop_assert_eq!(one == two, one.differences(&two).is_empty());
        let mirrored: Vec<_> = two.differences(&one).into_iter().map(|d| (d.part, d.key, d.new, d.old)).collect();
        let mut straight: Vec<_> = one.differences(&two).into_iter().map(|d| (d.part, d.key, d.old, d.new)).collect();
        let mut mirrored = mirrored;
        straight.sort_by(|a, b| (a.0 as u8, &a.1).cmp(&(b.0 as u8, &b.1)));
        mirrored.sort_by(|a, b| (a.0 as u8, &a.1).cmp(&(b.0 as u8, &b.1)));
        prop_assert_eq!(straight, mirrored);
    }
}

#[test]
fn one_change_is_one_key() {
    let base = "mixtral-8x7b --tp 2 --ep 4 --etp 1 --on 16xH200";
    for (more, key) in [
        ("--zero 0", "layout.zero"),
        ("--seq 2048", "layout.seq"),
        ("--recompute full", "layout.recompute"),
        ("--vocab-multiple 64", "layout.vocab_multiple"),
        ("--gradients bf16", "options.gradients"),
        ("--precision fp8-delayed", "options.precision"),
        ("--offload-optimizer 0.5", "options.offload-optimizer"),
        ("--offload-activations 0.5", "options.offload-activations"),
        ("--documents 512,1k", "options.documents"),
        ("--ce-fusion", "options.--cross-entropy-loss-fusion"),
        ("--engine-args '--moe-token-dispatcher-type allgather'", "options.--moe-token-dispatcher-type"),
        ("--engine-args --no-rope-fusion", "options.--rope-fusion"),
        ("--engine-args '--ddp-bucket-size 1000'", "options.--ddp-bucket-size"),
        ("--engine-args '--exp-avg-dtype bf16'", "options.--exp-avg-dtype"),
        ("--engine-args PYTORCH_ALLOC_CONF=expandable_segments:True", "options.PYTORCH_CUDA_ALLOC_CONF"),
        ("--engine-args --manual-gc", "options.engine-args"),
    ] {
        assert_eq!(keys(base, &format!("{base} {more}")), [key], "{more}");
    }
    assert_eq!(keys(base, &base.replace("16xH200", "16xH200@roce400")), ["cluster.network", "cluster.device"]);
    assert_eq!(keys(base, &format!("{base} --mbs 2")), ["layout.mbs", "layout.gbs"]);
}

#[test]
fn what_follows_from_a_change_is_listed_with_it() {
    let base = "llama3-8b --pp 4 --microbatches 16 --on 16xH200";
    assert_eq!(keys(base, &format!("{base} --boundaries 7,15,23")), ["layout.boundaries", "stages.layers"]);
    assert_eq!(
        keys(base, &format!("{base} --optimizer muon+adamw")),
        ["recipe.optimizer.expert", "recipe.optimizer.matrix"]
    );
    assert_eq!(keys("nam56r --on 8xH200", "nam56r --with mtp --on 8xH200"), ["recipe.features.mtp.enabled"]);
}

#[test]
fn the_same_job_typed_otherwise_does_not_differ() {
    for (one, two) in [
        ("llama3-8b --on 8xH200", "llama3-8b --engine megatron --tp 1 --zero 1 --mbs 1 --gbs 8 --on 1x8xH200"),
        ("llama3-8b --ce-fusion --on 8xH200", "llama3-8b --engine-args --cross-entropy-loss-fusion --on 8xH200"),
        ("llama3-8b --pp 2 --boundaries 16 --balance time --on 8xH200", "llama3-8b --pp 2 --boundaries 16 --on 8xH200"),
        (
            "mixtral-8x7b --engine-args '--moe-flex-dispatcher-backend hybridep --moe-token-dispatcher-type flex' --on 8xH200",
            "mixtral-8x7b --engine-args '--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep' --on 8xH200",
        ),
    ] {
        assert_eq!(keys(one, two), Vec::<String>::new(), "{one}");
        assert!(of(one) == of(two), "{one}");
    }
}
