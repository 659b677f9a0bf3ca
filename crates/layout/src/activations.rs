//! What moves while the model runs: every collective with its transpose in backward, where it
//! stands, and what both ends must agree on; and the state contracts of recurrent blocks.
//!
//! Volumes are elements of the tensor that enters the collective on one rank, for one microbatch.
//! [`volume`] adds them up over a step for one rank. Time is not known here.

mod collective;
mod contracts;
mod indexer;
mod recurrent;
mod routed;
mod state;
pub mod volume;

pub use collective::{Collective, Over, Region, Site};
pub use contracts::{StateContract, contracts};
pub(crate) use recurrent::carries_time;
pub use recurrent::{depth_state, trades_heads};
pub use routed::{Dealing, Room, Routed, Routing, slots};

use crate::axis::Axis;
use crate::layout::Layout;
use crate::mesh::Coordinates;
use crate::ownership::OwnershipTable;
use crate::request::Engine;
use recipe::kinds::attention::AttentionKind;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::moe::Moe;
use recipe::{Layer, Mixer, Recipe};

/// One collective and its transpose.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Exchange {
    /// The ranks it runs over.
    pub axis: Over,
    /// Where in the model, in words.
    pub place: String,
    /// What runs in forward.
    pub forward: Collective,
    /// What runs in backward.
    pub backward: Collective,
    /// Elements a rank puts in, for one microbatch and one time through.
    pub elements: u64,
    /// How often it stands in the model (for state: once a step).
    pub count: u64,
    /// What the members must agree on.
    pub agree: &'static str,
    /// What the elements are.
    #[serde(skip)]
    pub holds: Holds,
    /// Where in the model, for those who decide by it.
    #[serde(skip)]
    pub site: Site,
}

/// How wide the elements of an exchange are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Numbers of the run's format.
    Numbers,
    /// Counts and sums of eight bytes, whatever the format.
    Wide,
}

impl Exchange {
    /// Elements the rank at these coordinates puts in, in forward and in backward.
    pub fn put(&self, layout: &Layout, at: &Coordinates) -> [u64; 2] {
        let degree = self.axis.axis().map_or(layout.world, |axis| layout.degree(axis).get());
        let e = self.elements;
        let cp = at.on(Axis::Cp);
        let messages = if cp == 0 || cp + 1 == layout.cp.get() { 1 } else { 2 };
        let forward = match self.forward {
            free if free.is_free() => 0,
            Collective::HandOn => messages * e,
            _ => e,
        };
        let backward = match (self.forward, self.backward) {
            (_, free) if free.is_free() => 0,
            (Collective::AllGather, Collective::ReduceScatter) => e * degree,
            (Collective::ReduceScatter, Collective::AllGather) => e / degree,
            (Collective::HandOn, _) => messages * e,
            _ => e,
        };
        [forward, backward]
    }
}

/// The collectives of a recipe under a layout.
pub fn exchanges(recipe: &Recipe, layout: &Layout, table: &OwnershipTable) -> Vec<Exchange> {
    let mut out = Vec::new();
    let tokens = layout.micro_batch * layout.sequence / layout.cp.get();
    tensor(recipe, layout, tokens, &mut out);
    vocabulary(recipe, layout, tokens, &mut out);
    experts(recipe, layout, &mut out);
    context(recipe, layout, tokens, &mut out);
    let indexers = (0..recipe.depth()).map(|layer| recipe.indexers_of(layer)).sum();
    indexer::exchanges(recipe, layout, indexers, &mut out);
    pipeline(recipe, layout, table, &mut out);
    state::once_a_step(recipe, layout, table, &mut out);
    out
}

/// The collectives inside one block of a mixer, each counted once.
pub fn of_mixer(recipe: &Recipe, layout: &Layout, mixer: Mixer) -> Vec<Exchange> {
    of_block(&block(recipe, mixer), layout)
}

/// A recipe of one block of a mixer, for [`of_block`] to be asked under many layouts.
pub fn block(recipe: &Recipe, mixer: Mixer) -> Recipe {
    let mut block = recipe.clone();
    block.layers = vec![Layer::of(&[mixer])];
    block.features.mtp = None;
    block
}

/// The collectives inside the one block of a recipe.
pub fn of_block(block: &Recipe, layout: &Layout) -> Vec<Exchange> {
    let mut out = Vec::new();
    let tokens = layout.micro_batch * layout.sequence / layout.cp.get();
    tensor(block, layout, tokens, &mut out);
    experts(block, layout, &mut out);
    context(block, layout, tokens, &mut out);
    out
}

/// The collectives where tokens enter and where the loss is taken, prediction heads included.
pub fn of_edges(recipe: &Recipe, layout: &Layout) -> Vec<Exchange> {
    let mut out = Vec::new();
    vocabulary(recipe, layout, layout.micro_batch * layout.sequence / layout.cp.get(), &mut out);
    out
}

fn is_ours(layout: &Layout) -> bool {
    layout.engine == Some(Engine::Shardwright)
}

/// Two exchanges around every block with matrices on the tensor axis.
fn tensor(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    if !layout.tp.splits() {
        return;
    }
    let width = recipe.hidden;
    let mixers = [Mixer::Attention, Mixer::Mlp, Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta, Mixer::Linear];
    for mixer in mixers.into_iter().filter(|m| recipe.uses(*m)) {
        let count = recipe.count_with_suffix(mixer);
        let into = if mixer == Mixer::Attention { attention_input(recipe) } else { width };
        tensor_pair(layout, Region::Mixer(mixer), tokens * into, tokens * width, count, out);
    }
    let shared = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe)).and_then(|m| m.shared.as_ref());
    if shared.is_some() {
        let count = recipe.count_with_suffix(Mixer::Moe);
        tensor_pair(layout, Region::SharedExpert, tokens * width, tokens * width, count, out);
    }
    few_kv_heads(recipe, layout, tokens, out);
    recurrent::attention_norms(recipe, layout, tokens, out);
    recurrent::norms(recipe, layout, tokens, out);
    recurrent::selection(recipe, layout, tokens, out);
    if let Some(mtp) = recipe.features.mtp() {
        prediction_join(layout, tokens, width, mtp.depth, out);
    }
}

/// Both inputs side by side enter a column-parallel projection, whose columns are made whole. Without
/// sequence parallelism every rank knows the whole gradient behind it and takes its columns.
fn prediction_join(layout: &Layout, tokens: u64, width: u64, depth: u64, out: &mut Vec<Exchange>) {
    out.push(into_region(layout, Region::PredictionJoin, 2 * tokens * width, depth));
    out.push(Exchange {
        axis: Over::Tp,
        place: "out of the prediction join: columns made whole".to_string(),
        forward: Collective::AllGather,
        backward: if layout.sp { Collective::ReduceScatter } else { Collective::Slice },
        elements: tokens * width / layout.tp.get(),
        count: depth,
        agree: "column order",
        holds: Holds::Numbers,
        site: Site::Elsewhere,
    });
}

/// Width that is made whole along the sequence before attention's column-parallel projections:
/// the residual stream, or the latents that the up-projections read
/// (`megatron/core/transformer/multi_latent_attention.py`).
fn attention_input(recipe: &Recipe) -> u64 {
    match recipe.attention().map(|a| a.kind) {
        Some(AttentionKind::Mla(mla)) => mla.q_rank.unwrap_or(recipe.hidden) + mla.kv_rank + mla.rope_dim,
        _ => recipe.hidden,
    }
}

/// KV heads below tp: packed rows are cut evenly, so projections are gathered to make heads whole.
fn few_kv_heads(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    let Some(attention) = recipe.attention().filter(|_| recipe.uses(Mixer::Attention)) else { return };
    let AttentionKind::Gqa { kv_heads, head_dim } = attention.kind else { return };
    if kv_heads < layout.tp.get() && layout.engine != Some(Engine::Shardwright) {
        let heads = attention.heads * (1 + u64::from(attention.output_gate)) + 2 * kv_heads;
        out.push(Exchange {
            axis: Over::Tp,
            place: "after the packed QKV projection: heads made whole".to_string(),
            forward: Collective::AllGather,
            backward: Collective::Slice,
            elements: tokens * heads * head_dim / layout.tp.get(),
            count: recipe.count_with_suffix(Mixer::Attention),
            agree: "packing of the groups",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
}

/// The way into a column-parallel projection, and its transpose.
fn into_region(layout: &Layout, region: Region, into: u64, count: u64) -> Exchange {
    let (name, site) = (region.name(), Site::Into(region));
    if layout.sp {
        return Exchange {
            axis: Over::Sp,
            place: format!("into {name}: sequence made whole before the column-parallel projection"),
            forward: Collective::AllGather,
            backward: Collective::ReduceScatter,
            elements: into / layout.tp.get(),
            count,
            agree: "dtype of the norm's output (an fp8 gather needs the same scale on all members)",
            holds: Holds::Numbers,
            site,
        };
    }
    Exchange {
        axis: Over::Tp,
        place: format!("into {name}: gradients of the input"),
        forward: Collective::Identity,
        backward: Collective::AllReduce,
        elements: into,
        count,
        agree: "gradient dtype",
        holds: Holds::Numbers,
        site,
    }
}

/// The way out of a row-parallel projection, and its transpose.
fn out_of_region(layout: &Layout, region: Region, elements: u64, count: u64) -> Exchange {
    Exchange {
        axis: Over::tensor(layout),
        place: format!("out of {}: partial sums of the row-parallel projection", region.name()),
        forward: if layout.sp { Collective::ReduceScatter } else { Collective::AllReduce },
        backward: if layout.sp { Collective::AllGather } else { Collective::Identity },
        elements,
        count,
        agree: if layout.sp {
            "accumulation dtype: sums run in bf16 or fp32, never in fp8"
        } else {
            "accumulation dtype"
        },
        holds: Holds::Numbers,
        site: Site::OutOf(region),
    }
}

fn tensor_pair(layout: &Layout, region: Region, into: u64, elements: u64, count: u64, out: &mut Vec<Exchange>) {
    let pair = [into_region(layout, region, into, count), out_of_region(layout, region, elements, count)];
    // Listed by the pass they run in first.
    let [into, from] = pair;
    out.extend(if layout.sp { [into, from] } else { [from, into] });
}

fn vocabulary(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    if !layout.tp.splits() {
        return;
    }
    // Every prediction depth embeds its own tokens and has a loss of its own.
    let heads = 1 + recipe.features.mtp().map_or(0, |mtp| mtp.depth);
    out.push(Exchange {
        axis: Over::tensor(layout),
        place: "out of the vocabulary-parallel embedding".to_string(),
        forward: if layout.sp { Collective::ReduceScatter } else { Collective::AllReduce },
        backward: if layout.sp { Collective::AllGather } else { Collective::Identity },
        elements: tokens * recipe.hidden,
        count: heads,
        agree: "which rank owns which token row",
        holds: Holds::Numbers,
        site: Site::Elsewhere,
    });
    let into = into_region(layout, Region::Head, tokens * recipe.hidden, heads);
    out.push(if layout.sp {
        let place = "into the output head: sequence made whole".to_string();
        Exchange { place, agree: "dtype of the final norm's output", ..into }
    } else {
        into
    });
    out.push(Exchange {
        axis: Over::Tp,
        place: "vocabulary-parallel cross-entropy: maximum, sum of exponentials, target logit".to_string(),
        forward: Collective::AllReduce,
        backward: Collective::Identity,
        elements: 3 * tokens,
        count: heads,
        agree: "fp32 statistics",
        holds: Holds::Numbers,
        site: Site::Elsewhere,
    });
}

fn experts(recipe: &Recipe, layout: &Layout, out: &mut Vec<Exchange>) {
    let Some(moe) = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe)) else { return };
    let tokens = layout.tokens_per_microbatch_per_rank();
    let width = moe.latent.unwrap_or(recipe.hidden);
    let count = recipe.count_with_suffix(Mixer::Moe);
    if is_ours(layout) {
        expert_counts(moe, layout, count, out);
    }
    if layout.ep.splits() {
        out.push(Exchange {
            axis: Over::Ep,
            place: "before dispatch: tokens each expert will receive".to_string(),
            forward: Collective::AllGatherCounts,
            backward: Collective::None,
            elements: moe.experts,
            count,
            agree: "owner rank of every expert",
            holds: Holds::Wide,
            site: Site::Elsewhere,
        });
        for place in
            ["dispatch: routed tokens to the owners of their experts", "combine: expert outputs back to their tokens"]
        {
            out.push(Exchange {
                axis: Over::Ep,
                place: place.to_string(),
                forward: Collective::AllToAll,
                backward: Collective::AllToAll,
                elements: tokens * moe.top_k * width,
                count,
                agree: "counts are transposes; the exit restores the sequence-sharded view",
                holds: Holds::Numbers,
                site: Site::Elsewhere,
            });
        }
    }
    if layout.etp.splits() {
        let routed = tokens * moe.top_k * width;
        out.push(Exchange {
            axis: Over::Etp,
            place: "into experts: tokens of the expert-tensor group".to_string(),
            forward: Collective::AllGather,
            backward: Collective::ReduceScatter,
            elements: routed,
            count,
            agree: "token order within the group",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
        out.push(Exchange {
            axis: Over::Etp,
            place: "out of experts: partial sums".to_string(),
            forward: Collective::ReduceScatter,
            backward: Collective::AllGather,
            elements: routed * layout.etp.get(),
            count,
            agree: "accumulation dtype",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
}

/// Runs of consecutive tokens that a rank's own tokens may have, which are counted apart.
const RUNS: u64 = 2;

/// Counts this engine exchanges besides those before dispatch: rows of the expert-tensor group are
/// told apart by expert, and the balancing loss and the capacity are a whole sequence's.
fn expert_counts(moe: &Moe, layout: &Layout, count: u64, out: &mut Vec<Exchange>) {
    let counts = |axis, place: &str, elements| Exchange {
        axis,
        place: place.to_string(),
        forward: Collective::AllGatherCounts,
        backward: Collective::None,
        elements,
        count,
        agree: "order of experts",
        holds: Holds::Wide,
        site: Site::Elsewhere,
    };
    if layout.etp.splits() {
        out.push(counts(Over::Etp, "before dispatch: rows of each expert of the expert-tensor group", moe.experts));
    }
    if moe.router.aux_loss.is_none() && moe.capacity_factor.is_none() {
        return;
    }
    let each = RUNS * layout.micro_batch * moe.experts;
    if layout.tp.splits() {
        out.push(counts(Over::Tp, "under the router: tokens of each expert in parts of a sequence", each));
    }
    if layout.cp.splits() {
        let elements = each * layout.tp.get();
        out.push(counts(Over::Cp, "under the router: tokens of each expert in parts of a sequence", elements));
    }
}

fn context(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    if !layout.cp.splits() {
        return;
    }
    let tp = layout.tp.get();
    if let Some(attention) = recipe.attention().filter(|_| recipe.uses(Mixer::Attention)) {
        let per_token = match &attention.kind {
            AttentionKind::Gqa { kv_heads, head_dim } => 2 * kv_heads.div_ceil(tp) * head_dim,
            AttentionKind::Mla(mla) => attention.heads / tp * (mla.qk_dim + mla.rope_dim + mla.v_dim),
        };
        out.push(Exchange {
            axis: Over::Cp,
            place: "under attention: keys and values around the ring".to_string(),
            forward: Collective::Ring,
            backward: Collective::Ring,
            elements: tokens * per_token * (layout.cp.get() - 1),
            count: recipe.count_with_suffix(Mixer::Attention),
            agree: "order of the parts, and fp32 softmax statistics",
            holds: Holds::Numbers,
            site: Site::KeysAndValues,
        });
        if is_ours(layout) {
            out.push(Exchange {
                axis: Over::Cp,
                place: "under attention: gradients of keys and values to their owners".to_string(),
                forward: Collective::None,
                backward: Collective::Ring,
                elements: tokens * per_token * (layout.cp.get() - 1),
                count: recipe.count_with_suffix(Mixer::Attention),
                agree: "who owns which part",
                holds: Holds::Numbers,
                site: Site::Elsewhere,
            });
        }
    }
    if let Some(Mamba::Two(mamba)) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba))
        && trades_heads(mamba, layout)
    {
        let rows = 2 * mamba.inner() + 2 * mamba.groups * mamba.state + mamba.heads;
        head_exchange(
            Mixer::Mamba,
            tokens * rows / tp,
            tokens * mamba.inner() / tp,
            recipe.count_with_suffix(Mixer::Mamba),
            out,
        );
    }
    if let Some(delta) = recipe.gated_delta.as_ref().filter(|_| recipe.uses(Mixer::GatedDelta)) {
        let (keys, values) = (delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim);
        let rows = 2 * keys + 2 * values + 2 * delta.value_heads;
        head_exchange(
            Mixer::GatedDelta,
            tokens * rows / tp,
            tokens * values / tp,
            recipe.count_with_suffix(Mixer::GatedDelta),
            out,
        );
    }
    recurrent::carry(recipe, layout, out);
}

fn head_exchange(mixer: Mixer, into: u64, from: u64, count: u64, out: &mut Vec<Exchange>) {
    let name = mixer.table();
    let exchange = |place: String, elements, site| Exchange {
        axis: Over::Cp,
        place,
        forward: Collective::AllToAll,
        backward: Collective::AllToAll,
        elements,
        count,
        agree: "which heads each rank runs over the whole timeline",
        holds: Holds::Numbers,
        site,
    };
    out.push(exchange(format!("into {name}: time traded for heads"), into, Site::Elsewhere));
    out.push(exchange(format!("out of {name}: heads traded for time"), from, Site::HeadsForTime(mixer)));
}

fn pipeline(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, out: &mut Vec<Exchange>) {
    if layout.pp.splits() {
        let starts = table.stages.chunks.iter().skip(1).map(|chunk| chunk.layers.start);
        let states: Vec<u64> = starts.map(|l| depth_state(recipe, layout, l)).filter(|e| *e > 0).collect();
        out.extend(states.first().map(|elements| Exchange {
            axis: Over::Pp,
            place: "between chunks of depth: recurrent state at its borders".to_string(),
            forward: Collective::Send,
            backward: Collective::SendGradient,
            elements: *elements,
            count: states.len() as u64,
            agree: "order of borders, sequences and heads",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        }));
        out.push(Exchange {
            axis: Over::Pp,
            place: "between chunks of depth: the residual stream".to_string(),
            forward: Collective::Send,
            backward: Collective::SendGradient,
            elements: layout.tokens_per_microbatch_per_rank() * recipe.residual_width(),
            count: layout.chunks() - 1,
            agree: "shape and dtype of the stage boundary, and any recurrent state with it",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
}
