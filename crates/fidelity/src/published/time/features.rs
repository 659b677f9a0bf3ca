//! The options a row lists in its own words. Each is understood, or the row is refused with the word that was
//! not; what stands in notes is prose, of which only phrases that name an option are read.

use super::super::words::{Clauses, denies, pieces, says, tokens};
use super::engine::Family;
use super::options::notes;
use case::options::{
    AttentionKernel, CrossEntropy, Dispatch, Elementwise, EpOverlap, GraphModule, GraphsBy, TpOverlap,
};
use case::{Options, words};
use layout::Engine;
use serde_json::Value;

/// What a phrase does, said or denied.
type Set = fn(&mut Options, bool, Family);

/// One option: phrases that name it, and what it sets. Longer phrases stand before those they contain.
struct Term {
    phrases: &'static [&'static str],
    set: Set,
    /// Whether prose that mentions it means that it ran.
    in_prose: bool,
}

const TERMS: &[Term] = &[
    Term {
        phrases: &[
            "ep overlap",
            "ep comm overlap",
            "ep communication overlap",
            "ep a2a overlap",
            "moe a2a overlap",
            "a2a overlap",
            "expert parallel overlap",
            "expert parallel comm overlap",
            "moe comm overlap",
            "overlap moe expert parallel comm",
        ],
        set: |o, is_on, _| {
            o.overlap.ep = if is_on { EpOverlap::Microbatches } else { EpOverlap::None };
            o.overlap.delay_wgrad = is_on;
        },
        in_prose: true,
    },
    Term {
        phrases: &["tp overlap", "tp comm overlap", "tp communication overlap", "userbuffers", "user buffers"],
        set: |o, is_on, family| {
            o.overlap.tp = match (is_on, family) {
                (true, _) => TpOverlap::Userbuffers,
                (false, Family::Megatron) => TpOverlap::Async,
                (false, _) => TpOverlap::None,
            }
        },
        in_prose: true,
    },
    Term {
        phrases: &["communication overlap", "comm overlap"],
        set: |o, is_on, _| {
            if !is_on {
                (o.overlap.gradients, o.overlap.weights, o.overlap.p2p) = (false, false, false);
                (o.overlap.tp, o.overlap.ep) = (TpOverlap::None, EpOverlap::None);
            }
        },
        in_prose: true,
    },
    Term {
        phrases: &["async tp", "asynctp", "asynchronous tp"],
        set: |o, is_on, _| o.overlap.tp = if is_on { TpOverlap::Async } else { TpOverlap::None },
        in_prose: true,
    },
    Term { phrases: &["vanilla tp"], set: |o, _, _| o.overlap.tp = TpOverlap::None, in_prose: true },
    Term {
        phrases: &["hybridep", "hybrid ep"],
        set: |o, is_on, _| o.kernels.dispatch = if is_on { Dispatch::HybridEp } else { Dispatch::AllToAll },
        in_prose: true,
    },
    Term {
        phrases: &["deepep", "deep ep"],
        set: |o, is_on, _| o.kernels.dispatch = if is_on { Dispatch::DeepEp } else { Dispatch::AllToAll },
        in_prose: true,
    },
    Term {
        phrases: &["all to all dispatcher", "alltoall dispatcher", "a2a dispatcher", "all to all dispatch", "alltoall"],
        set: |o, is_on, _| {
            if is_on {
                o.kernels.dispatch = Dispatch::AllToAll;
            }
        },
        in_prose: false,
    },
    Term {
        phrases: &["allgather dispatcher", "all gather dispatcher"],
        set: |o, is_on, _| {
            if is_on {
                o.kernels.dispatch = Dispatch::AllGather;
            }
        },
        in_prose: false,
    },
    // Weights that travel in 8 bits: the volumes are priced in the weights' own format.
    Term { phrases: &["fp8 all gather", "float8 all gather", "fp8 allgather"], set: |_, _, _| {}, in_prose: false },
    Term {
        phrases: &["torch compile", "compile", "compiled", "torch compiled"],
        set: |o, is_on, _| o.kernels.elementwise = if is_on { Elementwise::Compiled } else { Elementwise::Eager },
        in_prose: false,
    },
    Term {
        phrases: &["eager"],
        set: |o, is_on, _| {
            if is_on {
                o.kernels.elementwise = Elementwise::Eager;
            }
        },
        in_prose: false,
    },
    Term {
        phrases: &["unfused attention", "attention backend unfused", "attention unfused"],
        set: |o, is_on, _| {
            if is_on {
                o.kernels.attention = AttentionKernel::Unfused;
            }
        },
        in_prose: true,
    },
    Term {
        phrases: &[
            "flash attention 3",
            "flashattention 3",
            "flashattention3",
            "fa3",
            "cudnn attention",
            "cudnn",
            "fused attention",
        ],
        set: |o, is_on, _| {
            if is_on {
                o.kernels.attention = AttentionKernel::Flash3;
            }
        },
        in_prose: false,
    },
    Term {
        phrases: &[
            "sdpa flash attention",
            "sdpa",
            "torchsdpa",
            "flash attention 2",
            "flashattention 2",
            "flashattention2",
            "fa2",
        ],
        set: |o, is_on, _| {
            if is_on {
                o.kernels.attention = AttentionKernel::Flash2;
            }
        },
        in_prose: false,
    },
    // Which flash kernel is not said: the engine's own, and the second where it had none.
    Term {
        phrases: &["flash attention", "flashattention", "flash attn"],
        set: |o, is_on, _| match is_on {
            true if o.kernels.attention == AttentionKernel::Unfused => o.kernels.attention = AttentionKernel::Flash2,
            true => {}
            false => o.kernels.attention = AttentionKernel::Unfused,
        },
        in_prose: true,
    },
    Term {
        phrases: &[
            "te fused cross entropy",
            "cross entropy fusion",
            "fused cross entropy",
            "cross entropy loss fusion",
        ],
        set: |o, is_on, family| {
            o.kernels.cross_entropy = match (is_on, family) {
                (false, _) => CrossEntropy::Eager,
                (true, Family::Megatron) => CrossEntropy::TransformerEngine,
                (true, _) => CrossEntropy::Native,
            }
        },
        in_prose: true,
    },
    Term { phrases: &["permute fusion"], set: |o, is_on, _| o.kernels.permute_fusion = is_on, in_prose: true },
    // Experts run as grouped products everywhere here.
    Term { phrases: &["grouped gemm", "groupedgemm"], set: |_, _, _| {}, in_prose: false },
];

/// Words beside a term that add nothing to it.
const PASSED: [&str; 26] = [
    "with",
    "and",
    "the",
    "te",
    "transformer",
    "engine",
    "dispatcher",
    "dispatch",
    "backend",
    "1f1b",
    "on",
    "enabled",
    "enable",
    "true",
    "using",
    "kernels",
    "kernel",
    "float8",
    "fp8",
    "linear",
    "precomputed",
    "scale",
    "fused",
    "layers",
    "or",
    "but",
];

/// Flags that rows of Megatron-LM list and that move no step, or say what the reader has anyway.
const STANDING: [(&str, &str); 7] = [
    ("transformer-impl", "transformer_engine"),
    ("moe-grouped-gemm", ""),
    ("no-load-optim", ""),
    ("main-grads-dtype", "fp32"),
    ("num-distributed-optimizer-instances", "1"),
    ("grad-reduce-in-bf16", ""),
    ("use-distributed-optimizer", ""),
];

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

    /// Sets what is said; the first word that is not understood is the refusal.
    pub fn set(&self, options: &mut Options) -> Result<(), String> {
        for term in TERMS.iter().filter(|term| term.in_prose) {
            if let Some(is_on) = self.notes.say(term.phrases) {
                (term.set)(options, is_on, self.family);
            }
        }
        self.listed.iter().try_for_each(|feature| self.read(feature, options))
    }

    fn read(&self, feature: &str, options: &mut Options) -> Result<(), String> {
        if let Some(done) = self.read_flag(feature, options) {
            return done;
        }
        let mut rest = tokens(feature);
        let clause = rest.clone();
        for term in TERMS {
            // One phrase that is said decides; the shorter ones it contains are gone with it.
            let found = term.phrases.iter().find(|phrase| says(&rest, phrase).is_some());
            let Some(phrase) = found else { continue };
            let is_on = says(&clause, phrase).unwrap_or(true);
            (term.set)(options, is_on, self.family);
            cut(&mut rest, phrase);
        }
        read_graphs(&mut rest, &clause, options);
        let is_known = |word: &String| PASSED.contains(&word.as_str()) || denies(word) || word.parse::<u64>().is_ok();
        match rest.iter().find(|word| !is_known(word)) {
            None => Ok(()),
            Some(word) => Err(format!("`{word}` of feature `{feature}` is not understood")),
        }
    }

    /// A feature that is an option of the engine's command line: `overlap-grad-reduce`, `attention-backend=unfused`.
    fn read_flag(&self, feature: &str, options: &mut Options) -> Option<Result<(), String>> {
        let flag = feature.trim_start_matches('-').trim();
        let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
        let name = name.trim().replace('_', "-");
        let engine = self.family.engine().filter(|engine| *engine == Engine::Megatron)?;
        if flag.contains(' ')
            || !name.contains('-')
            || !name.chars().all(|c| c.is_ascii_lowercase() || "-0123456789".contains(c))
        {
            return None;
        }
        if (name.as_str(), value) == ("fp8-param-gather", "") {
            options.fp8_param_gather = true;
            return Some(Ok(()));
        }
        if STANDING.contains(&(name.as_str(), value.trim())) {
            return Some(Ok(()));
        }
        let word = if value.is_empty() { format!("--{name}") } else { format!("--{name}={}", value.trim()) };
        let vocabulary = words::of(Some(engine));
        let bare = format!("--{name}");
        if !vocabulary.has(&bare) && !(vocabulary.knows)(&bare) && !feature.starts_with("--") {
            // `no-ep-overlap`, `ep_overlap=false`: the row's own words, joined.
            return None;
        }
        Some(words::read(Some(engine), &[word], options).map(|_| ()).map_err(|findings| findings[0].message.clone()))
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
    options.kernels.graphs = case::options::Graphs::by(by).of_modules(modules);
}
