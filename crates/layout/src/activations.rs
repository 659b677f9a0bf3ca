//! What moves while the model runs: every collective with its transpose in backward, where it
//! stands, and what both ends must agree on; and the state contracts of recurrent blocks.
//!
//! Volumes are elements of the tensor that enters the collective on one rank, for one microbatch.
//! Bytes and time are not known here.

use crate::axis::Axis;
use crate::layout::Layout;
use crate::ownership::{OwnershipTable, Row};
use crate::request::{Engine, ZeroStage};
use recipe::kinds::attention::AttentionKind;
use recipe::kinds::mamba::Mamba;
use recipe::{Layer, Mixer, Recipe};

/// One collective and its transpose.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Exchange {
    /// The axis its group lies on; `sp` names the pair on the tensor axis.
    pub axis: &'static str,
    /// Where in the model.
    pub place: String,
    /// What runs in forward.
    pub forward: &'static str,
    /// What runs in backward.
    pub backward: &'static str,
    /// Elements a rank puts in, for one microbatch and one time through.
    pub elements: u64,
    /// How often it stands in the model (for state: once a step).
    pub count: u64,
    /// What the members must agree on.
    pub agree: &'static str,
}

/// The collectives of a recipe under a layout.
pub fn exchanges(recipe: &Recipe, layout: &Layout, table: &OwnershipTable) -> Vec<Exchange> {
    let mut out = Vec::new();
    let tokens = layout.micro_batch * layout.sequence / layout.cp.get();
    tensor(recipe, layout, tokens, &mut out);
    vocabulary(recipe, layout, tokens, &mut out);
    experts(recipe, layout, &mut out);
    context(recipe, layout, tokens, &mut out);
    pipeline(recipe, layout, &mut out);
    replicated_gradients(layout, table, &mut out);
    data(layout, table, &mut out);
    out
}

/// The collectives inside one block of a mixer, each counted once.
pub fn of_mixer(recipe: &Recipe, layout: &Layout, mixer: Mixer) -> Vec<Exchange> {
    let mut alone = recipe.clone();
    alone.layers = vec![Layer::of(&[mixer])];
    alone.features.mtp = None;
    let mut out = Vec::new();
    let tokens = layout.micro_batch * layout.sequence / layout.cp.get();
    tensor(&alone, layout, tokens, &mut out);
    experts(&alone, layout, &mut out);
    context(&alone, layout, tokens, &mut out);
    out
}

/// The collectives where tokens enter and where the loss is taken, prediction heads included.
pub fn of_edges(recipe: &Recipe, layout: &Layout) -> Vec<Exchange> {
    let mut out = Vec::new();
    vocabulary(recipe, layout, layout.micro_batch * layout.sequence / layout.cp.get(), &mut out);
    out
}

/// Two exchanges around every block with matrices on the tensor axis.
fn tensor(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    if !layout.tp.splits() {
        return;
    }
    let width = recipe.hidden;
    let mixers = [Mixer::Attention, Mixer::Mlp, Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta];
    for mixer in mixers.into_iter().filter(|m| recipe.uses(*m)) {
        let (name, count) = (mixer.table(), recipe.count_with_suffix(mixer));
        let into = if mixer == Mixer::Attention { attention_input(recipe) } else { width };
        tensor_pair(layout, name, tokens * into, tokens * width, count, out);
    }
    let shared = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe)).and_then(|m| m.shared.as_ref());
    if shared.is_some() {
        let count = recipe.count_with_suffix(Mixer::Moe);
        tensor_pair(layout, "moe.shared", tokens * width, tokens * width, count, out);
    }
    few_kv_heads(recipe, layout, tokens, out);
    if let Some(mtp) = recipe.features.mtp() {
        let into = Exchange {
            axis: if layout.sp { "sp" } else { "tp" },
            place: "into the prediction join: hidden state and embedding side by side".to_string(),
            forward: if layout.sp { "all-gather" } else { "identity" },
            backward: if layout.sp { "reduce-scatter" } else { "all-reduce" },
            elements: 2 * tokens * width / if layout.sp { layout.tp.get() } else { 1 },
            count: mtp.depth,
            agree: "dtype of the two norms' outputs",
        };
        out.push(into);
        out.push(Exchange {
            axis: "tp",
            place: "out of the prediction join: columns made whole".to_string(),
            forward: "all-gather",
            backward: "reduce-scatter",
            elements: tokens * width / layout.tp.get(),
            count: mtp.depth,
            agree: "column order",
        });
    }
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
            axis: "tp",
            place: "after the packed QKV projection: heads made whole".to_string(),
            forward: "all-gather",
            backward: "slice",
            elements: tokens * heads * head_dim / layout.tp.get(),
            count: recipe.count_with_suffix(Mixer::Attention),
            agree: "packing of the groups",
        });
    }
}

fn tensor_pair(layout: &Layout, name: &str, into: u64, elements: u64, count: u64, out: &mut Vec<Exchange>) {
    if layout.sp {
        let share = into / layout.tp.get();
        out.push(Exchange {
            axis: "sp",
            place: format!("into {name}: sequence made whole before the column-parallel projection"),
            forward: "all-gather",
            backward: "reduce-scatter",
            elements: share,
            count,
            agree: "dtype of the norm's output (an fp8 gather needs the same scale on all members)",
        });
        out.push(Exchange {
            axis: "sp",
            place: format!("out of {name}: partial sums of the row-parallel projection"),
            forward: "reduce-scatter",
            backward: "all-gather",
            elements,
            count,
            agree: "accumulation dtype: sums run in bf16 or fp32, never in fp8",
        });
    } else {
        out.push(Exchange {
            axis: "tp",
            place: format!("out of {name}: partial sums of the row-parallel projection"),
            forward: "all-reduce",
            backward: "identity",
            elements,
            count,
            agree: "accumulation dtype",
        });
        out.push(Exchange {
            axis: "tp",
            place: format!("into {name}: gradients of the input"),
            forward: "identity",
            backward: "all-reduce",
            elements: into,
            count,
            agree: "gradient dtype",
        });
    }
}

fn vocabulary(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    if !layout.tp.splits() {
        return;
    }
    // Each prediction depth embeds its own tokens and reads the head.
    let heads = 1 + recipe.features.mtp().map_or(0, |mtp| mtp.depth);
    out.push(Exchange {
        axis: if layout.sp { "sp" } else { "tp" },
        place: "out of the vocabulary-parallel embedding".to_string(),
        forward: if layout.sp { "reduce-scatter" } else { "all-reduce" },
        backward: if layout.sp { "all-gather" } else { "identity" },
        elements: tokens * recipe.hidden,
        count: heads,
        agree: "which rank owns which token row",
    });
    let (forward, backward, share) =
        if layout.sp { ("all-gather", "reduce-scatter", layout.tp.get()) } else { ("identity", "all-reduce", 1) };
    out.push(Exchange {
        axis: if layout.sp { "sp" } else { "tp" },
        place: match layout.sp {
            true => "into the output head: sequence made whole".to_string(),
            false => "into the output head: gradients of the input".to_string(),
        },
        forward,
        backward,
        elements: tokens * recipe.hidden / share,
        count: heads,
        agree: "dtype of the final norm's output",
    });
    out.push(Exchange {
        axis: "tp",
        place: "vocabulary-parallel cross-entropy: maximum, sum of exponentials, target logit".to_string(),
        forward: "all-reduce",
        backward: "identity",
        elements: 3 * tokens,
        count: heads,
        agree: "fp32 statistics",
    });
}

fn experts(recipe: &Recipe, layout: &Layout, out: &mut Vec<Exchange>) {
    let Some(moe) = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe)) else { return };
    let tokens = layout.tokens_per_microbatch_per_rank();
    let width = moe.latent.unwrap_or(recipe.hidden);
    let count = recipe.count_with_suffix(Mixer::Moe);
    if layout.ep.splits() {
        out.push(Exchange {
            axis: "ep",
            place: "before dispatch: tokens each expert will receive".to_string(),
            forward: "all-gather of counts",
            backward: "none",
            elements: moe.experts,
            count,
            agree: "owner rank of every expert",
        });
        for place in
            ["dispatch: routed tokens to the owners of their experts", "combine: expert outputs back to their tokens"]
        {
            out.push(Exchange {
                axis: "ep",
                place: place.to_string(),
                forward: "all-to-all",
                backward: "all-to-all",
                elements: tokens * moe.top_k * width,
                count,
                agree: "counts are transposes; the exit restores the sequence-sharded view",
            });
        }
    }
    if layout.etp.splits() {
        let routed = tokens * moe.top_k * width;
        out.push(Exchange {
            axis: "etp",
            place: "into experts: tokens of the expert-tensor group".to_string(),
            forward: "all-gather",
            backward: "reduce-scatter",
            elements: routed,
            count,
            agree: "token order within the group",
        });
        out.push(Exchange {
            axis: "etp",
            place: "out of experts: partial sums".to_string(),
            forward: "reduce-scatter",
            backward: "all-gather",
            elements: routed * layout.etp.get(),
            count,
            agree: "accumulation dtype",
        });
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
            axis: "cp",
            place: "under attention: keys and values around the ring".to_string(),
            forward: "send/receive × (cp-1)",
            backward: "send/receive × (cp-1)",
            elements: tokens * per_token * (layout.cp.get() - 1),
            count: recipe.count_with_suffix(Mixer::Attention),
            agree: "order of the parts, and fp32 softmax statistics",
        });
    }
    if let Some(Mamba::Two(mamba)) = recipe.mamba.as_ref().filter(|_| recipe.has(Mixer::Mamba)) {
        let rows = 2 * mamba.inner() + 2 * mamba.groups * mamba.state + mamba.heads;
        head_exchange("mamba", tokens * rows / tp, tokens * mamba.inner() / tp, recipe.count(Mixer::Mamba), out);
    }
    if let Some(delta) = recipe.gated_delta.as_ref().filter(|_| recipe.has(Mixer::GatedDelta)) {
        let (keys, values) = (delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim);
        let rows = 2 * keys + 2 * values + 2 * delta.value_heads;
        head_exchange("gated_delta", tokens * rows / tp, tokens * values / tp, recipe.count(Mixer::GatedDelta), out);
    }
}

fn head_exchange(name: &str, into: u64, from: u64, count: u64, out: &mut Vec<Exchange>) {
    let exchange = |place: String, elements| Exchange {
        axis: "cp",
        place,
        forward: "all-to-all",
        backward: "all-to-all",
        elements,
        count,
        agree: "which heads each rank runs over the whole timeline",
    };
    out.push(exchange(format!("into {name}: time traded for heads"), into));
    out.push(exchange(format!("out of {name}: heads traded for time"), from));
}

fn pipeline(recipe: &Recipe, layout: &Layout, out: &mut Vec<Exchange>) {
    if layout.pp.splits() {
        out.push(Exchange {
            axis: "pp",
            place: "between chunks of depth: the residual stream".to_string(),
            forward: "send",
            backward: "send of its gradient",
            elements: layout.tokens_per_microbatch_per_rank() * recipe.hidden,
            count: layout.chunks() - 1,
            agree: "shape and dtype of the stage boundary, and any recurrent state with it",
        });
    }
}

/// Under sequence parallelism a rank sees its own tokens only, so gradients of what it holds whole
/// are summed over the tensor axis, once a step; tied tables are summed over the two edge stages.
fn replicated_gradients(layout: &Layout, table: &OwnershipTable, out: &mut Vec<Exchange>) {
    let stages = layout.pp.get() as usize;
    let whole = |row: &&Row| !row.cuts.iter().any(|cut| cut.axis == Axis::Tp) && row.tensor.acting.is_none();
    let held = |stage| {
        let rows = table.rows.iter().filter(whole);
        rows.map(|row| row.part_elements(layout) * table.copies_on_stage(row, stage)).sum::<u64>()
    };
    let most = (0..stages).map(held).max().unwrap_or(0);
    if layout.sp && most > 0 {
        out.push(Exchange {
            axis: "tp",
            place: "after backward: gradients of tensors whole on every tensor-parallel rank".to_string(),
            forward: "none",
            backward: "all-reduce",
            elements: most,
            count: 1,
            agree: "which tensors are whole",
        });
    }
    let copied = table.rows.iter().find(|row| row.chunks.len() > 1 && stages > 1);
    if let Some(row) = copied.filter(|row| row.chunks.iter().any(|chunk| *chunk != row.chunks[0])) {
        out.push(Exchange {
            axis: "pp",
            place: "after backward: gradients of the token table's copies on first and last stage".to_string(),
            forward: "none",
            backward: "all-reduce",
            elements: row.part_elements(layout),
            count: 1,
            agree: "that the copies start equal",
        });
    }
}

/// Gradients and weights over replicas: what the heaviest stage holds of each mesh.
fn data(layout: &Layout, table: &OwnershipTable, out: &mut Vec<Exchange>) {
    let held = |is_expert: bool| {
        let on_stage = |stage| {
            let rows = table.rows.iter().filter(|row| row.tensor.acting.is_some() == is_expert);
            rows.map(|row| row.part_elements(layout) * table.copies_on_stage(row, stage)).sum::<u64>()
        };
        (0..layout.pp.get() as usize).map(on_stage).max().unwrap_or(0)
    };
    let groups = [("dp", "dense", held(false), layout.dense_shards()), ("edp", "expert", held(true), layout.edp.get())];
    for (axis, what, elements, degree) in groups {
        if degree == 1 || elements == 0 {
            continue;
        }
        let sharded = layout.zero != ZeroStage::Zero;
        out.push(Exchange {
            axis,
            place: format!("after backward: {what} gradients over {degree} replicas (heaviest stage)"),
            forward: "none",
            backward: if sharded { "reduce-scatter" } else { "all-reduce" },
            elements,
            count: 1,
            agree: "gradient dtype, bucket order and padding",
        });
        if sharded {
            let (place, backward) = match layout.zero {
                ZeroStage::Three => ("before every use", "all-gather"),
                _ => ("after the optimizer step", "none"),
            };
            out.push(Exchange {
                axis,
                place: format!("{place}: {what} weights (heaviest stage)"),
                forward: "all-gather",
                backward,
                elements: elements / degree,
                count: 1,
                agree: "shard boundaries",
            });
        }
    }
}

/// The state contract of one state-carrying family.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StateContract {
    /// The recipe table.
    pub mixer: &'static str,
    /// Blocks that carry it.
    pub blocks: u64,
    /// Recurrent state of a sequence in one block, in elements, before tensor parallelism.
    pub state_elements: u64,
    /// The convolution's tail, likewise.
    pub conv_elements: u64,
    /// What holds when a context cut crosses it.
    pub under_cp: &'static str,
    /// What holds when a stage cut stands beside it.
    pub under_pp: &'static str,
}

/// The state contracts of a recipe.
pub fn contracts(recipe: &Recipe) -> Vec<StateContract> {
    let mut out = Vec::new();
    let beside = "a block is never cut by a stage: its state stays whole on its stage";
    if let Some(mamba) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba)) {
        let (state_elements, conv_elements) = mamba.state_elements();
        let under_cp = match mamba {
            Mamba::One(_) => "refused: the scan takes no initial state",
            Mamba::Two(_) => "heads are exchanged for time, so no state crosses",
            Mamba::Three(m) if m.state_carry => "state, rotation and last step are handed to the next part",
            Mamba::Three(_) => "refused until the mixer carries its state",
        };
        let blocks = recipe.count(Mixer::Mamba);
        out.push(StateContract { mixer: "mamba", blocks, state_elements, conv_elements, under_cp, under_pp: beside });
    }
    if let Some(recurrent) = recipe.recurrent.as_ref().filter(|_| recipe.uses(Mixer::Recurrent)) {
        let (state_elements, conv_elements) = recurrent.state_elements();
        out.push(StateContract {
            mixer: "recurrent",
            blocks: recipe.count(Mixer::Recurrent),
            state_elements,
            conv_elements,
            under_cp: if recurrent.state_carry {
                "state is handed from part to part, one after another"
            } else {
                "refused until the mixer carries its state"
            },
            under_pp: if recurrent.depth_carry {
                "state runs up the depth and crosses (virtual) stage cuts with the activations"
            } else {
                beside
            },
        });
    }
    if let Some(delta) = recipe.gated_delta.as_ref().filter(|_| recipe.uses(Mixer::GatedDelta)) {
        let (state_elements, conv_elements) = delta.state_elements();
        out.push(StateContract {
            mixer: "gated_delta",
            blocks: recipe.count(Mixer::GatedDelta),
            state_elements,
            conv_elements,
            under_cp: "heads are exchanged for time, so no state crosses",
            under_pp: beside,
        });
    }
    out
}
