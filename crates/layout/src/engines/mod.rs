//! What each engine refuses, with its own condition quoted as the reason. A folder an engine, a file a
//! rule; conditions were read in the sources of the versions named there.

mod deepspeed;
mod fsdp2;
mod maxtext;
mod megatron;
mod nanotron;
mod torchtitan;
mod xla_spmd;

use crate::legality::{Case, Rule};
use crate::request::{Engine, Schedule};
use diag::Finding;
use recipe::Mixer;
use recipe::kinds::{Activation, NormPlace};

/// An engine's own rules, in the order their findings are listed.
pub fn rules(engine: Engine) -> &'static [&'static Rule] {
    match engine {
        Engine::Megatron => megatron::RULES,
        Engine::Fsdp2 => fsdp2::RULES,
        Engine::Torchtitan => torchtitan::RULES,
        Engine::Deepspeed => deepspeed::RULES,
        Engine::Nanotron => nanotron::RULES,
        Engine::Maxtext => maxtext::RULES,
        Engine::XlaSpmd => xla_spmd::RULES,
        // Our own runtime has no rules beyond the general ones.
        Engine::Shardwright => &[],
    }
}

/// Engines we know and will not emit for, with the reason.
pub const DECLINED: &[(&str, &str)] =
    &[("t5x", "a seq2seq research framework; MaxText took over decoder-only training on the JAX side")];

/// Refuses mixers an engine has no block for.
fn refuse_mixers(rule: &Rule, engine: &str, missing: &[Mixer], case: &Case) -> Vec<Finding> {
    let refuse = |mixer: &Mixer| {
        let layers = recipe::megatron::numbers(&case.recipe.layers_with(*mixer));
        let message = format!("{engine} has no {} block (`{}`, layers {layers})", mixer.table(), mixer.letter());
        rule.error(mixer.table(), message).hint("another engine, or a custom seam, must run it")
    };
    missing.iter().filter(|mixer| case.recipe.uses(**mixer)).map(refuse).collect()
}

/// Refuses mixers side by side behind one norm.
fn refuse_parallel(rule: &Rule, engine: &str, case: &Case) -> Option<Finding> {
    let (layer, _) = case.recipe.blocks().find(|(_, block)| block.mixers.len() > 1)?;
    Some(rule.error("pattern", format!("{engine} runs one mixer behind a norm, and layer {layer} has several")))
}

/// Refuses norms, embeddings, heads and activations that an engine's own model does not have. `has` names those of the
/// rare activations that it has after all, each with the block that has it.
fn refuse_edges(rule: &Rule, engine: &str, has: &[(Mixer, Activation)], case: &Case) -> Option<Finding> {
    let recipe = case.recipe;
    let dense = recipe.mlp.as_ref().filter(|_| recipe.uses(Mixer::Mlp)).map(|m| (Mixer::Mlp, m.activation));
    let blocks = [dense, recipe.moe.as_ref().map(|m| (Mixer::Moe, m.activation))];
    let lacks = |rare| blocks.iter().flatten().any(|block| block.1 == rare && !has.contains(block));
    let what = [
        (!recipe.norm.is_usual(), "norm", "norm without a scale or a shift"),
        (recipe.norm_place != NormPlace::Before, "norm_place", "norms behind blocks"),
        (recipe.embedding_norm, "embedding_norm", "norm of embeddings"),
        (recipe.head_bias, "head_bias", "bias of the output head"),
        (recipe.features.mhc().is_some(), "features.mhc", "hyper-connections"),
        (recipe.features.depths().is_some(), "features.mod", "mixture of depths"),
        (recipe.features.engram().is_some(), "features.engram", "engram branches"),
        (recipe.gates_latent_heads(), "attention.head_gate", "gates of latent attention's heads"),
        (recipe.mlp.as_ref().is_some_and(|m| m.shift), "mlp.shift", "inputs mixed with the token before"),
        (lacks(Activation::Relu), "activation", "plain ReLU"),
        (lacks(Activation::SwiGluOai), "activation", "gated unit of gpt-oss here"),
    ];
    let (_, field, what) = what.into_iter().find(|(is_there, ..)| *is_there)?;
    let finding = rule.error(field, format!("{engine} has no {what}"));
    Some(finding.hint("--engine fsdp2 and --engine deepspeed take a model of your own, which may have it"))
}

/// Refuses schedules outside an engine's list.
fn refuse_schedule(rule: &Rule, engine: &str, known: &[Schedule], case: &Case) -> Option<Finding> {
    let schedule = case.layout.schedule;
    if !case.layout.pp.splits() || known.contains(&schedule) {
        return None;
    }
    let words = known.iter().map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ");
    Some(rule.error("schedule", format!("{engine} has no schedule `{schedule}`")).hint(format!("it has {words}")))
}

/// What torch says of a pipeline that its 1F1B cannot fill (`torch/distributed/pipelining/schedules.py`).
const UNFILLED: &str = "must be greater than or equal to the number of stages";

/// Refuses a pipeline that torch's 1F1B cannot fill.
fn refuse_unfilled(rule: &Rule, case: &Case) -> Option<Finding> {
    let (pp, count) = (case.layout.pp.get(), case.layout.microbatches);
    if case.layout.schedule != Schedule::OneF1b || count >= pp {
        return None;
    }
    let message = format!("1f1b needs at least pp {pp} microbatches, and there are {count}");
    Some(rule.error("microbatches", message).fix("microbatches", vec![pp, 2 * pp]))
}
