//! What holds of every vocabulary, and what each answers to words it does not take.

use super::*;
use crate::options::{CrossEntropy, Dispatch, GraphModule, GraphsBy};
use recipe::import::megatron_args::shell_words;
use std::collections::HashSet;

const ENGINES: [Engine; 5] = [Engine::Megatron, Engine::Torchtitan, Engine::Deepspeed, Engine::Nanotron, Engine::Fsdp2];

fn usual(engine: Engine) -> Options {
    Options::of(Some(engine), &recipe::builtin::find("mixtral-8x7b").unwrap())
}

/// Options after some words, and what is passed on.
fn told(engine: Engine, words: &str) -> Result<(Options, Vec<Vec<String>>), Vec<Finding>> {
    let mut options = usual(engine);
    read(Some(engine), &shell_words(words), &mut options).map(|said| (options, said.passed))
}

/// Rule, object, and hint of the one refusal of some words.
fn refused(engine: Engine, words: &str) -> (&'static str, String, String) {
    let findings = told(engine, words).expect_err(words);
    assert_eq!(findings.len(), 1, "{words}: {findings:#?}");
    let finding = findings.into_iter().next().unwrap();
    (finding.rule, finding.object, format!("{} {}", finding.message, finding.hint.unwrap_or_default()))
}

/// Values to try of a word.
fn values(takes: Takes) -> Vec<String> {
    match takes {
        Takes::Switch => vec!["true".to_string(), "false".to_string()],
        Takes::OneOf(known) => known.iter().map(|word| word.to_string()).collect(),
        Takes::Some(known) => known.iter().map(|word| word.to_string()).chain([known.join(",")]).collect(),
        Takes::Number => vec!["1".to_string(), "4096".to_string(), u64::MAX.to_string()],
    }
}

/// What must be said before a word has a meaning.
fn needed(name: &str) -> &'static str {
    match name {
        "--moe-flex-dispatcher-backend" => "--moe-token-dispatcher-type flex",
        "--cross-entropy-fusion-impl" => "--cross-entropy-loss-fusion",
        _ => "",
    }
}

#[test]
fn every_word_reads_what_it_writes() {
    for engine in ENGINES {
        for word in of(Some(engine)).words {
            for value in values(word.takes) {
                let attached = format!("{}={value}", word.name);
                for written in [word.written(&value).join(" "), attached] {
                    let words = format!("{} {written}", needed(word.name));
                    let (options, passed) = told(engine, &words).unwrap_or_else(|f| panic!("{words}: {f:#?}"));
                    assert_eq!((word.get)(&options), value, "{engine}: {words}");
                    assert!(passed.is_empty());
                    let again = between(Some(engine), &usual(engine), &options);
                    let (back, _) = told(engine, &again.join(" ")).unwrap();
                    assert_eq!(back, options, "{engine}: {again:?}");
                }
            }
        }
    }
}

#[test]
fn words_set_nothing_but_themselves() {
    for engine in ENGINES {
        let vocabulary = of(Some(engine));
        for word in vocabulary.words.iter().filter(|word| needed(word.name).is_empty()) {
            for value in values(word.takes) {
                let (options, _) = told(engine, &word.written(&value).join(" ")).unwrap();
                let changed = vocabulary.words.iter().filter(|w| (w.get)(&options) != (w.get)(&usual(engine)));
                assert!(changed.clone().all(|w| w.name == word.name), "{engine}: {} {value}", word.name);
            }
        }
    }
}

#[test]
fn no_word_is_listed_twice_and_each_says_what_it_is_for() {
    for engine in ENGINES {
        let vocabulary = of(Some(engine));
        let mut seen = HashSet::new();
        let ours = vocabulary.ours.iter().map(|(name, _)| *name);
        let passed = vocabulary.passed.iter().map(|passed| passed.name);
        let names = vocabulary.words.iter().map(|word| word.name).chain(passed).chain(ours);
        assert!(names.chain(vocabulary.implied.iter().copied()).all(|name| seen.insert(name)), "{engine}");
        for word in vocabulary.words {
            assert!(!word.what.is_empty());
            let is_own = word.own.is_empty() || word.takes.refusal(word.own).is_none();
            assert!(is_own, "{engine}: {} cannot be {}", word.name, word.own);
            let usual = (word.get)(&usual(engine));
            assert!(usual.is_empty() || word.takes.refusal(&usual).is_none(), "{engine}: {} {usual}", word.name);
        }
    }
}

#[test]
fn emitted_words_are_what_an_engine_does_not_have_by_itself() {
    for engine in ENGINES {
        let mut options = usual(engine);
        for word in of(Some(engine)).words.iter().filter(|word| !word.own.is_empty()) {
            (word.set)(&mut options, word.own).unwrap();
        }
        options.bucket_size = None;
        assert_eq!(emitted(Some(engine), &options).map(|(word, _)| word.name).collect::<Vec<_>>(), [""; 0], "{engine}");
    }
    let names: Vec<&str> =
        emitted(Some(Engine::Megatron), &usual(Engine::Megatron)).map(|(word, _)| word.name).collect();
    let words = [
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--gradient-accumulation-fusion",
        "--moe-permute-fusion",
        "--moe-token-dispatcher-type",
    ];
    assert_eq!(names, words);
}

#[test]
fn unknown_words_are_answered_with_the_nearest_or_the_list() {
    let (rule, object, text) = refused(Engine::Megatron, "--moe-token-dispatcher-typ alltoall");
    assert_eq!((rule, object.as_str()), ("engine-args/unknown", "--moe-token-dispatcher-typ"));
    assert!(text.contains("did you mean `--moe-token-dispatcher-type`?"), "{text}");
    for engine in ENGINES {
        for word in ["--frobnicate", "frob.nicate=1", "stray"] {
            let (rule, object, text) = refused(engine, word);
            assert_eq!((rule, object.as_str()), ("engine-args/unknown", word.split('=').next().unwrap()));
            assert!(text.contains(&format!("`shardwright options {engine}` lists")), "{text}");
        }
    }
    assert_eq!(refused(Engine::Fsdp2, "--overlap-grad-reduce").0, "engine-args/unknown");
}

#[test]
fn words_of_ours_are_sent_to_our_flag() {
    for engine in ENGINES {
        for (name, flag) in of(Some(engine)).ours {
            for words in [name.to_string(), format!("{name} 2"), format!("{name}=2")] {
                let (rule, object, text) = refused(engine, &words);
                assert_eq!((rule, object.as_str()), ("engine-args/ours", *name));
                assert!(text.contains(&format!("use {flag}")), "{text}");
            }
        }
    }
}

#[test]
fn engine_words_without_a_price_are_passed_on_or_refused_by_name() {
    let (rule, object, text) = refused(Engine::Fsdp2, "float8=true");
    assert_eq!((rule, object.as_str()), ("engine-args/unpriced", "float8"));
    assert!(text.contains("multiply in bf16"), "{text}");
    for words in ["--moe-layer-recompute", "--num-distributed-optimizer-instances 2"] {
        let (rule, object, text) = refused(Engine::Megatron, words);
        assert_eq!((rule, object.as_str()), ("engine-args/model", words.split(' ').next().unwrap()));
        assert!(text.contains("changes the model or its layout"), "{text}");
    }
    for words in ["--moe-pad-expert-input-to-capacity", "--lr-wsd-decay-samples 5"] {
        let (options, passed) = told(Engine::Megatron, words).unwrap();
        assert_eq!((options, passed.as_slice()), (usual(Engine::Megatron), [shell_words(words)].as_slice()));
        assert_eq!(not_priced(Some(Engine::Megatron), &passed), [words.split(' ').next().unwrap()]);
    }
}

#[test]
fn wrong_values_are_told_what_is_taken() {
    for (engine, words, says) in [
        (Engine::Megatron, "--moe-token-dispatcher-type alltoal", "did you mean `alltoall`?"),
        (Engine::Megatron, "--moe-token-dispatcher-type", "takes a value"),
        (Engine::Megatron, "--moe-token-dispatcher-type alltoall flex", "takes one value, not 2"),
        (Engine::Megatron, "--overlap-grad-reduce yes", "it takes true, false"),
        (Engine::Megatron, "--overlap-grad-reduce a b", "takes no value"),
        (Engine::Megatron, "--no-overlap-grad-reduce true", "takes no value"),
        (Engine::Megatron, "--ddp-bucket-size many", "`many` is no whole number"),
        (Engine::Megatron, "--ddp-bucket-size -1", "`-1` is no whole number"),
        (Engine::Megatron, "--cuda-graph-modules attn mpl", "did you mean `mlp`?"),
        (Engine::Megatron, "--main-params-dtype bf16", "it takes fp32, fp16"),
        (Engine::Megatron, "--num-workers", "takes one value, not 0"),
        (Engine::Megatron, "--manual-gc 1", "takes no value, not 1"),
        (Engine::Megatron, "--moe-flex-dispatcher-backend hybridep", "only dispatcher `flex` has a backend"),
        (Engine::Megatron, "--cross-entropy-fusion-impl te", "needs --cross-entropy-loss-fusion"),
        (Engine::Megatron, "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64", "it takes expandable_segments:True"),
        (Engine::Torchtitan, "compile.enable=1", "it takes true, false"),
        (Engine::Torchtitan, "activation_checkpoint=FullAC", "it takes SelectiveAC"),
        (Engine::Deepspeed, "zero_optimization.reduce_bucket_size=5e8", "`5e8` is no whole number"),
        (Engine::Fsdp2, "compile=maybe", "it takes true, false"),
        (Engine::Fsdp2, "backward_prefetch=0", "always gathers one group ahead"),
        (Engine::Nanotron, "PYTORCH_ALLOC_CONF=x", "it takes expandable_segments:True"),
    ] {
        let (rule, _, text) = refused(engine, words);
        assert_eq!(rule, "engine-args/value", "{words}");
        assert!(text.contains(says), "{words}: {text}");
    }
}

#[test]
fn every_mistake_is_told_at_once() {
    let findings = told(Engine::Megatron, "--frob --tensor-model-parallel-size 2 --ddp-bucket-size x").unwrap_err();
    let rules: Vec<&str> = findings.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, ["engine-args/unknown", "engine-args/ours", "engine-args/value"]);
}

#[test]
fn switches_are_taken_back_by_no() {
    let (options, _) = told(Engine::Megatron, "--no-overlap-grad-reduce --no-rope-fusion").unwrap();
    assert!(!options.overlap.gradients && !options.kernels.rope_fusion);
    let (options, _) = told(Engine::Megatron, "--no-overlap-grad-reduce --overlap-grad-reduce").unwrap();
    assert!(options.overlap.gradients, "the last word holds");
    assert_eq!(refused(Engine::Megatron, "--no-moe-token-dispatcher-type").0, "engine-args/unknown");
    let (options, _) = told(Engine::Deepspeed, "zero_optimization.overlap_comm=true").unwrap();
    assert!(options.overlap.gradients);
    assert_eq!(refused(Engine::Deepspeed, "--no-zero_optimization.overlap_comm").0, "engine-args/unknown");
}

#[test]
fn words_may_stand_in_any_order() {
    for (one, two) in [
        ("--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend hybridep"),
        ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl te"),
        ("--cuda-graph-impl transformer_engine", "--cuda-graph-modules attn moe_router"),
        ("--exp-avg-dtype bf16", "--exp-avg-sq-dtype fp8"),
    ] {
        let (straight, back) = (format!("{one} {two}"), format!("{two} {one}"));
        assert_eq!(told(Engine::Megatron, &straight), told(Engine::Megatron, &back), "{straight}");
    }
    let both = "--moe-flex-dispatcher-backend hybridep --moe-token-dispatcher-type flex --cuda-graph-modules=attn,mamba \
        --cuda-graph-impl local --cross-entropy-fusion-impl te --cross-entropy-loss-fusion";
    let kernels = told(Engine::Megatron, both).unwrap().0.kernels;
    assert_eq!((kernels.dispatch, kernels.cross_entropy), (Dispatch::HybridEp, CrossEntropy::TransformerEngine));
    assert_eq!(kernels.graphs.by, GraphsBy::Local);
    assert_eq!(kernels.graphs.modules().collect::<Vec<_>>(), [GraphModule::Attention, GraphModule::Mamba]);
}

#[test]
fn the_environment_is_told_by_either_name_of_the_variable() {
    for engine in ENGINES {
        for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
            let (options, passed) = told(engine, &format!("{name}=expandable_segments:True")).unwrap();
            assert!(options.expandable_segments && passed.is_empty());
            let (word, value) = emitted(Some(engine), &options).find(|(word, _)| word.name == ALLOCATOR.name).unwrap();
            assert_eq!((word.place, value.as_str()), (Place::Environment, "expandable_segments:True"));
        }
        assert!(!told(engine, "PYTORCH_CUDA_ALLOC_CONF=").unwrap().0.expandable_segments);
    }
}

#[test]
fn words_that_change_nothing_are_passed_on_with_their_values() {
    let words =
        "--log-throughput --wandb-exp-name 'a b=c' --num-workers 4 --wandb-project=--x --use-precision-aware-optimizer";
    let (options, passed) = told(Engine::Megatron, words).unwrap();
    assert_eq!(options, usual(Engine::Megatron));
    let passed: Vec<String> = passed.into_iter().map(|words| words.join("|")).collect();
    assert_eq!(passed, ["--log-throughput", "--wandb-exp-name|a b=c", "--num-workers|4", "--wandb-project|--x"]);
}

#[test]
fn megatron_words_and_their_defaults_are_megatrons() {
    let listed: serde_json::Value =
        serde_json::from_str(include_str!("../../../../data/engines/megatron_flags_0.19.2.json")).unwrap();
    let vocabulary = of(Some(Engine::Megatron));
    for word in vocabulary.words.iter().filter(|word| word.place == Place::Argument) {
        let negated = word.negated();
        let (name, entry) = [word.name, negated.as_str()]
            .into_iter()
            .find_map(|name| listed["flags"].get(name).map(|entry| (name, entry)))
            .unwrap_or_else(|| panic!("Megatron has no {}", word.name));
        let default = entry["default"].as_str().unwrap();
        // `--no-X` has the default of X itself, which it switches off.
        let default = match (word.takes, default) {
            (Takes::Switch, "True") => "true",
            (Takes::Switch, "False") => "false",
            (_, "None" | "[]") => "",
            (_, "<AttnBackend.auto: 5>") => "auto",
            (_, text) => text.trim_matches('\''),
        };
        assert_eq!(word.own, default, "{}", word.name);
        assert_eq!(name != word.name, word.takes == Takes::Switch && default == "true", "{}", word.name);
        assert_eq!(entry["takes_value"].as_bool().unwrap(), word.takes != Takes::Switch, "{}", word.name);
        if let (Takes::OneOf(ours), Some(theirs)) = (word.takes, entry["choices"].as_array()) {
            assert!(ours.iter().all(|value| theirs.iter().any(|known| known == value)), "{}", word.name);
        }
    }
    for passed in vocabulary.passed {
        let entry = &listed["flags"][passed.name];
        assert_eq!(entry["takes_value"].as_bool(), Some(passed.values > 0), "{}", passed.name);
    }
    let others = vocabulary.ours.iter().map(|(name, _)| *name).chain(vocabulary.implied.iter().copied());
    for name in others {
        assert!(listed["flags"].get(name).is_some(), "Megatron has no {name}");
    }
}
