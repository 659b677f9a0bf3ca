//! What each engine refuses, with its own condition quoted as the reason. One file an engine;
//! conditions were read in the sources of the versions named there.

mod deepspeed;
mod fsdp2;
mod maxtext;
mod megatron;
mod nanotron;
mod torchtitan;
mod xla_spmd;

use crate::legality::Case;
use crate::request::{Engine, Schedule};
use diag::{Blame, Finding, RuleId};
use recipe::Mixer;
use recipe::kinds::attention::AttentionKind;

/// Adds an engine's findings.
pub fn check(engine: Engine, case: &Case, findings: &mut Vec<Finding>) {
    match engine {
        Engine::Megatron => megatron::check(case, findings),
        Engine::Fsdp2 => fsdp2::check(case, findings),
        Engine::Torchtitan => torchtitan::check(case, findings),
        Engine::Deepspeed => deepspeed::check(case, findings),
        Engine::Nanotron => nanotron::check(case, findings),
        Engine::Maxtext => maxtext::check(case, findings),
        Engine::XlaSpmd => xla_spmd::check(case, findings),
        // Our own runtime has no rules beyond the general ones.
        Engine::Shardwright => {}
    }
}

/// Engines we know and will not emit for, with the reason.
pub const DECLINED: &[(&str, &str)] =
    &[("t5x", "a seq2seq research framework; MaxText took over decoder-only training on the JAX side")];

/// An engine's refusal.
fn unsupported(rule: RuleId, object: &str, message: impl Into<String>) -> Finding {
    Finding::error(rule, Blame::Engine, object, message)
}

/// Refuses mixers an engine has no block for.
fn refuse_mixers(rule: RuleId, engine: &str, missing: &[Mixer], case: &Case, findings: &mut Vec<Finding>) {
    for mixer in missing.iter().filter(|m| case.recipe.uses(**m)) {
        let layers = recipe::megatron::numbers(&case.recipe.layers_with(*mixer));
        let message = format!("{engine} has no {} block (`{}`, layers {layers})", mixer.table(), mixer.letter());
        findings.push(unsupported(rule, mixer.table(), message).hint("another engine, or a custom seam, must run it"));
    }
}

/// Refuses mixers side by side behind one norm.
fn refuse_parallel(rule: RuleId, engine: &str, case: &Case, findings: &mut Vec<Finding>) {
    if let Some((layer, _)) = case.recipe.blocks().find(|(_, b)| b.mixers.len() > 1) {
        let message = format!("{engine} runs one mixer behind a norm, and layer {layer} has several");
        findings.push(unsupported(rule, "pattern", message));
    }
}

/// Refuses schedules outside an engine's list.
fn refuse_schedule(rule: RuleId, engine: &str, known: &[Schedule], case: &Case, findings: &mut Vec<Finding>) {
    let schedule = case.layout.schedule;
    if case.layout.pp.splits() && !known.contains(&schedule) {
        let words = known.iter().map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ");
        let message = format!("{engine} has no schedule `{schedule}`");
        findings.push(unsupported(rule, "schedule", message).hint(format!("it has {words}")));
    }
}

/// Refuses a pipeline that torch's 1F1B cannot fill.
fn refuse_unfilled(rule: RuleId, case: &Case, findings: &mut Vec<Finding>) {
    let (pp, count) = (case.layout.pp.get(), case.layout.microbatches);
    if case.layout.schedule == Schedule::OneF1b && count < pp {
        // torch/distributed/pipelining/schedules.py
        let message = format!("1f1b needs at least pp {pp} microbatches, and there are {count}");
        let finding = unsupported(rule, "microbatches", message).fix("microbatches", vec![pp, 2 * pp]);
        findings.push(finding.quote("must be greater than or equal to the number of stages"));
    }
}

/// KV heads of grouped-query attention, when the recipe has any.
fn kv_heads(case: &Case) -> Option<u64> {
    match case.recipe.attention().filter(|_| case.recipe.uses(Mixer::Attention))?.kind {
        AttentionKind::Gqa { kv_heads, .. } => Some(kv_heads),
        AttentionKind::Mla(_) => None,
    }
}
