//! Experts in Transformer Engine's fused operations (`--use-transformer-engine-op-fuser`): what Megatron asserts
//! (`transformer/moe/experts.py` TEGroupedMLP `_is_fused_impl_supported`), and where Transformer Engine runs the same
//! operations one by one without a word (2.16, `transformer_engine/pytorch/ops/_common.py` fuse_grouped_mlp_ops).

use super::quoted;
use crate::options::{Format, Options};
use diag::Finding;
use hardware::Cluster;
use layout::request::RecomputeModule;
use layout::{Layout, Recompute};
use recipe::kinds::Activation;
use recipe::{Mixer, Recipe};

const WORD: &str = "--use-transformer-engine-op-fuser";
/// What Megatron says of all that it does not support.
const ASSERTED: &str = "Fused GroupedMLP is not supported for this configuration.";
/// What widths of a fused product are multiples of.
const STEP: u64 = 64;

pub fn unmet(recipe: &Recipe, layout: &Layout, options: &Options, on: Option<&Cluster>) -> Vec<Finding> {
    let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
    let Some(moe) = moe.filter(|_| options.kernels.expert_fusion) else { return Vec::new() };
    let again = matches!(&layout.recompute, Recompute::Selective(all) if all.contains(&RecomputeModule::MoeAct));
    let (hidden, ffn) = (moe.latent.unwrap_or(recipe.hidden), moe.ffn);
    let has_kernel = matches!(moe.activation, Activation::SwiGlu | Activation::SwiGluOai);
    let is_new = |cluster: &Cluster| cluster.device.formats.iter().any(|format| format == Format::Mxfp8.name());
    let asked = [
        (
            options.format != Format::Mxfp8,
            "precision",
            format!(
                "products run in {}, and experts are fused in mxfp8: elsewhere they run one by one",
                options.format
            ),
            "if recipe is None or not recipe.mxfp8(): return ops",
            "--precision mxfp8, or leave the op fuser out",
        ),
        (
            on.is_some_and(|cluster| !is_new(cluster)),
            WORD,
            "the fused kernels are written for Blackwell".to_string(),
            "if get_device_compute_capability()[0] != 10: return False",
            "leave the op fuser out",
        ),
        (
            layout.etp.splits(),
            "etp",
            format!("experts are cut over {} ranks, and fused ones are whole", layout.etp),
            ASSERTED,
            "--etp 1",
        ),
        (
            !has_kernel,
            "moe.activation",
            format!("there is no fused kernel around {}", moe.activation.name()),
            ASSERTED,
            "leave the op fuser out",
        ),
        (
            has_kernel && !(hidden.is_multiple_of(STEP) && ffn.is_multiple_of(STEP)),
            WORD,
            format!("experts are {hidden} and {ffn} wide, no multiples of {STEP}: they would run one by one"),
            "window[0].in_features % 64 != 0",
            "leave the op fuser out",
        ),
        (
            again,
            "recompute",
            "fused experts keep what moe_act would compute again".to_string(),
            "\"activation_recompute_in_mlp\" in inspect.signature(te.pytorch.ops.ScaledSwiGLU).parameters",
            "take moe_act out of --recompute",
        ),
    ];
    quoted("megatron/op-fuser", asked)
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused_on;

    #[track_caller]
    fn one(words: &str, object: &str) {
        let found = refused_on(&with(words), "16xGB200");
        assert_eq!(found, [("megatron/op-fuser", object.to_string())], "{words}");
    }

    fn with(words: &str) -> String {
        format!("{words} --engine-args {}", super::WORD)
    }

    #[test]
    fn experts_are_fused_where_there_is_a_kernel() {
        let job = "qwen3-30b-a3b --ep 8 --precision mxfp8";
        assert_eq!(refused_on(&with(job), "16xGB200"), []);
        assert_eq!(refused_on(&with("llama3-8b --precision mxfp8"), "16xGB200"), []);
        one("qwen3-30b-a3b --ep 8", "precision");
        one("qwen3-30b-a3b --ep 8 --precision nvfp4", "precision");
        one(&format!("{job} --tp 2 --etp 2"), "etp");
        one(&format!("{job} --recompute selective:moe_act"), "recompute");
        one("nemotron-3-nano-30b-a3b --ep 8 --precision mxfp8", "moe.activation");
    }
}
