//! Context parallelism: parts of the timeline. Attention rebuilds the whole by exchange; a
//! recurrence may be cut only if its boundary state is carried or its heads are exchanged.

use super::{Case, multiples_near, refuse};
use crate::activations::{carries_time, trades_heads};
use crate::layout::Layout;
use diag::Finding;
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Recipe};
use units::divisors;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    if !layout.cp.splits() {
        return;
    }
    let (cp, tp) = (layout.cp.get(), layout.tp.get());
    if !layout.sequence.is_multiple_of(2 * cp) {
        let message = format!(
            "sequence {} does not divide into 2·cp = {} pieces, and causal balance gives each rank an early and a late one",
            layout.sequence,
            2 * cp
        );
        findings.push(refuse("cp/sequence", "sequence", message).fix("seq", multiples_near(layout.sequence, 2 * cp)));
    }
    for (object, why) in uncarried(case.recipe, layout) {
        let message = format!("cp={cp} cuts time through `{object}`, whose state nobody carries: {why}");
        findings.push(refuse("cp/recurrence", object, message).fix("cp", vec![1]));
    }
    parts(case, findings);
    exchange(case.recipe, layout, tp, cp, findings);
}

/// Parts of the timeline that hand something on: a convolution's tail lies within one, and borders
/// at which state runs up the depth are where one rank would have them.
fn parts(case: &Case, findings: &mut Vec<Finding>) {
    let (recipe, layout) = (case.recipe, case.layout);
    let count = 2 * layout.cp.get();
    let part = layout.sequence / count;
    let recurrent = recipe.recurrent.as_ref().filter(|_| recipe.uses(Mixer::Recurrent));
    let mamba = match recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba)) {
        Some(Mamba::Two(m)) if !trades_heads(m, layout) => Some(("mamba", m.conv - 1)),
        _ => None,
    };
    let tails = recurrent.map(|r| ("recurrent", r.conv - 1)).into_iter().chain(mamba);
    let every = recurrent.and_then(|r| r.depth_carry);
    // Sequences that fit all of them, so that mending one does not break another.
    let step = every.unwrap_or(1).saturating_mul(count);
    let least = tails.clone().map(|(_, tail)| tail * count).max().unwrap_or(0).next_multiple_of(step);
    let fits = || multiples_near(layout.sequence.max(least), step);
    for (object, tail) in tails.filter(|(_, tail)| part < *tail) {
        let message =
            format!("a part of {part} tokens is shorter than the {tail} that `{object}`'s convolution looks back");
        findings.push(refuse("cp/short-part", object, message).fix("seq", fits()));
    }
    if let Some(every) = every.filter(|every| !part.is_multiple_of(*every)) {
        let message = format!(
            "state runs up the depth every {every} tokens (`recurrent.depth_carry`), and parts of {part} tokens end between"
        );
        findings.push(refuse("cp/depth-carry", "recurrent", message).fix("seq", fits()));
    }
}

/// State-carrying mixers that can neither exchange heads nor carry state over a cut in time. Where
/// the engine's own mixers carry it, what the recipe says of another implementation does not count.
fn uncarried(recipe: &Recipe, layout: &Layout) -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    if recipe.uses(Mixer::Mamba) {
        match &recipe.mamba {
            Some(Mamba::One(_)) => found.push(("mamba", "Mamba-1's scan takes no initial state")),
            Some(Mamba::Three(m)) if !carries_time(m.state_carry, layout) => {
                found.push(("mamba", "its rotation and trapezoidal step reach across the cut (`mamba.state_carry`)"));
            }
            _ => {}
        }
    }
    let carries = |r: &M2rnn| carries_time(r.state_carry, layout);
    if recipe.uses(Mixer::Recurrent) && recipe.recurrent.as_ref().is_some_and(|r| !carries(r)) {
        found.push(("recurrent", "its step is non-linear, so the next part waits for it (`recurrent.state_carry`)"));
    }
    found
}

/// Mamba-2 and gated delta nets trade time for heads: each rank runs some heads over all tokens.
fn exchange(recipe: &Recipe, layout: &Layout, tp: u64, cp: u64, findings: &mut Vec<Finding>) {
    if let Some(Mamba::Two(m)) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba))
        && trades_heads(m, layout)
        && m.heads.is_multiple_of(tp)
        && m.groups.is_multiple_of(tp)
    {
        let (heads, groups) = (m.heads / tp, m.groups / tp);
        let heads_fit = |cp: u64| heads.is_multiple_of(cp);
        let groups_fit = |cp: u64| groups.is_multiple_of(cp) || cp.is_multiple_of(groups);
        if !heads_fit(cp) {
            let message =
                format!("cp={cp} exchanges time for heads, and {heads} Mamba heads a rank are not a multiple of {cp}");
            findings.push(refuse("cp/mamba-heads", "mamba", message).fix("cp", divisors(heads)));
        }
        if !groups_fit(cp) {
            let message = format!("cp={cp} and {groups} Mamba groups a rank do not divide one another");
            let fits = divisors(heads).into_iter().filter(|c| groups_fit(*c)).collect();
            findings.push(refuse("cp/mamba-groups", "mamba", message).fix("cp", fits));
        }
    }
    if let Some(delta) = recipe.gated_delta.as_ref().filter(|_| recipe.uses(Mixer::GatedDelta))
        && delta.key_heads.is_multiple_of(tp)
        && !(delta.key_heads / tp).is_multiple_of(cp)
    {
        let heads = delta.key_heads / tp;
        let message =
            format!("cp={cp} exchanges time for heads, and {heads} key heads a rank are not a multiple of {cp}");
        findings.push(refuse("cp/gated-delta-heads", "gated_delta", message).fix("cp", divisors(heads)));
    }
}

#[cfg(test)]
mod tests {
    use crate::{Engine, LayoutRequest, activations, check};
    use diag::Finding;
    use recipe::Recipe;

    fn rules(recipe: &Recipe, request: &LayoutRequest) -> Vec<Finding> {
        check(recipe, request).findings.into_iter().filter(|f| f.rule.starts_with("cp/")).collect()
    }

    #[test]
    fn our_engine_carries_state_in_time_and_others_must_be_said_to() {
        let recipe = recipe::builtin::find("nam56r").unwrap();
        let request = |engine| LayoutRequest { cp: Some(2), engine, ..LayoutRequest::default() };
        assert_eq!(rules(&recipe, &request(None)).len(), 2);
        assert_eq!(rules(&recipe, &request(Some(Engine::Megatron))).len(), 2);
        let ours = check(&recipe, &request(Some(Engine::Shardwright)));
        assert!(ours.is_legal() && ours.findings.iter().all(|f| f.severity < diag::Severity::Warning), "{ours:#?}");
        let contracts = activations::contracts(&recipe, &ours.layout.unwrap());
        assert!(contracts.iter().all(|c| c.under_cp.contains("handed")), "{contracts:#?}");
    }

    #[test]
    fn parts_hold_a_tail_and_end_at_borders() {
        let mut recipe = recipe::builtin::find("nam56r-mini").unwrap();
        recipe.recurrent.as_mut().unwrap().depth_carry = Some(2);
        for (sequence, rule) in [(8, "cp/short-part"), (20, "cp/depth-carry")] {
            let request = LayoutRequest {
                cp: Some(2),
                engine: Some(Engine::Shardwright),
                sequence: Some(sequence),
                ..LayoutRequest::default()
            };
            let found = rules(&recipe, &request);
            assert_eq!(found.iter().map(|f| f.rule).collect::<Vec<_>>(), [rule], "{sequence}");
            let mended = found[0].fix.as_ref().unwrap().values[0];
            assert!(rules(&recipe, &LayoutRequest { sequence: Some(mended), ..request }).is_empty(), "{mended}");
        }
    }
}
