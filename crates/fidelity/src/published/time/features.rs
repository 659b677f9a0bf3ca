//! The options a row lists in its own words. Each is understood, or the row is refused with the word that was
//! not; what stands in notes is prose, of which only phrases that name an option are read.

mod terms;

use super::super::words::{Clauses, denies, pieces, says, tokens};
use super::engine::Family;
use super::options::notes;
use case::options::{GraphModule, Graphs, GraphsBy};
use case::{Options, words};
use layout::Engine;
use serde_json::Value;
use terms::{STANDING, TERMS, is_passed};

/// What a row lists and notes.
pub(super) struct Features {
    listed: Vec<String>,
    notes: Clauses,
    family: Family,
}

impl Features {
    pub fn of(row: &Value, family: Family) -> Features {
        let mut listed: Vec<String> = Vec::new();
        for piece in pieces(row["features"].as_str().unwrap_or_default()) {
            // `TE CUDA graphs attn,mamba` lists modules behind a comma of its own.
            let is_module = MODULES.iter().any(|(word, _)| tokens(&piece).join(" ") == *word);
            match listed.last_mut().filter(|last| is_module && last.to_ascii_lowercase().contains("graph")) {
                Some(last) => *last += &format!(" {piece}"),
                None => listed.push(piece),
            }
        }
        Features { listed, notes: notes(row), family }
    }

    /// Sets what is said; the first word that is not understood is the refusal. Options of the engine's command line
    /// are read together, as it would: one may need another.
    pub fn set(&self, options: &mut Options) -> Result<(), String> {
        for term in TERMS.iter().filter(|term| term.in_prose) {
            if let Some(is_on) = self.notes.say(&term.phrases().collect::<Vec<_>>()) {
                (term.set)(options, is_on, self.family);
            }
        }
        let mut flags = Vec::new();
        for feature in &self.listed {
            match self.flags(feature) {
                Some(said) => flags.extend(said),
                None => self.read(feature, options)?,
            }
        }
        words::read_priced(Some(Engine::Megatron), &flags, options)
    }

    fn read(&self, feature: &str, options: &mut Options) -> Result<(), String> {
        let mut rest = tokens(feature);
        let clause = rest.clone();
        for term in TERMS {
            // One phrase that is said decides; the shorter ones it contains are gone with it.
            let found = term.phrases().find(|phrase| says(&rest, phrase).is_some());
            let Some(phrase) = found else { continue };
            let is_on = says(&clause, phrase).unwrap_or(true);
            (term.set)(options, is_on, self.family);
            cut(&mut rest, phrase);
        }
        read_graphs(&mut rest, &clause, options);
        let is_known = |word: &String| is_passed(word) || denies(word) || word.parse::<u64>().is_ok();
        match rest.iter().find(|word| !is_known(word)) {
            None => Ok(()),
            Some(word) => Err(format!("`{word}` of feature `{feature}` is not understood")),
        }
    }

    /// Options of Megatron's command line: `overlap-grad-reduce`, `attention-backend=unfused`, `--tp-comm-overlap`; none
    /// where a feature is in the row's own words.
    fn flags(&self, feature: &str) -> Option<Vec<String>> {
        if self.family.engine() != Some(Engine::Megatron) {
            return None;
        }
        if feature.starts_with("--") {
            return Some(feature.split_whitespace().map(str::to_string).collect());
        }
        let (name, value) = feature.split_once('=').unwrap_or((feature, ""));
        let (name, value) = (name.trim().replace('_', "-"), value.trim());
        if STANDING.contains(&(name.as_str(), value)) {
            return Some(Vec::new());
        }
        let bare = format!("--{name}");
        let vocabulary = words::of(self.family.engine());
        // `no-ep-overlap` and `ep_overlap=false` are the row's own words, joined.
        let is_flag = !name.contains(' ') && (vocabulary.has(&bare) || (vocabulary.knows)(&bare).is_some());
        is_flag.then(|| vec![if value.is_empty() { bare } else { format!("{bare}={value}") }])
    }
}

/// Takes a phrase out of tokens.
fn cut(tokens: &mut Vec<String>, phrase: &str) {
    let words: Vec<&str> = phrase.split(' ').collect();
    let at = tokens.windows(words.len()).position(|window| window.iter().zip(&words).all(|(a, b)| a == b));
    if let Some(at) = at {
        tokens.drain(at..at + words.len());
    }
}

/// Modules that graphs are recorded of; longer names stand before those they contain.
const MODULES: [(&str, GraphModule); 6] = [
    ("moe router", GraphModule::MoeRouter),
    ("moe preprocess", GraphModule::MoePreprocess),
    ("attn", GraphModule::Attention),
    ("mlp", GraphModule::Mlp),
    ("mamba", GraphModule::Mamba),
    ("moe", GraphModule::Moe),
];

/// `cuda_graph transformer_engine (attn,moe_router)`, `TE CUDA graphs attn,mamba`, `full-iteration CUDA graphs`:
/// by whom where it is said, by Megatron's own capture where neither that nor modules are.
fn read_graphs(rest: &mut Vec<String>, clause: &[String], options: &mut Options) {
    const NAMES: [&str; 6] = ["cuda graphs", "cuda graph", "cudagraphs", "cudagraph", "cuda graph impl", "graphs"];
    let Some(name) = NAMES.iter().find(|name| says(rest, name).is_some()) else { return };
    let is_on = says(clause, name).unwrap_or(true);
    cut(rest, name);
    let mut modules = Vec::new();
    for (word, module) in MODULES {
        if says(rest, word).is_some() {
            cut(rest, word);
            modules.push(module);
        }
    }
    let whole = ["full iteration", "whole iteration", "full"].iter().find(|word| says(rest, word).is_some());
    let by = match (is_on, whole) {
        (false, _) => GraphsBy::None,
        (true, Some(_)) => GraphsBy::FullIteration,
        (true, None) if says(rest, "transformer engine").or(says(rest, "te")).is_some() => GraphsBy::TransformerEngine,
        (true, None) if modules.is_empty() => GraphsBy::Local,
        (true, None) => GraphsBy::TransformerEngine,
    };
    if let Some(word) = whole {
        cut(rest, word);
    }
    for word in ["local", "scope", "scopes", "impl", "modules"] {
        cut(rest, word);
    }
    options.kernels.graphs = Graphs::by(by).of_modules(modules);
}
