//! Jobs drawn at random, as a person might type them: recipes, features, layouts, engines with words
//! of their own, formats, clusters.

use case::words::{self, Takes, Vocabulary};
use case::{Asked, Case, Terms};
use diag::Finding;
use hardware::{Cluster, ClusterText, Device};
use layout::Engine;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use recipe::builtin::{RECIPES, find};

pub const ENGINES: [&str; 9] =
    ["", "megatron", "fsdp2", "torchtitan", "deepspeed", "nanotron", "maxtext", "xla-spmd", "shardwright"];

/// A device of one's own.
pub const DEVICE_FILE: &str = "./box.toml";

/// `PROPTEST_RNG_SEED` and `PROPTEST_CASES` explore further.
pub fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if usual.cases == 256 { 200 } else { usual.cases };
    ProptestConfig { cases, max_shrink_iters: 1000, ..usual }
}

/// Nothing, or a flag with one of these values.
fn flag(name: &'static str, values: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    (0..2u8, select(values)).prop_map(move |(dice, value)| match dice {
        0 => vec![format!("--{name}"), value.to_string()],
        _ => Vec::new(),
    })
}

/// A switch, seldom.
fn switch(name: &'static str) -> impl Strategy<Value = Vec<String>> {
    (0..5u8).prop_map(move |dice| if dice == 0 { vec![format!("--{name}")] } else { Vec::new() })
}

/// Flags, each with its values; an empty one is left out.
type Flags = Vec<Vec<String>>;

fn degrees() -> impl Strategy<Value = Flags> {
    (
        flag("tp", &["1", "2", "4"]),
        flag("cp", &["1", "2"]),
        flag("pp", &["1", "2", "4"]),
        flag("vpp", &["1", "2"]),
        flag("ep", &["1", "2", "4", "8"]),
        flag("etp", &["1", "2"]),
        flag("zero", &["0", "1", "2", "3"]),
        (switch("sp"), switch("no-sp")).prop_map(|(sp, no)| if sp.is_empty() { no } else { sp }),
    )
        .prop_map(|(tp, cp, pp, vpp, ep, etp, zero, sp)| vec![tp, cp, pp, vpp, ep, etp, zero, sp])
}

fn batch() -> impl Strategy<Value = Flags> {
    (
        flag("mbs", &["1", "2"]),
        flag("gbs", &["16", "32", "64"]),
        flag("microbatches", &["1", "4", "8", "16"]),
        flag("seq", &["2048", "4096"]),
        flag("schedule", &["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe", "dualpipev"]),
        flag("recompute", &["none", "full", "selective:core_attn", "selective:moe_act+layernorm"]),
        flag("balance", &["layers", "params", "time"]),
        flag("boundaries", &["5", "9,11", "3,7,11"]),
        flag("mode", &["nemo_native", "author_dp"]),
        flag("vocab-multiple", &["1", "64", "128"]),
    )
        .prop_map(|(a, b, c, d, e, f, g, h, i, j)| vec![a, b, c, d, e, f, g, h, i, j])
}

fn state() -> impl Strategy<Value = Flags> {
    (
        flag("precision", &["bf16", "fp8", "fp8-delayed", "fp8-blockwise", "mxfp8", "nvfp4", "f32"]),
        flag("optimizer", &["adamw", "muon+adamw"]),
        flag("gradients", &["bf16", "fp32"]),
        flag("offload-optimizer", &["0", "0.25", "0.3333333333333333", "1"]),
        flag("offload-activations", &["0.5", "1"]),
        switch("ce-fusion"),
        switch("fp8-param-gather"),
        flag("documents", &["512", "1,300,4096"]),
    )
        .prop_map(|(a, b, c, d, e, f, g, h)| vec![a, b, c, d, e, f, g, h])
}

/// A value that a word takes.
pub fn value(takes: Takes, draw: usize) -> String {
    match takes {
        Takes::Switch => ["true", "false"][draw % 2].to_string(),
        Takes::OneOf(known) => known[draw % known.len()].to_string(),
        Takes::Some(known) => {
            let some: Vec<&str> =
                known.iter().enumerate().filter(|(i, _)| draw >> i & 1 == 1).map(|(_, w)| *w).collect();
            if some.is_empty() { known[0].to_string() } else { some.join(",") }
        }
        Takes::Number => (draw as u64 % 1_000_000_007 + 1).to_string(),
    }
}

/// One word of an engine with a value, none where it has no words.
fn said(vocabulary: &Vocabulary, (index, draw): &(Index, usize)) -> String {
    let names = ["plain", "two words", "it's", "a=b", "#1", "--dashed", ""];
    let num_words = vocabulary.words.len();
    if num_words == 0 {
        return String::new();
    }
    let at = index.index(num_words + vocabulary.passed.len());
    let Some(passed) = at.checked_sub(num_words).map(|at| &vocabulary.passed[at]) else {
        let word = &vocabulary.words[at];
        return word.written(&value(word.takes, *draw)).join(" ");
    };
    let text = names[draw % names.len()];
    let quoted = format!("'{}'", text.replace('\'', r"'\''"));
    match passed.values {
        0 => passed.name.to_string(),
        _ if text.starts_with("--") => format!("{}={quoted}", passed.name),
        _ => format!("{} {quoted}", passed.name),
    }
}

/// A recipe, an engine, and flags to try.
fn jobs() -> impl Strategy<Value = (&'static str, &'static str, Flags)> {
    let names: Vec<&str> = RECIPES.iter().map(|(name, _)| *name).collect();
    let features = ["mla", "mtp", "ngram_hash", "mtp,structure", "moe", "dsa"].as_slice();
    let draws = prop::collection::vec((any::<Index>(), any::<usize>()), 0..5);
    let recipe = (select(names), flag("with", features), flag("without", features));
    (recipe, select(&ENGINES[..]), degrees(), batch(), state(), draws).prop_map(
        |((name, with, without), engine, degrees, batch, state, draws)| {
            let vocabulary = words::of(Engine::from_name(engine));
            let said = draws.iter().map(|draw| said(vocabulary, draw)).filter(|text| !text.is_empty());
            let said = said.map(|text| vec!["--engine-args".to_string(), text]);
            let flags = [with, without].into_iter().chain(degrees).chain(batch).chain(state).chain(said);
            (name, engine, flags.filter(|flag| !flag.is_empty()).collect())
        },
    )
}

/// A legal job, with a cluster, or with none where it is only split: flags that make it illegal are
/// taken out again. None where its engine does not run its recipe at all.
pub fn placed() -> impl Strategy<Value = (Option<Vec<String>>, Terms)> {
    let clusters = ["8xH200", "2x8xH100@roce400", "16xGB200", "32xB200", "8x./box.toml"].as_slice();
    (jobs(), select(clusters), 0..4u8).prop_map(|((name, engine, flags), on, dice)| {
        let on = if engine == "xla-spmd" { ["16xTPU-v6e", "2x16xTPU-v5p"][usize::from(dice % 2)] } else { on };
        let terms = if dice < 2 { Terms::SPLIT } else { Terms::RUN };
        let mut words = vec![name.to_string()];
        if !engine.is_empty() {
            words.extend(["--engine".to_string(), engine.to_string()]);
        }
        if dice > 0 {
            words.extend(["--on".to_string(), on.to_string()]);
        }
        let is_legal = |words: &[String]| Asked::parse(words).is_ok_and(|asked| build(asked, terms).is_ok());
        for flag in flags {
            let more = [words.clone(), flag].concat();
            if is_legal(&more) {
                words = more;
            }
        }
        (Some(words).filter(|words| is_legal(words)), terms)
    })
}

/// The cluster of some words, a file of one's own included.
pub fn cluster(on: &str) -> Result<Cluster, Finding> {
    let typed = ClusterText::parse(on)?;
    let device = match typed.device {
        DEVICE_FILE => Device { name: "box".to_string(), ..Device::find("H100")? },
        name => Device::find(name)?,
    };
    typed.on(device)
}

/// The job of these words.
pub fn case(words: &[String], terms: Terms) -> Result<Case, Vec<Finding>> {
    let asked = Asked::parse(words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
    build(asked, terms)
}

/// The job that was asked for, its recipe and cluster looked up.
pub fn build(asked: Asked, terms: Terms) -> Result<Case, Vec<Finding>> {
    let recipe = find(&asked.recipe.recipe)?;
    let cluster = asked.on.as_deref().map(cluster).transpose().map_err(|finding| vec![finding])?;
    Case::new(asked, recipe, cluster, terms)
}
