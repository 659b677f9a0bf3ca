//! Degrees, batch, recompute, formats and optimizer in Megatron's flags.

use super::super::list::{List, number};
use super::{Shape, unsayable};
use crate::emission::Kind;
use crate::job::Job;
use case::SparseKernels;
use case::options::{EpOverlap, Scaling};
use case::words::{self, Place, Takes, Word};
use diag::Finding;
use layout::{Recompute, ZeroStage};
use recipe::precision::OptimizerPolicy;
use recipe::{Dtype, Mixer, Optimizer};

const LAYOUT: Kind = Kind::Layout;

/// Adds degrees, batch and recompute.
pub fn layout(job: &Job, list: &mut List) {
    let layout = job.layout;
    for (flag, degree, from, why) in [
        ("--tensor-model-parallel-size", layout.tp, "layout.tp", "matrices and head groups [rule tp]"),
        ("--pipeline-model-parallel-size", layout.pp, "layout.pp", "depth [rule pp]"),
        ("--context-parallel-size", layout.cp, "layout.cp", "parts of the timeline [rule cp]"),
    ] {
        list.set(LAYOUT, flag, degree, from, why);
    }
    if job.recipe.uses(Mixer::Moe) {
        list.set(LAYOUT, "--expert-model-parallel-size", layout.ep, "layout.ep", "whole experts to ranks [rule ep]");
        list.set(LAYOUT, "--expert-tensor-parallel-size", layout.etp, "layout.etp", "the default is tp");
    }
    if layout.sp && layout.tp.splits() {
        let why = "activations between tensor regions are sharded along the sequence [sp/required]";
        list.switch(LAYOUT, "--sequence-parallel", "layout.sp", why);
    }
    if crate::nccl::asks_for_sharp(job) {
        // parallel_state.py keeps SHARP to the groups of replicas, and takes its variable back behind them.
        list.switch(LAYOUT, "--use-sharp", "cluster.network", "replicas' sums by the network's switches");
    }
    if layout.cp.splits() && job.recipe.features.dsa().is_some() {
        // transformer_config.py: "DSAttention context parallelism currently supports cp_comm_type=allgather only."
        list.set(LAYOUT, "--cp-comm-type", "allgather", "layout.cp", "sparse attention gathers [megatron/dsa-cp]");
    }
    list.set(LAYOUT, "--micro-batch-size", layout.micro_batch, "layout.micro_batch", "sequences of a microbatch");
    // Megatron takes one or the other. Thresholds are tokens, because it knows how long a sequence is.
    let each = layout.micro_batch * layout.dp.get();
    let ramp = job.policy.run.batch_ramp.and_then(|ramp| ramp.levels(layout.global_batch, each).ok());
    match ramp {
        Some(levels) => {
            let levels: Vec<String> = levels.iter().map(|(tokens, batch)| format!("{tokens}:{batch}")).collect();
            let why = "tokens after which a step has so many sequences; priced with the last";
            list.set(LAYOUT, "--step-batch-size-schedule", levels.join(" "), "policy.run.batch_ramp", why);
        }
        None => {
            list.set(LAYOUT, "--global-batch-size", layout.global_batch, "layout.global_batch", "sequences of a step");
        }
    }
    list.set(LAYOUT, "--seq-length", layout.sequence, "layout.sequence", "tokens of a sequence");
    recompute(job, list);
}

fn recompute(job: &Job, list: &mut List) {
    let from = "layout.recompute";
    match &job.layout.recompute {
        Recompute::None => {}
        Recompute::Full => {
            list.set(LAYOUT, "--recompute-granularity", "full", from, "every layer is computed again");
            list.set(LAYOUT, "--recompute-method", "uniform", from, "layer by layer");
            list.set(LAYOUT, "--recompute-num-layers", 1, from, "layer by layer");
        }
        Recompute::Selective(modules) => {
            list.set(LAYOUT, "--recompute-granularity", "selective", from, "the named modules are computed again");
            list.many(LAYOUT, "--recompute-modules", modules, from, "the default is core_attn alone");
        }
    }
}

/// Adds formats, the optimizer, how state is shared out, and every option that is not Megatron's own
/// default.
pub fn arguments(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    formats(job, list, findings);
    optimizer(job, list, findings);
    sharing(job, list);
    options(job, list);
    if job.case.options.overlap.ep == EpOverlap::Microbatches && Shape::of(job) == Shape::Hybrid {
        let message = "expert exchanges are overlapped in GPTModel alone, and this model is a HybridModel";
        let finding = unsayable("--overlap-moe-expert-parallel-comm", message);
        // core/models/gpt/gpt_model.py; core/pipeline_parallel/combined_1f1b.py calls it.
        findings.push(finding.quote("def build_schedule_plan").hint("take the word out of --engine-args"));
    }
    offload(job, list, findings);
}

fn options(job: &Job, list: &mut List) {
    for (word, value) in words::emitted(job.layout.engine, &job.case.options) {
        if word.place != Place::Argument || !applies(job, word) {
            continue;
        }
        match (word.takes, value.as_str()) {
            (Takes::Switch, "true") => list.switch(Kind::Policy, word.name, "options", word.what),
            (Takes::Switch, _) => {
                list.switch(Kind::Policy, &word.negated(), "options", &format!("off: {}", word.what));
            }
            (Takes::Some(_), value) => list.many(Kind::Policy, word.name, value.split(','), "options", word.what),
            (_, value) => list.set(Kind::Policy, word.name, value, "options", word.what),
        }
    }
}

/// Whether an option has anything to act on in this job: Megatron refuses some where it has not.
fn applies(job: &Job, word: &Word) -> bool {
    let has_experts = job.recipe.uses(Mixer::Moe);
    match word.name {
        // On one replica nothing travels, and every bucket's test for numbers would still wait for the device. A distributed
        // optimizer overlaps its gathers only beside it.
        "--overlap-grad-reduce" => {
            job.layout.zero != ZeroStage::Zero || job.layout.dense_shards() > 1 || job.layout.edp.splits()
        }
        "--overlap-param-gather" => job.layout.zero != ZeroStage::Zero,
        "--rope-fusion" => matches!(job.recipe.positions, recipe::Positions::Rope(_)) || job.recipe.is_latent(),
        "--tp-comm-overlap" => job.layout.tp.splits(),
        "--dsa-kernel-backend" => {
            case::sparse_kernels(job.recipe, job.layout, &job.case.options) == SparseKernels::Tilelang
        }
        name if name.starts_with("--moe-") || name.contains("-moe-") => has_experts,
        _ => true,
    }
}

fn formats(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let (precision, options) = (&job.recipe.precision, &job.case.options);
    if precision.weights != Dtype::Bf16 {
        let message = format!("weights are emitted in bf16, and the recipe has {}", precision.weights);
        findings.push(unsayable("precision.weights", message));
    }
    list.switch(Kind::RecipeNative, "--bf16", "precision.weights", "the default is fp32");
    match options.state.gradients {
        Dtype::Fp32 => {
            let why = "gradients are accumulated and reduced in fp32";
            list.switch(Kind::RecipeNative, "--accumulate-allreduce-grads-in-fp32", "precision.gradients", why);
        }
        Dtype::Bf16 => {
            let why = "the default reduces in fp32 under bf16";
            list.switch(Kind::RecipeNative, "--grad-reduce-in-bf16", "precision.gradients", why);
        }
        other => findings.push(unsayable("precision.gradients", format!("gradients are fp32 or bf16, not {other}"))),
    }
    let Some(scaling) = options.scaling else { return };
    let (policy, from) = (Kind::Policy, "state.precision");
    if scaling == Scaling::Nvfp4 {
        list.set(policy, "--fp4-format", "e2m1", from, "products in NVFP4");
        list.set(policy, "--fp4-recipe", "nvfp4", from, "one scale for 16 elements");
    } else {
        let (name, format) = match scaling {
            Scaling::Delayed => ("delayed", "hybrid"),
            Scaling::Tensorwise => ("tensorwise", "hybrid"),
            Scaling::Blockwise => ("blockwise", "e4m3"),
            Scaling::Mxfp8 | Scaling::Nvfp4 => ("mxfp8", "e4m3"),
            Scaling::Rowwise => {
                findings.push(unsayable(from, "Transformer Engine has no recipe with a scale a row"));
                return;
            }
        };
        list.set(policy, "--fp8-format", format, from, "products in fp8");
        list.set(policy, "--fp8-recipe", name, from, "where scales come from; the default is delayed");
    }
    if options.fp8_param_gather {
        let flag = if scaling == Scaling::Nvfp4 { "--fp4-param-gather" } else { "--fp8-param-gather" };
        list.switch(policy, flag, "state.fp8_param_gather", "weights are kept and gathered in the product's format");
    }
}

fn optimizer(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let tensors = job.recipe.tensors();
    let steps = |optimizer| tensors.iter().any(|t| t.optimizer == optimizer);
    let muon = recipe::Recipe { optimizer: OptimizerPolicy::muon(), ..job.recipe.clone() };
    let dealt = |tensors: &[recipe::Tensor]| tensors.iter().map(|t| t.optimizer).collect::<Vec<_>>();
    if steps(Optimizer::Muon) && dealt(&tensors) != dealt(&muon.tensors()) {
        let message = "Muon steps every matrix and expert and AdamW the rest, and the recipe deals them otherwise";
        findings.push(unsayable("optimizer", message));
    }
    if steps(Optimizer::Sgd) {
        findings.push(unsayable("optimizer", "SGD for some tensors and another optimizer for the rest has no flag"));
    }
    let name = if steps(Optimizer::Muon) { "muon" } else { "adam" };
    let why = "Muon steps matrices, AdamW the rest";
    let why = if name == "muon" { why } else { "AdamW throughout" };
    list.set(Kind::RecipeNative, "--optimizer", name, "recipe.optimizer", why);
    list.set(Kind::Policy, "--adam-beta1", "0.9", "policy.run", "usual for language models");
    list.set(Kind::Policy, "--adam-beta2", "0.95", "policy.run", "the default is 0.999");
    if name == "muon" {
        list.set(Kind::Policy, "--muon-momentum", "0.95", "policy.run", "the default is 0.9");
        let why = "each tensor-parallel rank orthogonalises its own part";
        list.set(Kind::Policy, "--muon-tp-mode", "blockwise", "layout.tp", why);
    }
    moments(job, list, findings);
}

/// Moments and main weights in other formats need the precision-aware optimizer; which formats is
/// said with the other options.
fn moments(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let state = &job.case.options.state;
    let moments = [state.exp_avg, state.exp_avg_sq];
    if !case::is_precision_aware(&job.case.options) {
        return;
    }
    let why = "moments and main weights in formats of their own, or on the host";
    list.switch(Kind::RecipeNative, "--use-precision-aware-optimizer", "precision", why);
    if state.gradients == Dtype::Bf16 {
        list.set(Kind::RecipeNative, "--main-grads-dtype", "bf16", "precision.gradients", "as they are accumulated");
    }
    let sayable = [Dtype::Fp32, Dtype::Bf16, Dtype::Fp16];
    if moments.iter().any(|dtype| !sayable.contains(dtype)) || ![Dtype::Fp32, Dtype::Fp16].contains(&state.main) {
        let message = format!("moments in {} and {} with main weights in {}", moments[0], moments[1], state.main);
        findings.push(unsayable("precision", message + " have no flag"));
    }
}

/// How state is shared out.
fn sharing(job: &Job, list: &mut List) {
    let from = "layout.zero";
    let distributed = "--use-distributed-optimizer";
    match job.layout.zero {
        ZeroStage::Zero => {}
        ZeroStage::One => list.switch(LAYOUT, distributed, from, "optimizer state is shared out over replicas"),
        ZeroStage::Two | ZeroStage::Three => {
            let strategy = if job.layout.zero == ZeroStage::Two { "optim_grads" } else { "optim_grads_params" };
            list.switch(LAYOUT, "--use-megatron-fsdp", from, "gradients, and at 3 weights, are shared out");
            list.switch(LAYOUT, distributed, from, "Megatron-FSDP stands on it");
            list.set(LAYOUT, "--data-parallel-sharding-strategy", strategy, from, "what is shared out");
        }
    }
}

fn offload(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    if job.case.options.offload > 0.0 {
        let from = "state.offload_optimizer";
        list.switch(Kind::Policy, "--optimizer-cpu-offload", from, "AdamW's state on the host");
        list.set(
            Kind::Policy,
            "--optimizer-offload-fraction",
            number(job.case.options.offload),
            from,
            "the default is all",
        );
    }
    if job.case.options.offload_activations > 0.0 {
        let message = "Megatron offloads named modules or whole layers, not a share of activations";
        findings.push(unsayable("offload-activations", message).hint("leave --offload-activations out"));
    }
}
