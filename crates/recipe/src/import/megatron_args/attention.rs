//! Attention out of Megatron's flags. Biases follow `--disable-bias-linear`; latent attention that
//! a recipe cannot say (biases, norms of another kind) is refused.

use super::depth::Depth;
use super::flags::Flags;
use crate::kinds::Norm;
use crate::kinds::attention::{Attention, AttentionKind, QkNorm};
use crate::kinds::mla::Mla;
use crate::megatron::Symbol;

/// Reads the attention of the model.
pub fn attention(flags: &mut Flags, hidden: u64, norm: Norm, depth: &Depth) -> Option<Attention> {
    let heads = flags.need("--num-attention-heads")?;
    let groups = match flags.has("--group-query-attention") {
        true if flags.has("--num-query-groups") => flags.number("--num-query-groups")?,
        true => 1,
        false => heads,
    };
    if heads % groups != 0 {
        flags.refuse("--num-query-groups", format!("{heads} query heads do not share {groups} groups evenly"));
        return None;
    }
    let width = match flags.number("--kv-channels") {
        Some(width) => width,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            flags.refuse("--kv-channels", format!("hidden {hidden} does not divide into {heads} heads"));
            return None;
        }
    };
    let mut attention = Attention::gqa(heads, groups, width);
    attention.dropout = super::share(flags, "--attention-dropout")?;
    attention.sinks = flags.text("--softmax-type") == Some("learnable");
    let is_latent = match depth {
        Depth::Hybrid(_) => depth.has_symbol(Symbol::Mla) || depth.has_symbol(Symbol::Dsa),
        Depth::Transformer(_) => flags.has("--multi-latent-attention"),
    };
    if is_latent {
        attention.kind = AttentionKind::Mla(latent(flags, norm)?);
        return Some(attention);
    }
    let bias = !flags.has("--disable-bias-linear");
    (attention.qkv_bias, attention.out_bias) = (bias || flags.has("--add-qkv-bias"), bias);
    attention.output_gate = flags.has("--attention-output-gate");
    if flags.has("--qk-layernorm") {
        attention.qk_norm = QkNorm::Head;
    }
    Some(attention)
}

fn latent(flags: &mut Flags, norm: Norm) -> Option<Mla> {
    let q_rank = flags.number("--q-lora-rank");
    let latent_norm = flags.has("--qk-layernorm");
    if flags.has("--group-query-attention") {
        let quote = "Group query attention is mutually exclusive with multi latent attention.";
        flags.refuse_as("--group-query-attention", "latent attention has no groups", quote);
    }
    if flags.has("--attention-output-gate") {
        let quote = "Output gate is not supported for MLA yet.";
        flags.refuse_as("--attention-output-gate", "latent attention has no output gate", quote);
    }
    if !flags.has("--disable-bias-linear") {
        let message = "latent attention with a bias on its output alone has no recipe; the list keeps biases";
        flags.refuse("--disable-bias-linear", message);
    }
    if latent_norm && norm == Norm::LayerNorm {
        flags.refuse("--qk-layernorm", "latents with LayerNorm have no recipe; their norms are RMSNorm");
    }
    if latent_norm && q_rank.is_none() {
        flags.refuse("--qk-layernorm", "a query norm without `--q-lora-rank` has no recipe");
    }
    let mut width = |flag, usual| if flags.has(flag) { flags.number(flag) } else { Some(usual) };
    let kv_rank = width("--kv-lora-rank", 32);
    let qk_dim = width("--qk-head-dim", 128);
    let rope_dim = width("--qk-pos-emb-head-dim", 64);
    let v_dim = width("--v-head-dim", 128);
    let (kv_rank, qk_dim, rope_dim, v_dim) = (kv_rank?, qk_dim?, rope_dim?, v_dim?);
    Some(Mla { q_rank, kv_rank, qk_dim, rope_dim, v_dim, bias: false, head_gate: false, latent_norm })
}
