//! Attention heads over the tensor axis.

use super::{Case, must_divide, refuse};
use crate::request::Engine;
use diag::{Blame, Finding};
use recipe::Mixer;
use recipe::kinds::attention::AttentionKind;
use units::divisors;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let Some(attention) = case.recipe.attention().filter(|_| case.recipe.uses(Mixer::Attention)) else { return };
    let tp = case.layout.tp.get();
    let heads = attention.heads;
    must_divide(findings, "tp/heads", "attention", "query heads", heads, "tp", tp);
    let AttentionKind::Gqa { kv_heads, head_dim } = attention.kind else { return };
    let shares = |tp: u64| kv_heads.is_multiple_of(tp) || tp.is_multiple_of(kv_heads);
    if !shares(tp) {
        let message = format!(
            "cannot split `attention` over tp={tp}: {kv_heads} KV heads are neither a multiple nor a divisor of {tp}"
        );
        let fits = divisors(heads).into_iter().filter(|t| shares(*t)).collect();
        findings.push(refuse("tp/kv-heads", "attention", message).fix("tp", fits));
    }
    if kv_heads < tp && shares(tp) {
        let how = match case.layout.engine {
            Some(Engine::Shardwright) => "each rank keeps a copy of its group's",
            _ => "packed rows are cut evenly and the projected activations gathered over tp, as Megatron-Core does",
        };
        let message = format!("{kv_heads} KV heads are fewer than tp={tp}: {how}");
        findings.push(Finding::note("tp/kv-shared", Blame::Layout, "attention", message));
    }
    // Below one KV head a rank, Megatron cuts the packed rows evenly and gathers.
    let per_head = 1 + u64::from(attention.output_gate);
    let rows = |tp: u64| ((heads * per_head + 2 * kv_heads) * head_dim).is_multiple_of(tp);
    let cuts_rows = |tp: u64| kv_heads < tp && case.layout.engine != Some(Engine::Shardwright);
    if cuts_rows(tp) && shares(tp) && heads.is_multiple_of(tp) && !rows(tp) {
        let message = format!(
            "cannot split `attention` over tp={tp}: with {kv_heads} KV heads the packed rows are cut evenly, and they do not divide"
        );
        let fits = divisors(heads).into_iter().filter(|t| shares(*t) && (!cuts_rows(*t) || rows(*t))).collect();
        findings.push(refuse("tp/qkv-rows", "attention", message).fix("tp", fits));
    }
}
