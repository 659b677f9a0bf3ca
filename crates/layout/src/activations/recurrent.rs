//! What recurrent blocks exchange: the state and the convolution's tail between parts of the
//! timeline; and the sums of norms over the heads of all ranks, attention's among them.

use super::{Collective, Exchange, Holds, Over, Site, is_ours};
use crate::layout::Layout;
use crate::stages::depth_carried_state;
use recipe::kinds::Norm;
use recipe::kinds::attention::QkNorm;
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba2::Mamba2;
use recipe::{Mixer, Recipe};

/// Whether a mixer hands its state across a cut in time: this engine's do, another's where the
/// recipe says so.
pub(crate) fn carries_time(recipe_says: bool, layout: &Layout) -> bool {
    recipe_says || is_ours(layout)
}

/// Whether Mamba-2 trades time for heads over the context axis. This engine does so where whole
/// groups go to every rank, and hands the state from part to part elsewhere; others always trade.
pub fn trades_heads(mamba: &Mamba2, layout: &Layout) -> bool {
    let whole = layout.tp.get().saturating_mul(layout.cp.get());
    !is_ours(layout) || mamba.groups.is_multiple_of(whole)
}

/// Elements of state that one microbatch sends over a (virtual) stage cut before `layer` on one
/// rank: its heads, at the borders of its parts of the timeline.
pub fn depth_state(recipe: &Recipe, layout: &Layout, layer: usize) -> u64 {
    let whole = depth_carried_state(recipe, layer, layout.sequence / layout.cp.get());
    layout.micro_batch.saturating_mul(whole) / layout.tp.get()
}

/// Sums of a token for attention's norms over all heads together: of squares, and under LayerNorm of
/// the numbers themselves, for queries and for keys.
pub(super) fn attention_norms(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    let is_whole = recipe.attention().is_some_and(|a| a.qk_norm == QkNorm::Full);
    if is_ours(layout) && is_whole && recipe.uses(Mixer::Attention) {
        let each = if recipe.norm == Norm::LayerNorm { 4 } else { 2 };
        out.push(Exchange {
            axis: Over::Tp,
            place: "under attention: sums of the norms over all heads".to_string(),
            forward: Collective::AllReduce,
            backward: Collective::AllReduce,
            elements: tokens * each,
            count: recipe.count_with_suffix(Mixer::Attention),
            agree: "fp32 statistics",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
}

/// Squares for the norm over all heads: only this engine cuts M2RNN's heads over the tensor axis.
pub(super) fn norms(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    if is_ours(layout) && recipe.uses(Mixer::Recurrent) {
        out.push(Exchange {
            axis: Over::Tp,
            place: "under recurrent: squares of the norm over all heads".to_string(),
            forward: Collective::AllReduce,
            backward: Collective::AllReduce,
            elements: tokens,
            count: recipe.count_with_suffix(Mixer::Recurrent),
            agree: "fp32 statistics",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
}

/// Step size, B and C of Mamba-1, which come from the channels of all ranks and go to all of them.
pub(super) fn selection(recipe: &Recipe, layout: &Layout, tokens: u64, out: &mut Vec<Exchange>) {
    let Some(Mamba::One(mamba)) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba)) else { return };
    if is_ours(layout) {
        out.push(Exchange {
            axis: Over::Tp,
            place: "under mamba: step size, B and C of all channels".to_string(),
            forward: Collective::AllReduce,
            backward: Collective::AllReduce,
            elements: tokens * (mamba.dt_rank + 2 * mamba.state),
            count: recipe.count_with_suffix(Mixer::Mamba),
            agree: "accumulation dtype",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
}

/// State handed from part to part: this engine's mixers do it, others refuse the cut.
pub(super) fn carry(recipe: &Recipe, layout: &Layout, out: &mut Vec<Exchange>) {
    if !is_ours(layout) {
        return;
    }
    let (tp, batch) = (layout.tp.get(), layout.micro_batch);
    let mut hand_on = |place: &str, elements: u64, mixer: Mixer| {
        out.push(Exchange {
            axis: Over::Cp,
            place: place.to_string(),
            forward: Collective::HandOn,
            backward: Collective::HandBack,
            elements,
            count: recipe.count_with_suffix(mixer),
            agree: "order of the parts",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    };
    if let Some(Mamba::Three(mamba)) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba)) {
        // With the state go the angles, and the last B and x that the trapezoid needs.
        let state = mamba.head_dim * mamba.state + mamba.angles + mamba.state + mamba.head_dim;
        hand_on("under mamba: state handed on", batch * mamba.heads / tp * state, Mixer::Mamba);
    }
    if let Some(Mamba::Two(mamba)) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba))
        && !trades_heads(mamba, layout)
    {
        hand_on("under mamba: state handed on", batch * mamba.inner() / tp * mamba.state, Mixer::Mamba);
        let tail = batch * mamba.conv.saturating_sub(1) * (mamba.inner() + 2 * mamba.groups * mamba.state) / tp;
        hand_on("under mamba: tail of the convolution handed on", tail, Mixer::Mamba);
    }
    if let Some(kind) = recipe.recurrent.as_ref().filter(|_| recipe.uses(Mixer::Recurrent)) {
        let state = kind.key_dim * kind.value_dim;
        hand_on("under recurrent: state handed on", batch * kind.heads / tp * state, Mixer::Recurrent);
        let tail = batch * (kind.conv - 1) * conv_width(kind, tp);
        hand_on("under recurrent: tail of the convolution handed on", tail, Mixer::Recurrent);
    }
}

/// Channels of the convolution on one rank: shared query and key heads are copied below tp.
fn conv_width(kind: &M2rnn, tp: u64) -> u64 {
    2 * kind.qk_heads.div_ceil(tp) * kind.key_dim + kind.heads / tp * kind.value_dim
}
