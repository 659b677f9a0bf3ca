//! Flags that made the recipe or the layout, each by its whole name: a prefix would hide the next
//! flag that an engine adds under it.

/// Whether a flag was read.
pub fn is_read(flag: &str) -> bool {
    MODEL.contains(&flag) || LAYOUT.contains(&flag)
}

/// Flags read into the recipe.
pub const MODEL: &[&str] = &[
    "--hidden-size",
    "--vocab-size",
    "--padded-vocab-size",
    "--seq-length",
    "--num-layers",
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--spec",
    "--is-hybrid-model",
    "--untie-embeddings-and-output-weights",
    "--normalization",
    "--position-embedding-type",
    "--use-rotary-position-embeddings",
    "--no-position-embedding",
    "--norm-epsilon",
    "--init-method-std",
    "--hidden-dropout",
    "--attention-dropout",
    "--rotary-base",
    "--rotary-percent",
    "--rotary-seq-len-interpolation-factor",
    "--rotary-scaling-factor",
    "--rope-type",
    "--use-rope-scaling",
    "--rope-scaling-factor",
    "--mscale",
    "--mscale-all-dim",
    "--max-position-embeddings",
    "--swiglu",
    "--squared-relu",
    "--ffn-hidden-size",
    "--disable-bias-linear",
    "--num-attention-heads",
    "--group-query-attention",
    "--num-query-groups",
    "--kv-channels",
    "--qk-layernorm",
    "--add-qkv-bias",
    "--attention-output-gate",
    "--softmax-type",
    "--window-size",
    "--window-attn-skip-freq",
    "--multi-latent-attention",
    "--q-lora-rank",
    "--kv-lora-rank",
    "--qk-head-dim",
    "--qk-pos-emb-head-dim",
    "--v-head-dim",
    "--experimental-attention-variant",
    "--linear-attention-freq",
    "--linear-conv-kernel-dim",
    "--linear-key-head-dim",
    "--linear-value-head-dim",
    "--linear-num-key-heads",
    "--linear-num-value-heads",
    "--dsa-indexer-n-heads",
    "--dsa-indexer-head-dim",
    "--dsa-indexer-topk",
    "--dsa-indexer-topk-freq",
    "--dsa-indexer-skip-topk-offset",
    "--num-experts",
    "--moe-router-topk",
    "--moe-ffn-hidden-size",
    "--moe-layer-freq",
    "--moe-latent-size",
    "--moe-shared-expert-intermediate-size",
    "--moe-shared-expert-gate",
    "--moe-router-score-function",
    "--moe-router-enable-expert-bias",
    "--moe-router-load-balancing-type",
    "--moe-aux-loss-coeff",
    "--moe-z-loss-coeff",
    "--moe-router-pre-softmax",
    "--moe-router-topk-scaling-factor",
    "--moe-router-num-groups",
    "--moe-router-group-topk",
    "--moe-router-bias-update-rate",
    "--moe-router-dtype",
    "--moe-expert-capacity-factor",
    "--mamba-num-heads",
    "--mamba-head-dim",
    "--mamba-state-dim",
    "--mamba-num-groups",
    "--mtp-num-layers",
    "--mtp-use-repeated-layer",
    "--optimizer",
];

/// Flags read into the layout.
pub const LAYOUT: &[&str] = &[
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
    "--micro-batch-size",
    "--global-batch-size",
    "--make-vocab-size-divisible-by",
    "--num-virtual-stages-per-pipeline-rank",
    "--num-layers-per-virtual-pipeline-stage",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--sequence-parallel",
    "--use-distributed-optimizer",
    "--use-megatron-fsdp",
    "--data-parallel-sharding-strategy",
    "--use-torch-fsdp2",
    "--num-distributed-optimizer-instances",
    "--outer-dp-sharding-strategy",
    "--recompute-activations",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-modules",
    "--moe-layer-recompute",
];

#[cfg(test)]
mod tests {
    use super::super::flags::options;
    use super::*;

    #[test]
    fn every_flag_that_is_read_is_the_engines() {
        let options = options();
        for flag in MODEL.iter().chain(LAYOUT) {
            assert!(options.get(flag).is_some(), "{flag}");
        }
        assert!(!is_read("--linear-x") && !is_read("--dsa-indexer-loss-coeff"));
    }
}
