//! What the model of the emitted program (`crates/launch/assets/fsdp2/model.py`) does not have. A
//! model of one's own takes its place there, and blocks as others write them in this ledger.

use recipe::kinds::attention::QkNorm;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::{Activation, NormPlace};
use recipe::{Positions, Recipe};

/// What the emitted model does not have, by name; empty when it builds the recipe whole. Tables are asked, not
/// layers: a few layers of a model are its model's blocks.
pub fn missing(recipe: &Recipe) -> Vec<&'static str> {
    let by = &recipe.multipliers;
    let mut missing: Vec<(bool, &str)> = vec![
        (recipe.gated_delta.is_some(), "gated delta net"),
        (recipe.linear.is_some(), "linear mixers of other kinds"),
        (recipe.shared.as_ref().is_some_and(|s| s.bias), "biases of shared blocks"),
        (recipe.shared.as_ref().is_some_and(|s| s.activation == Activation::Relu), "plain ReLU"),
        (recipe.shared.is_some() && recipe.adapters().is_some(), "adapters beside shared blocks"),
        (recipe.is_latent(), "latent attention"),
        (recipe.features.dsa().is_some(), "sparse attention"),
        (recipe.features.mtp().is_some(), "prediction heads"),
        (recipe.features.sides().next().is_some(), "side embeddings"),
        (matches!(recipe.positions, Positions::Learned { .. }), "learned positions"),
        (recipe.dropout > 0.0, "dropout"),
        (!recipe.norm.is_usual(), "norms without a scale or a shift"),
        (recipe.norm_place != NormPlace::Before, "norms behind blocks"),
        (recipe.embedding_norm, "a norm of embeddings"),
        (recipe.head_bias, "a bias of the output head"),
        (recipe.layers.iter().any(|l| l.blocks.iter().any(|b| b.mixers.len() > 1)), "parallel mixers in one block"),
    ];
    if let Some(a) = &recipe.attention {
        missing.push((a.qk_norm != QkNorm::None, "norms of queries and keys"));
        missing.push((a.qkv_bias || a.out_bias, "attention biases"));
        missing.push((a.sinks, "attention sinks"));
        missing.push((a.output_gate, "gated attention outputs"));
        missing.push((a.window.is_some(), "attention windows"));
        missing.push((a.dropout > 0.0, "attention dropout"));
    }
    if let Some(m) = &recipe.moe {
        let biased = m.bias || m.router.bias || m.shared.as_ref().is_some_and(|s| s.bias);
        missing.push((biased, "expert biases"));
        missing.push((m.activation == Activation::SwiGluOai, "gpt-oss' gated unit"));
        missing.push((m.latent.is_some(), "latent experts"));
        missing.push((m.capacity_factor.is_some(), "expert capacity"));
        missing.push((m.shared.as_ref().is_some_and(|s| s.gate), "shared expert gate"));
    }
    if recipe.mamba.is_some() {
        missing.push(match &recipe.mamba {
            Some(Mamba::One(_)) => (true, "Mamba-1 block"),
            Some(Mamba::Two(m)) if m.conv == 0 => (true, "Mamba-2 block without a convolution"),
            Some(Mamba::Two(m)) => (m.in_bias || m.out_bias, "Mamba projection biases"),
            Some(Mamba::Three(_)) if by.ssm != [1.0; 5] => (true, "multipliers inside a Mamba-3 block"),
            Some(Mamba::Three(m)) => (m.mimo_rank > 1 || m.state_carry, "Mamba-3 rank or carried state"),
            None => (false, ""),
        });
    }
    if let Some(r) = &recipe.recurrent {
        missing.push((r.state_carry || r.depth_carry.is_some(), "carried recurrent state"));
    }
    if let Some(m) = &recipe.mlp {
        missing.push((m.bias, "MLP biases"));
        missing.push((m.shift, "inputs mixed with the token before"));
        missing.push((m.activation == Activation::Relu, "plain ReLU"));
        missing.push((m.activation == Activation::SwiGluOai, "gpt-oss' gated unit"));
        missing.push((by.mlp[0] != 1.0 && !m.activation.is_gated(), "multiplier of a gate that the MLP does not have"));
    }
    missing.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, name)| name).collect()
}
