//! Megatron-Core 0.19.2. File names are relative to `megatron/core` unless they start with
//! `training/`.

use super::{refuse_parallel, refuse_schedule, unsupported};
use crate::legality::Case;
use crate::request::{Recompute, RecomputeModule, Schedule, ZeroStage};
use diag::{Blame, Finding};
use recipe::kinds::attention::QkNorm;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::moe::ScoreFunction;
use recipe::{Mixer, Positions};

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    quote_general_rules(findings);
    blocks(case, findings);
    refuse_schedule("megatron/schedule", "Megatron-Core", &[Schedule::OneF1b, Schedule::Interleaved], case, findings);
    features(case, findings);
    state(case, findings);
    if let (Recompute::Selective(modules), true) = (&case.layout.recompute, case.recipe.has(Mixer::GatedDelta))
        && modules.contains(&RecomputeModule::GdnNormOut)
    {
        // transformer/transformer_config.py: the hybrid `G` does not set the variant.
        let finding =
            unsupported("megatron/gdn-recompute", "recompute", "gdn_norm_out cannot be recomputed in a hybrid stack");
        findings.push(finding.quote("gdn_norm_out in recompute_modules is only supported with"));
    }
}

/// The general rules that Megatron states itself: its words become the reason.
fn quote_general_rules(findings: &mut [Finding]) {
    let quotes = [
        // transformer/transformer_config.py
        ("tp/heads", "must be a multiple of tensor_model_parallel_size"),
        ("tp/kv-heads", "must be a multiple or divisor of"),
        // ssm/mamba_mixer.py, ssm/mamba_context_parallel.py
        ("mamba/heads-over-tp", "nheads must be evenly divisble by tp_size"),
        ("mamba/groups-over-tp", "ngroups must be evenly divisible by tp_size"),
        ("cp/mamba-heads", "nheads must be evenly divisible by tp_size * cp_size"),
        ("cp/mamba-groups", "cp_size must be evenly divisible by ngroups/tp_size"),
        // training/arguments.py
        ("cp/sequence", "seq-length should be a multiple of 2 * context-parallel-size"),
        ("ep/experts", "Number of experts should be a multiple of expert model parallel_size."),
        // tensor_parallel/mappings.py, transformer/moe/moe_layer.py
        ("sp/sequence", "First dimension of the tensor should be divisible by tensor parallel size"),
        ("sp/required", "During training, performance may degrade if MoE and tensor parallelism"),
        // parallel_state.py
        ("world/dense", "is not divisible by total_model_size"),
        ("world/expert", "is not divisible by expert_tensor_model_pipeline_parallel size"),
        ("ep/no-experts", "num_moe_experts must be non None to use expert-parallel."),
        // num_microbatches_calculator.py, pipeline_parallel/schedules.py
        ("batch/global", "is not divisible by micro batch size"),
        ("schedule/interleaved-microbatches", "or larger than or equal to the pipeline-parallel size, but it is "),
    ];
    for finding in findings.iter_mut().filter(|f| f.quote.is_none()) {
        let quote = quotes.iter().find(|(rule, _)| *rule == finding.rule);
        finding.quote = quote.map(|(_, words)| words.to_string());
    }
}

fn blocks(case: &Case, findings: &mut Vec<Finding>) {
    let recipe = case.recipe;
    if recipe.uses(Mixer::Recurrent) && case.layout.mode.is_none() {
        let layers = recipe::megatron::numbers(&recipe.layers_with(Mixer::Recurrent));
        let message = format!("Megatron-Core has no recurrent block (`R`, layers {layers})");
        findings.push(
            unsupported("megatron/recurrent", "recurrent", message)
                .hint("--mode nemo_native puts the built-in mixer there; author_dp keeps a custom one behind `M`"),
        );
    }
    match &recipe.mamba {
        Some(Mamba::One(_)) if recipe.uses(Mixer::Mamba) => {
            findings.push(unsupported(
                "megatron/mamba1",
                "mamba",
                "Megatron-Core's `M` is Mamba-2, and the recipe has Mamba-1",
            ));
        }
        Some(Mamba::Three(_)) if recipe.uses(Mixer::Mamba) && case.layout.mode.is_none() => {
            findings.push(
                unsupported("megatron/mamba3", "mamba", "Megatron-Core's `M` is Mamba-2, and the recipe has Mamba-3")
                    .hint("--mode nemo_native runs the built-in mixer; author_dp keeps a custom one"),
            );
        }
        _ => {}
    }
    refuse_parallel("megatron/parallel-block", "Megatron-Core", case, findings);
    if let Some(attention) = recipe.attention().filter(|_| recipe.uses(Mixer::Attention)) {
        if attention.sinks {
            let message = "attention sinks are not emitted for Megatron-Core";
            findings.push(unsupported("megatron/sinks", "attention", message));
        }
        if attention.qk_norm == QkNorm::Full {
            // transformer/attention.py: q and k norms are as wide as a head
            let message = "Megatron-Core normalises queries and keys head by head";
            findings.push(unsupported("megatron/qk-norm", "attention", message));
        }
    }
    if let Some(differing) = other_activation(case) {
        // transformer/transformer_config.py: one `activation_func` and `gated_linear_unit`
        let finding = unsupported("megatron/one-activation", "activation", differing);
        findings.push(finding.hint("--mode nemo_native runs one activation, author_dp keeps a custom shared expert"));
    }
    let sides: Vec<_> = recipe.features.sides().map(|(name, _)| name).collect();
    if !sides.is_empty() && case.layout.mode.is_none() {
        let message = format!("Megatron-Core builds no side embeddings ({})", sides.join(", "));
        findings.push(unsupported("megatron/side-embeddings", "features", message).hint("a mode names them as a seam"));
    }
    experts(case, findings);
}

fn experts(case: &Case, findings: &mut Vec<Finding>) {
    let recipe = case.recipe;
    let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
    if moe.is_some_and(|m| m.top_k == 1 && m.router.score == ScoreFunction::Softmax) {
        // transformer/transformer_config.py
        let message = "one expert a token with a softmax router needs the scores before the choice";
        let note = Finding::note("megatron/top-1", Blame::Engine, "moe.top_k", message);
        findings.push(note.quote("Please use --moe-router-pre-softmax when topk is 1."));
    }
    if moe.is_some_and(|m| m.shared.as_ref().is_some_and(|s| s.bias)) {
        // transformer/moe/shared_experts.py
        let finding = unsupported("megatron/shared-bias", "moe.shared", "a shared expert cannot have biases");
        findings.push(finding.quote("bias is not supported in the shared experts"));
    }
}

/// The feed-forward kinds of the model whose activation differs from the others', in words. A
/// shared expert's own one is a named seam under a mode.
fn other_activation(case: &Case) -> Option<String> {
    let recipe = case.recipe;
    let mlp = recipe.mlp.as_ref().filter(|_| recipe.uses(Mixer::Mlp)).map(|m| ("mlp", m.activation));
    let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
    let shared = moe.and_then(|m| m.shared.as_ref()).filter(|_| case.layout.mode.is_none());
    let kinds: Vec<_> = [mlp, moe.map(|m| ("moe", m.activation)), shared.map(|s| ("moe.shared", s.activation))]
        .into_iter()
        .flatten()
        .collect();
    let is_one = kinds.iter().all(|(_, activation)| *activation == kinds[0].1);
    let words: Vec<_> = kinds.iter().map(|(name, activation)| format!("{name} {activation}")).collect();
    let list = words.join(", ");
    (!is_one).then(|| format!("Megatron-Core has one activation for the whole model, and the recipe has {list}"))
}

fn features(case: &Case, findings: &mut Vec<Finding>) {
    let (recipe, layout) = (case.recipe, case.layout);
    if recipe.features.mtp().is_some() && matches!(recipe.positions, Positions::Learned { .. }) {
        // training/arguments.py
        let finding =
            unsupported("megatron/mtp-positions", "features.mtp", "prediction heads need rotary positions or none");
        findings.push(finding.quote("The supported position embedding types are rope and none."));
    }
    if recipe.features.dsa().is_none() {
        return;
    }
    if !recipe.is_latent() {
        // models/hybrid/hybrid_layer_allocation.py
        let finding = unsupported("megatron/dsa-mla", "features.dsa", "sparse attention (`D`) may not stand with `*`");
        let quote = "Not supported to have both Attention and MLA/DSA in one model";
        findings.push(finding.quote(quote).hint("switch `mla` on, or `dsa` off"));
    }
    if layout.tp.splits() && !layout.sp {
        // transformer/experimental_attention_variant/absorbed_mla.py
        let finding = unsupported("megatron/dsa-sp", "sp", "sparse attention with tp needs sequence parallelism");
        findings.push(
            finding
                .quote("AbsorbedMLA requires sequence_parallel when tensor_model_parallel_size > 1")
                .fix("sp", vec![1]),
        );
    }
    if layout.cp.splits() {
        // transformer/transformer_config.py
        let message = "context parallelism under sparse attention must gather, not ring";
        let note = Finding::note("megatron/dsa-cp", Blame::Engine, "cp", message);
        findings.push(note.quote("DSAttention context parallelism currently supports cp_comm_type=allgather only."));
    }
}

fn state(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    if layout.zero < ZeroStage::Two {
        return;
    }
    if case.recipe.tensors().iter().any(|t| t.optimizer == recipe::Optimizer::Muon) {
        // training/arguments.py
        let message = format!("Muon runs with Megatron's layer-wise optimizer, not with FSDP (zero {})", layout.zero);
        let finding = unsupported("megatron/muon-fsdp", "zero", message).fix("zero", vec![0, 1]);
        findings.push(finding.quote("Emerging optimizer does not support Megatron-FSDP for now."));
    } else {
        let message = format!("zero {} runs as Megatron-FSDP, with its own checkpoint format", layout.zero);
        let note = Finding::note("megatron/fsdp", Blame::Engine, "zero", message);
        findings.push(note.hint("needs --ckpt-format fsdp_dtensor and CUDA_DEVICE_MAX_CONNECTIONS other than 1"));
    }
}
