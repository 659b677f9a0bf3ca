//! Flags of Megatron-Core 0.19.2 that change the model or who holds what, in ways that neither a
//! recipe nor our layout flags can say. An argument list that has one is refused by its name.
//! Flags that change neither (learning rates, data, logging, kernels, formats) are not here.

/// Flags that change the model's parameters or structure, and why no recipe says it.
pub const MODEL: &[(&str, &str)] = &[
    // The model is described somewhere else.
    ("--heterogeneous-layers-config-path", HETEROGENEOUS),
    ("--heterogeneous-layers-config-encoded-json", HETEROGENEOUS),
    ("--yaml-cfg", ELSEWHERE),
    ("--use-checkpoint-args", ELSEWHERE),
    ("--use-mp-args-from-checkpoint-args", ELSEWHERE),
    // Blocks that a recipe has no word for.
    ("--mla-down-proj-fusion", "it merges latent attention's down-projections and cuts them over tp"),
    ("--qk-l2-norm", "queries and keys are normalised without parameters"),
    ("--apply-residual-connection-post-layernorm", "the residual leaves behind the norm"),
    ("--no-rope-freq", "some layers have no positions"),
    ("--mrope-section", "positions are multimodal"),
    ("--use-kitchen-attention", KITCHEN),
    ("--kitchen-attention-backend", KITCHEN),
    ("--mtp-hybrid-override-pattern", "the suffix belongs into `--hybrid-layer-pattern`, behind `/`"),
    ("--moe-use-upcycling", UPCYCLING),
    ("--moe-upcycling-granularity", UPCYCLING),
    ("--moe-expert-rank-capacity-factor", "capacity is a rank's, and a recipe's an expert's"),
    ("--freeze-all-layers", "nothing trains"),
    // Models that are no decoder-only language model.
    ("--encoder-num-layers", ENCODER),
    ("--decoder-num-layers", ENCODER),
    ("--encoder-seq-length", ENCODER),
    ("--decoder-seq-length", ENCODER),
    ("--vocab-extra-ids", ENCODER),
    ("--relative-attention-num-buckets", ENCODER),
    ("--relative-attention-max-distance", ENCODER),
    ("--bert-embedder-type", BERT),
    ("--bert-load", BERT),
    ("--bert-no-binary-head", BERT),
    ("--output-bert-embeddings", BERT),
    ("--biencoder-projection-dim", BERT),
    ("--biencoder-shared-query-context-model", BERT),
    ("--ict-head-size", BERT),
    ("--ict-load", BERT),
    ("--retriever-report-topk-accuracies", BERT),
    ("--retriever-score-scaling", BERT),
    ("--vision-pretraining", VISION),
    ("--vision-pretraining-type", VISION),
    ("--vision-backbone-type", VISION),
    ("--swin-backbone-type", VISION),
    ("--num-classes", VISION),
    ("--num-channels", VISION),
    ("--patch-dim", VISION),
    ("--img-h", VISION),
    ("--img-w", VISION),
    ("--mask-type", VISION),
    ("--mask-factor", VISION),
    ("--dino-bottleneck-size", VISION),
    ("--dino-freeze-last-layer", VISION),
    ("--dino-head-hidden-size", VISION),
    ("--dino-local-crops-number", VISION),
    ("--dino-local-img-size", VISION),
    ("--dino-norm-last-layer", VISION),
    ("--dino-teacher-temp", VISION),
    ("--dino-warmup-teacher-temp", VISION),
    ("--dino-warmup-teacher-temp-epochs", VISION),
];

/// Flags that change who holds what, and why none of our layout flags says it.
pub const LAYOUT: &[(&str, &str)] = &[
    ("--pipeline-model-parallel-layout", "stages are given in a language of their own"),
    ("--mtp-standalone", "prediction heads get a stage to themselves"),
    ("--tensor-parallel-num-weight-shards", WEIGHT_SHARDS),
    ("--expert-tensor-parallel-num-weight-shards", WEIGHT_SHARDS),
    ("--use-tp-pp-dp-mapping", "ranks run through the axes in another order"),
    ("--hybrid-context-parallel", "each sequence gets a cp of its own"),
    ("--enable-full-sharding-in-hsdp", REPLICAS),
    ("--torch-fsdp2-no-reshard-after-forward", "weights stay gathered between forward and backward"),
    ("--distribute-saved-activations", "what full recompute saves is cut over tp"),
    ("--model-parallel-size", "Megatron took it away; it is `--tensor-model-parallel-size`"),
    ("--batch-size", "Megatron took it away; it is `--micro-batch-size`"),
    ("--checkpoint-activations", "Megatron took it away; it is `--recompute-activations`"),
];

/// Flags of which only some values can be said: the values, and why the others cannot.
pub const ONLY: &[(&str, &[&str], &str)] = &[
    ("--optimizer", &["adam", "muon", "dist_muon"], "its state is not AdamW's or Muon's"),
    ("--muon-scalar-optimizer", &["adam"], "its state is not AdamW's"),
    ("--moe-router-score-function", &["softmax", "sigmoid"], "a router's scores are softmax or sigmoid"),
    ("--moe-router-dtype", &["fp32"], "a router's scores are fp32 or bf16"),
    (
        "--moe-router-load-balancing-type",
        &["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"],
        "quantile balancing keeps state of its own",
    ),
    (
        "--position-embedding-type",
        &["learned_absolute", "rope", "yarn", "none"],
        "positions are learned, rotary or none",
    ),
    ("--transformer-impl", &["transformer_engine", "local"], "it is not for training"),
    ("--num-distributed-optimizer-instances", &["1"], REPLICAS),
    ("--outer-dp-sharding-strategy", &["no_shard"], REPLICAS),
];

const HETEROGENEOUS: &str = "each layer has its own widths, in another file";
const ELSEWHERE: &str = "the model's arguments stand in another file";
const KITCHEN: &str = "another library builds the attention";
const UPCYCLING: &str = "the experts are made out of another model";
const ENCODER: &str = "only decoder-only models are";
const BERT: &str = "BERT and retrievers are no decoder-only models";
const VISION: &str = "vision models are no language models";
const WEIGHT_SHARDS: &str = "weights are cut further than activations";
const REPLICAS: &str = "state would be shared out over some replicas and kept by others";

#[cfg(test)]
mod tests {
    use super::super::flags::options;
    use super::super::taken;
    use super::*;

    #[test]
    fn every_refused_flag_is_the_engines_and_is_not_read() {
        let options = options();
        assert_eq!(options.as_object().unwrap().len(), 847);
        let refused: Vec<&str> = MODEL.iter().chain(LAYOUT).map(|(flag, _)| *flag).collect();
        for flag in &refused {
            assert!(options.get(flag).is_some(), "{flag}");
            assert!(!taken::is_read(flag), "{flag}");
        }
        for (flag, values, _) in ONLY {
            let choices = options[flag]["choices"].as_array();
            let is_choice = |v: &&str| choices.is_none_or(|choices| choices.iter().any(|c| c.as_str() == Some(v)));
            assert!(options.get(flag).is_some() && values.iter().all(is_choice), "{flag}");
            assert!(!refused.contains(flag), "{flag}");
        }
    }
}
