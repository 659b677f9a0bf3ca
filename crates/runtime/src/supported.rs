//! Fields of a recipe that this engine's blocks do not compute. A rehearsal of another model would prove
//! nothing, so they are refused by name.

use diag::{Blame, Finding};
use recipe::kinds::NormPlace;
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Recipe};

/// What the recipe says and no block does.
pub fn unsupported(recipe: &Recipe) -> Vec<Finding> {
    let router = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe)).map(|moe| &moe.router);
    let attention = recipe.attention.as_ref().filter(|_| recipe.uses(Mixer::Attention));
    let computed = ["embedding", "residual", "attention", "logits"];
    let multipliers = recipe.multipliers.set().into_iter().filter(|key| !computed.contains(key));
    let fields = [
        (recipe.dropout > 0.0, "dropout"),
        (!recipe.norm.is_usual(), "norm"),
        (recipe.norm_place != NormPlace::Before, "norm_place"),
        (recipe.embedding_norm, "embedding_norm"),
        (recipe.head_bias, "head_bias"),
        (recipe.features.mhc().is_some(), "features.mhc"),
        (recipe.features.depths().is_some(), "features.mod"),
        (recipe.features.engram().is_some(), "features.engram"),
        (recipe.uses(Mixer::Linear), "linear"),
        (recipe.uses(Mixer::Shared), "shared"),
        (recipe.gates_latent_heads(), "attention.head_gate"),
        (recipe.mlp.as_ref().is_some_and(|m| m.shift), "mlp.shift"),
        (matches!(&recipe.mamba, Some(Mamba::One(m)) if m.heads > 1) && recipe.uses(Mixer::Mamba), "mamba.heads"),
        (matches!(&recipe.mamba, Some(Mamba::Two(m)) if m.conv == 0) && recipe.uses(Mixer::Mamba), "mamba.conv"),
        (recipe.features.mtp().is_some_and(|mtp| mtp.shared), "features.mtp.shared"),
        (recipe.features.dsa().is_some_and(|dsa| !dsa.reuse.is_empty()), "features.dsa.reuse"),
        (attention.and_then(|a| a.window.as_ref()).is_some_and(|w| w.chunked), "attention.chunked"),
        (attention.is_some_and(|a| a.dropout > 0.0), "attention.dropout"),
        (router.is_some_and(|r| r.z_loss.is_some()), "moe.router.z_loss"),
        (router.is_some_and(|r| r.bias_update_rate.is_some()), "moe.router.bias_update_rate"),
    ];
    let fields = fields.into_iter().filter(|(is_set, _)| *is_set).map(|(_, field)| field.to_string());
    let refuse = |field: String| {
        let message = format!("the runtime does not compute `{field}`");
        Finding::error("runtime/unsupported", Blame::Engine, field, message)
    };
    fields.chain(multipliers.map(|key| format!("multipliers.{key}"))).map(refuse).collect()
}
