//! What a figure of a run belongs to: compile, precision, overlap, wrapper, optimizer. A throughput or an
//! MFU without them cannot be compared with another's; with them it says which lane it is of.

use crate::lanes;
use case::options::{AttentionKernel, Dispatch, Elementwise, EpOverlap, Options, TpOverlap};
use case::ways::MomentumFormat;
use case::words;
use case::{Case, SparseKernels};
use layout::{Engine, ZeroStage};
use recipe::{Mixer, Optimizer};
use serde::Serialize;
use std::fmt;

/// The lane a figure belongs to, as this job runs it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Header {
    /// The lane's name; the engine's where it has no lane.
    pub lane: &'static str,
    /// What compiles.
    pub compile: &'static str,
    /// What products run in.
    pub precision: String,
    /// What runs beside compute.
    pub overlap: Vec<&'static str>,
    /// What wraps the model, with how state is shared out.
    pub wrapper: String,
    /// What steps it.
    pub optimizer: String,
    /// How tokens reach their experts; none where no block routes.
    pub dispatcher: Option<&'static str>,
    /// The kernel under attention, in the engine's word where it has one. No part of what the model is.
    pub attention: String,
}

impl Header {
    /// Of a job.
    pub fn of(case: &Case) -> Header {
        let (engine, options) = (case.engine(), &case.options);
        let routes = case.recipe.uses(Mixer::Moe);
        Header {
            lane: lanes::of_engine(engine).map_or(engine.name(), |lane| lane.name),
            compile: compile(engine, options),
            precision: precision(options),
            overlap: overlap(case),
            wrapper: wrapper(case),
            optimizer: optimizer(case),
            dispatcher: routes.then_some(match engine {
                Engine::Maxtext | Engine::XlaSpmd => "placed by the compiler",
                _ => options.kernels.dispatch.name(),
            }),
            attention: attention(case),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let overlap =
            if self.overlap.is_empty() { "no overlap".to_string() } else { self.overlap.join("+") + " overlapped" };
        let Header { lane, compile, precision, wrapper, optimizer, .. } = self;
        write!(f, "lane {lane}: {compile}, {precision}, {overlap}, {wrapper}, {optimizer}")
    }
}

/// What products run in, and how what they read is kept where that is another format.
fn precision(options: &Options) -> String {
    let products = options.scaling.map_or(options.format.name(), |scaling| scaling.name());
    match options.ways.base.is_quantised() {
        true => format!("{products} over a base in {}", options.ways.base),
        false => products.to_string(),
    }
}

fn compile(engine: Engine, options: &Options) -> &'static str {
    match (engine, options.kernels.elementwise) {
        (Engine::Maxtext | Engine::XlaSpmd, _) => "compiled by XLA",
        (Engine::Megatron, _) => "not compiled",
        (_, Elementwise::Compiled) => "torch.compile",
        (_, Elementwise::Eager | Elementwise::Fused) => "not compiled",
    }
}

/// What hides under compute, where there is something to hide.
fn overlap(case: &Case) -> Vec<&'static str> {
    let (layout, overlap) = (&case.layout, &case.options.overlap);
    let shares = layout.dense_shards() > 1;
    let tp = match overlap.tp {
        TpOverlap::None => None,
        TpOverlap::Async => Some("tp(async)"),
        TpOverlap::Userbuffers => Some("tp(userbuffers)"),
    };
    let all = [
        (overlap.gradients && shares).then_some("gradients"),
        (overlap.weights && shares && layout.zero != ZeroStage::Zero).then_some("weights"),
        tp.filter(|_| layout.tp.splits()),
        (overlap.ep == EpOverlap::Microbatches).then_some("experts"),
        (overlap.ring && layout.cp.splits()).then_some("cp"),
        (overlap.p2p && layout.vpp.splits()).then_some("p2p"),
    ];
    all.into_iter().flatten().collect()
}

/// What wraps the model, with what stands beside it and how its sequences are packed.
fn wrapper(case: &Case) -> String {
    let (teacher, documents) = (case.options.ways.teacher, case.options.documents);
    let mut text = wrapped(case);
    text.extend(teacher.map(|name| format!(" beside {name}")));
    text.extend(documents.map(|lengths| format!(" over documents of {lengths}")));
    text
}

fn wrapped(case: &Case) -> String {
    let zero = case.layout.zero;
    let text = match (case.engine(), zero) {
        (Engine::Megatron, ZeroStage::Zero) => "Megatron DDP".to_string(),
        (Engine::Megatron, ZeroStage::One) => "Megatron DDP with the distributed optimizer".to_string(),
        (Engine::Megatron, _) => format!("Megatron-FSDP (zero {zero})"),
        (Engine::Fsdp2 | Engine::Torchtitan, _) => format!("FSDP2 (zero {zero})"),
        (Engine::Deepspeed, _) => format!("DeepSpeed ZeRO {zero}"),
        (Engine::Nanotron, _) => format!("nanotron DDP (zero {zero})"),
        (Engine::Maxtext, _) => "JAX SPMD".to_string(),
        (Engine::XlaSpmd, _) => "XLA SPMD".to_string(),
        (Engine::Shardwright, _) => format!("its own runtime (zero {zero})"),
    };
    let options = &case.options;
    let away: Vec<&str> = [(options.offload > 0.0, "state"), (options.offload_params, "weights")]
        .into_iter()
        .filter_map(|(is_on, what)| is_on.then_some(what))
        .collect();
    match (away.as_slice(), options.on_nvme) {
        ([], _) => text,
        (away, true) => format!("{text} with {} on NVMe", away.join(" and ")),
        (away, false) => format!("{text} with {} on the host", away.join(" and ")),
    }
}

fn optimizer(case: &Case) -> String {
    let tensors = case.recipe.tensors();
    let ways = case.options.ways;
    let muon = if ways.momentum == MomentumFormat::Int8 { "Muon in int8" } else { "Muon" };
    let all = [(Optimizer::Muon, muon), (Optimizer::AdamW, ways.elements.title()), (Optimizer::Sgd, "SGD")];
    let used = all.into_iter().filter(|(optimizer, _)| tensors.iter().any(|t| t.optimizer == *optimizer));
    let average = ways.average.then_some("average");
    used.map(|(_, name)| name).chain(average).collect::<Vec<_>>().join("+")
}

fn attention(case: &Case) -> String {
    let words = words::of(case.layout.engine).words.iter();
    match words.filter(|word| word.name == "--attention-backend").map(|word| (word.get)(&case.options)).next() {
        Some(word) => word,
        None => match case.options.kernels.attention {
            AttentionKernel::Unfused => "unfused".to_string(),
            _ => "the engine's own".to_string(),
        },
    }
}

/// What this job runs where its lane had a choice: each with the reason, and how to choose otherwise.
pub fn choices(case: &Case) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    if case.recipe.uses(Mixer::Moe) {
        all.push(("dispatcher", dispatcher(case)));
    }
    if case.engine() == Engine::Megatron {
        all.push(("overlap", megatron_overlap(case)));
    }
    let packages = packages(case);
    if !packages.is_empty() {
        let named: Vec<String> = packages.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        all.push(("packages", format!("besides the engine's own: {}", named.join("; "))));
    }
    all
}

/// What has to be installed besides an engine and what it is installed with, and what asks for it.
pub fn packages(case: &Case) -> Vec<(&'static str, &'static str)> {
    if case.engine() != Engine::Megatron {
        return Vec::new();
    }
    let (recipe, kernels) = (&case.recipe, &case.options.kernels);
    let sparse = recipe.features.dsa().is_some();
    let fused = case::sparse_kernels(recipe, &case.layout, &case.options);
    let travels = recipe.uses(Mixer::Moe);
    let all = [
        (sparse, "fast_hadamard_transform", "sparse attention asserts it"),
        (sparse && fused == SparseKernels::Tilelang, "tilelang", "--dsa-kernel-backend tilelang"),
        (travels && kernels.dispatch == Dispatch::DeepEp, "deep_ep", "the dispatcher's DeepEP"),
        (travels && kernels.dispatch == Dispatch::HybridEp, "deep_ep", "the dispatcher's HybridEP"),
    ];
    all.into_iter().filter_map(|(is_needed, name, why)| is_needed.then_some((name, why))).collect()
}

fn dispatcher(case: &Case) -> String {
    let why = match (case.engine(), case.options.kernels.dispatch) {
        (Engine::Maxtext | Engine::XlaSpmd, _) => {
            return "placed by the compiler, which shards the experts' products".into();
        }
        (_, Dispatch::AllGather) => {
            "allgather: every rank gathers all tokens, which is less only for few experts a group"
        }
        (_, Dispatch::AllToAll) => "alltoall: a token travels once for each of its experts, and nothing else does",
        (_, Dispatch::DeepEp) => "flex (DeepEP, a package of its own): fused kernels send a token once to each node",
        (_, Dispatch::HybridEp) => {
            "flex (HybridEP, a package of its own): fused kernels put tokens in order where they arrive"
        }
    };
    match case.engine() {
        Engine::Megatron => {
            format!("{why}; --engine-args \"--moe-token-dispatcher-type allgather|alltoall|flex\" chooses")
        }
        Engine::Torchtitan => format!("{why}; --engine-args moe_comm_backend=standard|deepep|hybridep chooses"),
        engine => format!("{why}; {engine} is told no other"),
    }
}

/// What Megatron hides and what it does not, with why a default is off.
fn megatron_overlap(case: &Case) -> String {
    let (layout, overlap) = (&case.layout, &case.options.overlap);
    let on = Header::of(case).overlap;
    let mut text = match on.as_slice() {
        [] if overlap.gradients => "nothing travels that could be hidden".to_string(),
        [] => "nothing is on".to_string(),
        on => format!("on: {}", on.join(", ")),
    };
    let mut off = Vec::new();
    if layout.tp.splits() && overlap.tp != TpOverlap::Userbuffers {
        off.push("--tp-comm-overlap (user buffers that no ledger prices)");
    }
    if layout.ep.splits() && overlap.ep == EpOverlap::None {
        off.push("--overlap-moe-expert-parallel-comm (GPTModel only; two microbatches in one layer at once)");
    }
    if !off.is_empty() {
        text += &format!("; off unless asked for by --engine-args: {}", off.join(", "));
    }
    text
}
