//! Heads, groups and channels of state-carrying mixers over the tensor axis.

use super::{Case, must_divide};
use crate::ownership::divides;
use diag::Finding;
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Segment, Unit};

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let tp = case.layout.tp.get();
    let recipe = case.recipe;
    if let Some(mamba) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba)) {
        match mamba {
            Mamba::One(m) => {
                must_divide(findings, "mamba/channels-over-tp", "mamba", "channels", m.inner, "tp", tp);
            }
            Mamba::Two(m) => heads_and_groups(findings, m.heads, m.groups, tp),
            Mamba::Three(m) => heads_and_groups(findings, m.heads, m.groups, tp),
        }
    }
    if let Some(recurrent) = recipe.recurrent.as_ref().filter(|_| recipe.uses(Mixer::Recurrent)) {
        let heads = recurrent.heads;
        must_divide(findings, "recurrent/heads-over-tp", "recurrent", "recurrent heads", heads, "tp", tp);
        let shared = Segment { name: "q", unit: Unit::SharedHead, count: recurrent.qk_heads, size: 1 };
        if heads.is_multiple_of(tp) && !divides(&shared, tp) {
            let message = format!(
                "cannot split `recurrent` over tp={tp}: {} query/key heads are neither a multiple nor a divisor of {tp}",
                recurrent.qk_heads
            );
            let fits = units::divisors(heads).into_iter().filter(|t| divides(&shared, *t)).collect();
            findings.push(super::refuse("recurrent/qk-heads-over-tp", "recurrent", message).fix("tp", fits));
        }
    }
    if let Some(delta) = recipe.gated_delta.as_ref().filter(|_| recipe.uses(Mixer::GatedDelta)) {
        // Value heads are a multiple of key heads, so key heads decide.
        must_divide(findings, "gated-delta/heads-over-tp", "gated_delta", "key heads", delta.key_heads, "tp", tp);
    }
}

fn heads_and_groups(findings: &mut Vec<Finding>, heads: u64, groups: u64, tp: u64) {
    // Heads are a multiple of groups, so groups decide; both are named when both fail.
    must_divide(findings, "mamba/heads-over-tp", "mamba", "heads", heads, "tp", tp);
    must_divide(findings, "mamba/groups-over-tp", "mamba", "groups", groups, "tp", tp);
}
