//! Sizes that only make sense together. Where the user insists on one of them the other follows, at the
//! ratio it had or the nearest that divides; where both are insisted on, they are taken as they are.

use super::dims::{self, Dim, Dims};
use layout::LayoutRequest;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::moe::Moe;
use recipe::{Positions, Recipe};

/// Puts companions of the insisted sizes in place, before these are set. `full` is the recipe before
/// anything was made smaller.
pub(super) fn follow(recipe: &mut Recipe, full: &Recipe, request: &LayoutRequest, dims: &Dims) {
    let said = |dim: Dim| dims.get(dim);
    if let Some(attention) = &mut recipe.attention {
        let heads = &mut attention.heads;
        if let recipe::kinds::attention::AttentionKind::Gqa { kv_heads, .. } = &mut attention.kind {
            share([kv_heads, heads], [said(Dim::KvHeads), said(Dim::Heads)]);
        }
    }
    if let Some((heads, Some(groups), _)) = dims::mamba(recipe) {
        share([groups, heads], [said(Dim::MambaGroups), said(Dim::MambaHeads)]);
    }
    if let (Some(Mamba::Three(small)), Some(Mamba::Three(full)), Some(state)) =
        (&mut recipe.mamba, &full.mamba, said(Dim::State))
    {
        small.angles = (full.angles * state / full.state).clamp(1, (state / 2).max(1));
    }
    if let Some(recurrent) = &mut recipe.recurrent {
        share([&mut recurrent.qk_heads, &mut recurrent.heads], [None, said(Dim::RecurrentHeads)]);
    }
    if let (Some(small), Some(full)) = (&mut recipe.moe, &full.moe) {
        choose(small, full, said(Dim::TopK), said(Dim::Experts));
    }
    if let (Positions::Learned { count }, Some(sequence)) = (&mut recipe.positions, said(Dim::Sequence)) {
        *count = (*count).max(sequence);
    }
    if let (Some(recurrent), Some(sequence)) = (&mut recipe.recurrent, said(Dim::Sequence)) {
        let spans = if request.cp.unwrap_or(1) > 1 { 2 * request.cp.unwrap_or(1) } else { 1 };
        recurrent.depth_carry = recurrent.depth_carry.map(|every| divisor(sequence / spans, every));
    }
}

/// Units, and the larger number that shares them evenly.
fn share([shared, all]: [&mut u64; 2], said: [Option<u64>; 2]) {
    let ratio = *all / *shared;
    match said {
        [Some(units), None] => *all = units.saturating_mul(ratio),
        [None, Some(count)] if count.is_multiple_of(ratio) => *shared = count / ratio,
        [None, Some(count)] => *shared = divisor(count, *shared),
        _ => {}
    }
}

/// Experts, and how many of them a token goes to.
fn choose(small: &mut Moe, full: &Moe, top_k: Option<u64>, experts: Option<u64>) {
    let router = &small.router;
    let within = |experts: u64| (router.group_top_k * (experts / router.groups)).min(experts);
    match (top_k, experts) {
        (None, Some(experts)) => small.top_k = small.top_k.min(within(experts)).max(1),
        (Some(top_k), None) if top_k > within(small.experts) => {
            let enough = units::divisors(full.experts).into_iter().find(|experts| within(*experts) >= top_k);
            small.experts = enough.unwrap_or(full.experts);
        }
        _ => {}
    }
}

/// The largest divisor of `n` that is at most `most`.
fn divisor(n: u64, most: u64) -> u64 {
    units::divisors(n).into_iter().filter(|d| *d <= most).max().unwrap_or(1)
}
