//! Serving: what one rank of one stage holds to keep `batch` sequences of `context` tokens alive.
//!
//! Weights by owner, the key/value cache through an explicit attention-layer map, the
//! recurrent-state pool apart from it, and a modelled workspace. Batch is that of one
//! data-parallel replica, and every sequence is priced at full context.
//!
//! What is served is what the recipe has in force: with multi-token prediction on, its depths are
//! loaded, own cache slots and draft. Nothing here knows a device: the context, communicators,
//! captured graphs and the allocator's rounding are listed as unmodelled, not priced at zero.

mod batch;
mod cache;
mod map;
mod state;
#[cfg(test)]
mod tests;
mod weights;
mod workspace;

pub use batch::LargestBatch;
pub use cache::CacheComparison;
pub use map::{AttentionLayerMap, AttentionSlot};

use crate::routing::RoutingInput;
use cache::TokenElements;
use diag::{Blame, Finding};
use layout::{Layout, OwnershipTable};
use recipe::{Dtype, Recipe};
use serde::Serialize;
use state::StateElements;
use units::{Basis, Bytes};
use weights::Weights;

/// Sequences we agree to price.
pub const MOST_BATCH: u64 = 1 << 32;

/// What the total does not hold, and a budget must be lessened by.
pub const UNMODELLED: &[&str] = &[
    "device context and libraries",
    "communicator buffers",
    "captured graphs",
    "kernel workspaces, the sparse indexer's scores among them",
    "block tables and rotary tables",
    "allocator rounding",
];

/// How the key/value cache is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Substrate {
    /// One run of slots a sequence and layer.
    Contiguous,
    /// Blocks of a fixed number of tokens.
    Paged,
}

/// What is to be served, and in which formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeRequest {
    /// Sequences on one replica.
    pub batch: u64,
    /// Tokens each may grow to.
    pub context: u64,
    /// How the cache is allocated.
    pub substrate: Substrate,
    /// Tokens of a block, for paging and for the comparison with it.
    pub block: u64,
    /// Format of keys and values.
    pub cache: Dtype,
    /// Format of recurrent states.
    pub state: Dtype,
    /// Format of what convolutions and trapezoidal steps look back on.
    pub tail: Dtype,
    /// Tokens of a prefill step.
    pub prefill_chunk: u64,
}

impl ServeRequest {
    /// What servers do unless told otherwise: pages of 16 tokens, a bf16 cache, fp32 recurrent
    /// states, bf16 tails, prefill in steps of 8192 tokens.
    pub fn usual(batch: u64, context: u64) -> ServeRequest {
        ServeRequest {
            batch,
            context,
            substrate: Substrate::Paged,
            block: 16,
            cache: Dtype::Bf16,
            state: Dtype::Fp32,
            tail: Dtype::Bf16,
            prefill_chunk: 8192,
        }
    }

    /// Every size that is no size.
    pub fn check(&self) -> Vec<Finding> {
        let sizes = [
            ("batch", self.batch, MOST_BATCH),
            ("context", self.context, recipe::limits::SEQUENCE),
            ("block", self.block, recipe::limits::SEQUENCE),
            ("prefill-chunk", self.prefill_chunk, recipe::limits::SEQUENCE),
        ];
        let refuse = |(key, value, most): (&'static str, u64, u64)| {
            let message = format!("`--{key} {value}` is outside 1 to {most}");
            (!(1..=most).contains(&value)).then(|| Finding::error("serve/size", Blame::Usage, key, message))
        };
        sizes.into_iter().filter_map(refuse).collect()
    }
}

/// A line of the serving estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Item {
    /// Weights that no axis but depth cuts.
    ReplicatedWeights,
    /// Weights that the tensor axis cuts.
    TensorWeights,
    /// Routed experts.
    ExpertWeights,
    /// Keys and values, or latents.
    KvCache,
    /// Keys of the sparse indexer.
    IndexKeys,
    /// States of recurrent blocks.
    RecurrentState,
    /// What convolutions and trapezoidal steps look back on.
    RecurrentTail,
    /// Routing scratch of one expert layer.
    Routing,
    /// Live tensors of the widest block.
    Workspace,
    /// Logits of the tokens being sampled.
    Logits,
}

impl Item {
    /// What it is called in a report.
    pub fn name(self) -> &'static str {
        match self {
            Item::ReplicatedWeights => "replicated weights",
            Item::TensorWeights => "tensor-parallel weights",
            Item::ExpertWeights => "expert-parallel weights",
            Item::KvCache => "kv cache",
            Item::IndexKeys => "indexer keys",
            Item::RecurrentState => "recurrent-state pool",
            Item::RecurrentTail => "recurrent tails",
            Item::Routing => "routing scratch",
            Item::Workspace => "workspace",
            Item::Logits => "logits",
        }
    }

    /// Where the number comes from.
    pub fn basis(self) -> Basis {
        match self {
            Item::Routing => Basis::Modelled("balanced dropless routing of one step, one layer at a time"),
            Item::Workspace => Basis::Modelled("all projections of the widest block live at once"),
            Item::Logits => Basis::Modelled("logits gathered over the vocabulary in bf16, sampled in fp32"),
            _ => Basis::Counted,
        }
    }

    /// What makes it grow.
    pub fn scales_with(self) -> &'static str {
        match self {
            Item::ReplicatedWeights => "width, layers of the stage, weight format",
            Item::TensorWeights => "width, vocabulary, layers of the stage over tp, weight format",
            Item::ExpertWeights => "experts over ep, expert width over etp, expert layers of the stage, weight format",
            Item::KvCache => {
                "batch, context over cp, attention layers of the stage, KV heads over tp (MLA: the latent), cache format"
            }
            Item::IndexKeys => "batch, context over cp, attention layers with an indexer, cache format",
            Item::RecurrentState => "batch, recurrent layers of the stage, heads over tp, state size, state format",
            Item::RecurrentTail => "batch, recurrent layers of the stage, channels over tp, taps, tail format",
            Item::Routing => "tokens of a step over tp, top_k, etp, width",
            Item::Workspace => "tokens of a step, hidden width, the widest block over tp",
            Item::Logits => "batch, prediction depths, vocabulary",
        }
    }

    /// What leaves it alone.
    pub fn ignores(self) -> &'static str {
        match self {
            Item::ReplicatedWeights => "tp, ep, dp, cp, batch, context",
            Item::TensorWeights => "ep, dp, cp, batch, context",
            Item::ExpertWeights => "tp, dp, cp, batch, context, top_k",
            Item::KvCache => "depth without attention, query heads, experts, tp beyond the KV heads (MLA: all of tp)",
            Item::IndexKeys => "tp, query heads, KV heads",
            Item::RecurrentState | Item::RecurrentTail => "context, cp, attention layers, experts",
            Item::Routing => "context, depth, tokens' real choices",
            Item::Workspace => "context, depth, weight format",
            Item::Logits => "context, depth, prefill chunk, tp",
        }
    }
}

/// One line: bytes, and what is to be said of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Which.
    pub item: Item,
    /// How large.
    pub bytes: Bytes,
    /// Where the number comes from.
    pub basis: Basis,
    /// What makes it grow.
    pub scales_with: &'static str,
    /// What leaves it alone.
    pub ignores: &'static str,
}

impl Line {
    fn new(item: Item, bytes: Bytes) -> Line {
        Line { item, bytes, basis: item.basis(), scales_with: item.scales_with(), ignores: item.ignores() }
    }
}

/// What one rank holds while serving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServingPrice {
    /// Every line, also those of nothing, in the order of [`Item`].
    pub lines: Vec<Line>,
    /// The lines together. It leaves out what `unmodelled` lists.
    pub total: Bytes,
    /// Contiguous and paged cache side by side.
    pub cache: CacheComparison,
    /// What the total does not hold.
    pub unmodelled: &'static [&'static str],
}

impl ServingPrice {
    /// Bytes of a line.
    pub fn of(&self, item: Item) -> Bytes {
        self.lines.iter().find(|line| line.item == item).map_or(Bytes(0), |line| line.bytes)
    }
}

/// One rank of one stage, ready to be priced at any batch and context.
#[derive(Clone, Debug)]
pub struct Serving {
    weights: Weights,
    map: AttentionLayerMap,
    token: TokenElements,
    states: StateElements,
    /// Routing of one token; scaled to a step's.
    routing: Option<RoutingInput>,
    tp: u64,
    cp: u64,
    workspace_bytes_per_token: u64,
    /// Padded vocabulary, where the head is.
    logits: Option<u64>,
    /// Tokens a sequence puts into a decode step: one, and one a prediction depth.
    decoded: u64,
}

impl Serving {
    /// Looks at one stage of a recipe under a layout that legality accepts.
    pub fn new(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, stage: usize) -> Result<Serving, Finding> {
        let stages = &table.stages;
        if stage >= stages.by_stage.len() {
            let message = format!("there is no stage {stage}: pp is {}", stages.by_stage.len());
            return Err(Finding::error("serve/stage", Blame::Usage, "stage", message));
        }
        if recipe.features.depths().is_some() {
            let message = "layers that take some tokens choose among whole sequences, which a server does not have";
            let finding = Finding::error("serve/mod", Blame::Recipe, "features.mod", message);
            return Err(finding.hint("--without mod serves a model whose layers take all tokens"));
        }
        if recipe.shared.is_some() {
            let message = "caches of a block that several layers share are not priced: every use has keys of its own";
            let finding = Finding::error("serve/shared", Blame::Missing, "shared", message);
            return Err(finding.hint("without --serve its training is priced"));
        }
        let held = map::held_layers(recipe, stages, stage);
        let has_head = map::holds_last_chunk(stages, stage);
        let width = workspace::widest_block(recipe, layout, table, &held);
        Ok(Serving {
            weights: Weights::new(layout, table, stage)?,
            map: AttentionLayerMap::new(recipe, stages, stage),
            token: TokenElements::new(recipe, layout),
            states: StateElements::new(recipe, layout, table, stage, &held),
            routing: workspace::routing(recipe, layout, &held),
            tp: layout.tp.get(),
            cp: layout.cp.get(),
            workspace_bytes_per_token: width * workspace::activation_bytes(recipe),
            logits: has_head.then(|| layout.padded_vocab(recipe.vocab)),
            decoded: 1 + recipe.features.mtp().map_or(0, |mtp| mtp.depth),
        })
    }

    /// Which layers of the stage own cache slots.
    pub fn map(&self) -> &AttentionLayerMap {
        &self.map
    }

    /// Every line at a batch and context.
    pub fn price(&self, request: &ServeRequest) -> Result<ServingPrice, Vec<Finding>> {
        let findings = request.check();
        if !findings.is_empty() {
            return Err(findings);
        }
        self.priced(request).map_err(|finding| vec![finding])
    }

    fn priced(&self, request: &ServeRequest) -> Result<ServingPrice, Finding> {
        let batch = u128::from(request.batch);
        let (keys_values, index) = cache::bytes(&self.map, self.token, request, self.cp)?;
        let state = countable(batch * stored(self.states.state, request.state))?;
        let tail = countable(batch * stored(self.states.tail, request.tail))?;
        let decoded = request.batch * self.decoded;
        let tokens = request.prefill_chunk.div_ceil(self.cp).max(decoded);
        // Gathered in bf16 and copied to fp32.
        let logits = u128::from(decoded) * u128::from(self.logits.unwrap_or(0)) * 6;
        let lines = vec![
            Line::new(Item::ReplicatedWeights, self.weights.replicated),
            Line::new(Item::TensorWeights, self.weights.tensor),
            Line::new(Item::ExpertWeights, self.weights.expert),
            Line::new(Item::KvCache, keys_values),
            Line::new(Item::IndexKeys, index),
            Line::new(Item::RecurrentState, state),
            Line::new(Item::RecurrentTail, tail),
            Line::new(Item::Routing, self.routing_bytes(tokens)?),
            Line::new(Item::Workspace, countable(u128::from(tokens) * u128::from(self.workspace_bytes_per_token))?),
            Line::new(Item::Logits, countable(logits)?),
        ];
        let total = countable(lines.iter().map(|line| u128::from(line.bytes.0)).sum())?;
        let cache = cache::compare(&self.map, self.token, request, self.cp)?;
        Ok(ServingPrice { lines, total, cache, unmodelled: UNMODELLED })
    }

    fn routing_bytes(&self, tokens: u64) -> Result<Bytes, Finding> {
        let Some(one) = self.routing else { return Ok(Bytes(0)) };
        let step = RoutingInput { tokens_per_rank: tokens.div_ceil(self.tp), ..one };
        step.scratch().map(|scratch| scratch.total).ok_or_else(uncountable)
    }
}

/// Bytes of elements in a format. Four-bit formats carry a byte of scale for every 16 elements;
/// the scales of eight-bit ones are a few bytes a tensor and left out.
fn stored(elements: u128, dtype: Dtype) -> u128 {
    let scales = if dtype == Dtype::Nvfp4 { elements.div_ceil(16) } else { 0 };
    (elements * u128::from(dtype.bits())).div_ceil(8) + scales
}

fn countable(bytes: u128) -> Result<Bytes, Finding> {
    u64::try_from(bytes).map(Bytes).map_err(|_| uncountable())
}

fn uncountable() -> Finding {
    Finding::error("serve/size", Blame::Usage, "serve", "the sizes multiply to more bytes than can be counted")
}
