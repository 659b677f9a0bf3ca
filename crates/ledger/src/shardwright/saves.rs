//! What the runtime keeps between forward and backward, as names and shapes that follow from a
//! layout. It is said here once: the ledger prices it, and a run that keeps anything else panics.

use super::chunk::mixers;
use super::local::Local;
use layout::activations::{Room, Routed, trades_heads};
use layout::request::RecomputeModule;
use layout::{Layout, OwnershipTable, Recompute};
use recipe::kinds::attention::{AttentionKind, QkNorm};
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba::Mamba;
use recipe::{Layer, Mixer, Recipe};

/// Tokens between kept states of M2RNN, as the reference's kernels keep them (`m2rnn_triton.py`).
const M2RNN_CHUNK: usize = 64;
/// Tokens between kept states of a gated delta net, as Megatron-Core's reference scans them.
pub const DELTA_CHUNK: usize = 64;

/// Tokens between kept states of a Mamba-1 scan: the reference's kernel keeps none and runs whole
/// sequences again, which here would be as long as the sequence.
pub const MAMBA1_CHUNK: usize = 64;

/// Sizes a declaration may depend on: all follow from the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences of a microbatch.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Tokens of a microbatch inside tensor-parallel regions.
    pub tokens: usize,
    /// Tokens of a microbatch between them.
    pub shard: usize,
    /// Context-parallel degree.
    pub cp: usize,
}

impl Sizes {
    /// The sizes of a layout.
    pub fn of(layout: &Layout) -> Sizes {
        let (sequences, sequence) = (layout.micro_batch as usize, layout.sequence as usize);
        let cp = layout.cp.get() as usize;
        let shard = layout.tokens_per_microbatch_per_rank() as usize;
        Sizes { sequences, sequence, tokens: sequences * sequence / cp, shard, cp }
    }

    /// Positions of each contiguous part of the timeline that a rank holds.
    pub fn spans(&self) -> Vec<usize> {
        if self.cp == 1 { vec![self.sequence] } else { vec![self.sequence / (2 * self.cp); 2] }
    }
}

/// How many rows something has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Exactly these.
    Fixed(usize),
    /// As many as routing sends here: these as the prediction takes routing to be.
    Routed(usize),
}

/// One thing a block keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Save {
    /// What it is.
    pub name: &'static str,
    /// Its rows.
    pub rows: Rows,
    /// Its columns.
    pub cols: usize,
    /// What its elements are.
    pub holds: Holds,
}

/// What the elements of something kept are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Numbers of the run's format.
    Reals,
    /// Indices and counts of eight bytes.
    Indices,
}

impl Save {
    /// Something of a fixed shape.
    pub fn new(name: &'static str, rows: usize, cols: usize) -> Save {
        Save { name, rows: Rows::Fixed(rows), cols, holds: Holds::Reals }
    }

    /// Something with a row for each token routed here.
    pub fn routed(name: &'static str, balanced: usize, cols: usize) -> Save {
        Save { name, rows: Rows::Routed(balanced), cols, holds: Holds::Reals }
    }

    /// Indices that say where rows go.
    pub fn indices(name: &'static str, balanced: usize) -> Save {
        Save { name, rows: Rows::Routed(balanced), cols: 1, holds: Holds::Indices }
    }

    /// Elements, as the prediction takes routing to be.
    pub fn elements(&self) -> u64 {
        let (Rows::Fixed(rows) | Rows::Routed(rows)) = self.rows;
        (rows * self.cols) as u64
    }

    /// Bytes, when a number has `bytes_each`.
    pub fn bytes(&self, bytes_each: u64) -> u64 {
        match self.holds {
            Holds::Reals => self.elements() * bytes_each,
            Holds::Indices => self.elements() * 8,
        }
    }
}

/// Bytes of a declaration.
pub fn bytes(saves: &[Save], bytes_each: u64) -> u64 {
    saves.iter().map(|s| s.bytes(bytes_each)).sum()
}

/// What stands before a block's mixers: the norm's input.
pub fn norm_input(recipe: &Recipe, sizes: &Sizes) -> Save {
    Save::new("norm input", sizes.shard, recipe.hidden as usize)
}

/// What the head keeps, behind the final norm's input.
pub fn head(recipe: &Recipe, layout: &Layout, sizes: &Sizes) -> Vec<Save> {
    let rows = layout.padded_vocab(recipe.vocab) / layout.tp.get();
    vec![
        Save::new("head input", sizes.tokens, recipe.hidden as usize),
        Save::new("shares", sizes.tokens, rows as usize),
    ]
}

/// What a prediction depth keeps around its stack.
pub fn prediction(recipe: &Recipe, sizes: &Sizes) -> Vec<Save> {
    let hidden = recipe.hidden as usize;
    vec![
        Save::new("mtp hidden", sizes.shard, hidden),
        Save::new("mtp embedding", sizes.shard, hidden),
        Save::new("mtp joined", sizes.tokens, 2 * hidden),
        Save::new("mtp final norm input", sizes.shard, hidden),
    ]
}

/// The states a scan keeps: at the borders of chunks, over these stretches of time.
fn states(sizes: &Sizes, spans: &[usize], chunk: usize, heads: usize, state: usize) -> Save {
    let chunks: usize = spans.iter().map(|len| len.div_ceil(chunk)).sum();
    Save::new("states", chunks * sizes.sequences * heads, state)
}

/// What the mixer at a path keeps, routed rows as balanced routing deals them.
pub fn of_mixer(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, mixer: Mixer, path: &str) -> Vec<Save> {
    of_routed(recipe, layout, table, mixer, path, Routed::balanced(recipe, layout))
}

/// The same, with the rows that routing dealt.
pub(super) fn of_routed(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    mixer: Mixer,
    path: &str,
    routed: Routed,
) -> Vec<Save> {
    let local = Local { layout, table, path };
    let sizes = Sizes::of(layout);
    let hidden = recipe.hidden as usize;
    match mixer {
        Mixer::Attention => {
            let mut saves = attention(recipe, &local, &sizes);
            saves.extend(indexer(recipe, &local, &sizes));
            saves.extend(norm_sums(recipe, &local, &sizes));
            saves
        }
        Mixer::Mlp => feed_forward(["input", "packed"], &sizes, hidden, local.rows("fc1.weight")),
        Mixer::Moe => experts(recipe, routed, &local, &sizes),
        Mixer::Mamba => mamba(recipe, &local, &sizes),
        Mixer::Recurrent => recurrent(recipe, &local, &sizes),
        Mixer::GatedDelta => gated_delta(recipe, &local, &sizes),
        // Refused before (`choice.rs`).
        Mixer::Linear | Mixer::Shared => Vec::new(),
    }
}

/// What an indexer keeps: keys of all tokens, and the choice of every query.
fn indexer(recipe: &Recipe, local: &Local, sizes: &Sizes) -> Vec<Save> {
    let Some(dsa) = recipe.features.dsa().filter(|_| local.has("indexer.wq.weight")) else { return Vec::new() };
    let top_k = (dsa.top_k as usize).min(sizes.sequence);
    vec![
        Save::new("index keys", sizes.sequences * sizes.sequence, dsa.head_dim as usize),
        Save::indices("chosen", sizes.tokens * top_k),
    ]
}

/// Sums that norms over all heads together need of a token: of squares, and under LayerNorm of numbers.
fn norm_sums(recipe: &Recipe, local: &Local, sizes: &Sizes) -> Option<Save> {
    let is_whole = recipe.attention().is_some_and(|a| a.qk_norm == QkNorm::Full);
    let each = 2 * (1 + usize::from(local.has("q_norm.bias")));
    is_whole.then(|| Save::new("norm sums", sizes.tokens, each))
}

fn attention(recipe: &Recipe, local: &Local, sizes: &Sizes) -> Vec<Save> {
    let (tokens, hidden, out) = (sizes.tokens, recipe.hidden as usize, local.cols("out.weight"));
    match recipe.attention().map(|a| a.kind) {
        Some(AttentionKind::Gqa { head_dim, .. }) => vec![
            Save::new("input", tokens, hidden),
            Save::new("projected", tokens, local.rows("qkv.weight")),
            Save::new("heads out", tokens, out),
            Save::new("statistics", tokens, out / head_dim as usize),
        ],
        Some(AttentionKind::Mla(mla)) => {
            let latent = (mla.kv_rank + mla.rope_dim) as usize;
            let query = mla.q_rank.unwrap_or(recipe.hidden) as usize;
            let mut saves = vec![
                Save::new("input", sizes.shard, hidden),
                Save::new("kv latent", sizes.shard, latent),
                Save::new("whole latents", tokens, query + latent),
                Save::new("heads out", tokens, out),
                Save::new("statistics", tokens, out / mla.v_dim as usize),
            ];
            saves.extend(mla.q_rank.map(|_| Save::new("q latent", sizes.shard, query)));
            saves
        }
        None => Vec::new(),
    }
}

fn feed_forward([input, packed]: [&'static str; 2], sizes: &Sizes, hidden: usize, width: usize) -> Vec<Save> {
    vec![Save::new(input, sizes.tokens, hidden), Save::new(packed, sizes.tokens, width)]
}

/// Indices that say where tokens went: the choices, where counted the tokens of each expert in each
/// sequence, and the order of the rows that came.
pub fn routing_indices(moe: &recipe::kinds::moe::Moe, sizes: &Sizes, came: usize) -> usize {
    let is_counted = moe.router.aux_loss.is_some() || moe.capacity_factor.is_some();
    let counts = if is_counted { sizes.sequences * moe.experts as usize } else { 0 };
    sizes.shard * moe.top_k as usize + counts + came
}

fn experts(recipe: &Recipe, routed: Routed, local: &Local, sizes: &Sizes) -> Vec<Save> {
    let Some(moe) = &recipe.moe else { return Vec::new() };
    let (hidden, top_k) = (recipe.hidden as usize, moe.top_k as usize);
    let width = moe.latent.unwrap_or(recipe.hidden) as usize;
    let came = routed.came as usize;
    // With a capacity factor the two buffers of the exchange have its room, whatever came.
    let (sent, received) = match Room::new(moe, local.layout) {
        Some(room) => (room.sent as usize, room.came as usize),
        None => (routed.sent as usize, came),
    };
    let mut saves = vec![
        Save::new("input", sizes.shard, hidden),
        Save::new("scores", sizes.shard, moe.experts as usize),
        Save::new("weights", sizes.shard, top_k),
        Save::indices("routing", routing_indices(moe, sizes, came)),
        Save::routed("expert outputs", sent, width),
        Save::routed("dispatched", received, width),
        Save::routed("dispatched packed", came, local.dim("experts.fc1.weight", 1)),
    ];
    saves.extend(moe.latent.map(|_| Save::new("latent mixed", sizes.shard, width)));
    if moe.shared.is_some() {
        let width = local.rows("shared.fc1.weight");
        saves.extend(feed_forward(["shared input", "shared packed"], sizes, hidden, width));
        let has_gate = local.has("shared.gate.weight");
        saves.extend(has_gate.then(|| Save::new("shared output", sizes.shard, hidden)));
    }
    saves
}

fn mamba(recipe: &Recipe, local: &Local, sizes: &Sizes) -> Vec<Save> {
    let (tokens, hidden, inner) = (sizes.tokens, recipe.hidden as usize, local.cols("out_proj.weight"));
    match &recipe.mamba {
        Some(Mamba::One(mamba)) => vec![
            Save::new("input", tokens, hidden),
            Save::new("projected", tokens, local.rows("in_proj.weight")),
            Save::new("selected", tokens, local.rows("x_proj.weight")),
            states(sizes, &[sizes.sequence], MAMBA1_CHUNK, inner, mamba.state as usize),
            Save::new("scanned", tokens, inner),
        ],
        Some(Mamba::Two(mamba)) => {
            // If heads divide over cp, each rank scans the whole sequence for 1/cp of the heads;
            // otherwise it scans its own span for all heads.
            let trades = trades_heads(mamba, local.layout);
            let (cp, spans) = if trades { (sizes.cp, vec![sizes.sequence]) } else { (1, sizes.spans()) };
            let (head, state) = (mamba.head_dim as usize, mamba.state as usize);
            let mut saves = vec![
                Save::new("input", tokens, hidden),
                Save::new("projected", tokens * cp, local.rows("in_proj.weight") / cp),
                states(sizes, &spans, mamba.chunk as usize, inner / head / cp, head * state),
                Save::new("scanned", tokens * cp, inner / cp),
                Save::new("normed", tokens, inner),
            ];
            let tails = (mamba.conv as usize).saturating_sub(1) * sizes.sequences * spans.len();
            saves.extend((!trades).then(|| Save::new("tails", tails, local.rows("conv.weight"))));
            saves
        }
        Some(Mamba::Three(mamba)) => {
            let (head, state, angles) = (mamba.head_dim as usize, mamba.state as usize, mamba.angles as usize);
            let cell = head * state + angles + state + head;
            vec![
                Save::new("input", tokens, hidden),
                Save::new("projected", tokens, local.rows("in_proj.weight")),
                Save::new("angle rates", tokens, angles),
                states(sizes, &sizes.spans(), mamba.chunk as usize, inner / head, cell),
                Save::new("scanned", tokens, inner),
            ]
        }
        None => Vec::new(),
    }
}

/// What of a mixer's declaration does not stay until backward because a module that makes it is
/// computed again. Activations inside experts and latent attention's up-projections always are, so
/// that naming them changes nothing.
pub fn dropped(recompute: &Recompute, mixer: Mixer) -> Vec<&'static str> {
    use RecomputeModule::{CoreAttn, GdnNormOut, Layernorm, SharedExperts};
    let mut names = Vec::new();
    let mut drop = |module, of: Option<Mixer>, what: &[&'static str]| {
        if recompute.names(module) && of.is_none_or(|of| of == mixer) {
            names.extend(what.iter().filter(|name| !names.contains(*name)).copied().collect::<Vec<_>>());
        }
    };
    drop(Layernorm, None, &["input"]);
    drop(Layernorm, Some(Mixer::Moe), &["shared input"]);
    drop(SharedExperts, Some(Mixer::Moe), &["shared input", "shared packed", "shared output"]);
    drop(CoreAttn, Some(Mixer::Attention), &["heads out", "statistics"]);
    drop(GdnNormOut, Some(Mixer::GatedDelta), &["gated"]);
    names
}

/// Tokens between kept states of M2RNN: where state runs up the depth, its borders.
pub fn m2rnn_chunk(kind: &M2rnn) -> usize {
    kind.depth_carry.map_or(M2RNN_CHUNK, |every| every as usize)
}

/// The state that enters a mixer from the R block below, which is kept where the mixer is computed
/// again; as many numbers as the states it keeps itself.
pub fn carried(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, mixer: Mixer, path: &str) -> Option<Save> {
    if !Link::of(recipe, path).takes {
        return None;
    }
    let states = of_mixer(recipe, layout, table, mixer, path).into_iter().find(|s| s.name == "states");
    states.map(|states| Save { name: "carried", ..states })
}

/// What an R block has to do with those below and above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// State enters from the R block below.
    pub takes: bool,
    /// State goes on to the R block above.
    pub gives: bool,
}

impl Link {
    /// Of the mixer at a path. A prediction suffix has none.
    pub fn of(recipe: &Recipe, path: &str) -> Link {
        if recipe.recurrent.as_ref().is_none_or(|r| r.depth_carry.is_none()) {
            return Link::default();
        }
        let number = path.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let Some((number, layer)) = number.and_then(|at| Some((at, recipe.layers.get(at)?))) else {
            return Link::default();
        };
        let has_one = |layer: &Layer| layer.mixers().any(|mixer| mixer == Mixer::Recurrent);
        let own: Vec<_> = mixers(layer, &format!("layers.{number}")).into_iter().flatten().collect();
        let own: Vec<_> = own.iter().filter(|(mixer, _)| *mixer == Mixer::Recurrent).collect();
        match own.iter().position(|(_, p)| p == path) {
            Some(at) => Link {
                takes: at > 0 || recipe.layers[..number].iter().rev().any(has_one),
                gives: at + 1 < own.len() || recipe.layers[number + 1..].iter().any(has_one),
            },
            None => Link::default(),
        }
    }
}

fn recurrent(recipe: &Recipe, local: &Local, sizes: &Sizes) -> Vec<Save> {
    let Some(kind) = &recipe.recurrent else { return Vec::new() };
    let (tokens, inner) = (sizes.tokens, local.cols("out_proj.weight"));
    let (key, value, spans) = (kind.key_dim as usize, kind.value_dim as usize, sizes.spans());
    let tails = (kind.conv as usize - 1) * sizes.sequences * spans.len();
    vec![
        Save::new("input", tokens, recipe.hidden as usize),
        Save::new("projected", tokens, local.rows("in_proj.weight")),
        Save::new("tails", tails, local.rows("conv.weight")),
        states(sizes, &spans, m2rnn_chunk(kind), inner / value, key * value),
        Save::new("scanned", tokens, inner),
        Save::new("inverse", tokens, 1),
    ]
}

fn gated_delta(recipe: &Recipe, local: &Local, sizes: &Sizes) -> Vec<Save> {
    let Some(kind) = &recipe.gated_delta else { return Vec::new() };
    let (rows, cp, inner) = (sizes.tokens * sizes.cp, sizes.cp, local.cols("out_proj.weight"));
    let (key, value) = (kind.key_dim as usize, kind.value_dim as usize);
    vec![
        Save::new("input", sizes.tokens, recipe.hidden as usize),
        Save::new("projected", rows, local.rows("in_proj.weight") / cp),
        states(sizes, &[sizes.sequence], DELTA_CHUNK, inner / value / cp, key * value),
        Save::new("scanned", rows, inner / cp),
        Save::new("gated", sizes.tokens, inner),
    ]
}
