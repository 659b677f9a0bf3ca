//! Conditions under which an engine takes an option at all, asked once layout and options are known.
//! What only a layout decides stands in `layout::engines`. Each refusal quotes the engine.

pub(crate) mod exchanges;
mod expert_fusion;
pub(crate) mod precision_aware;
mod sparse;

pub use sparse::{SparseKernels, kernels as sparse_kernels};
pub(crate) use sparse::{kernels_decline as sparse_kernels_decline, seam as sparse_seam};

use crate::options::{
    CrossEntropy, Dispatch, Elementwise, EpOverlap, Format, GraphModule, GraphsBy, Options, TpOverlap,
};
use crate::ways::{AdapterLayers, ElementStep, MomentumFormat};
use diag::{Blame, Finding, RuleId};
use hardware::Cluster;
use layout::legality::UNALIGNED;
use layout::widths::{Unaligned, unaligned};
use layout::{Engine, Layout, Recompute, ZeroStage};
use recipe::kinds::attention::AttentionKind;
use recipe::kinds::mamba::Mamba;
use recipe::{Dtype, Layer, Mixer, Optimizer, Recipe};

/// Every condition that is not met; those about devices where it is known on which the job runs.
pub fn unmet(recipe: &Recipe, layout: &Layout, options: &Options, on: Option<&Cluster>) -> Vec<Finding> {
    match layout.engine {
        Some(Engine::Megatron) => {
            let mut found = expert_overlap(recipe, layout, options);
            found.extend(overlap(layout, options));
            found.extend(loss(options));
            found.extend(precision_aware::unmet(recipe, layout, options));
            found.extend(documents(layout, options));
            found.extend(exchanges::unmet(recipe, layout, options, on));
            found.extend(expert_fusion::unmet(recipe, layout, options, on));
            found.extend(sparse::fusion(recipe, layout, options));
            found.extend(sparse::rope_fusion(recipe, options));
            found.extend(scan_in_8_bits(recipe, options));
            found.extend(graphs(recipe, layout, options));
            found
        }
        Some(Engine::Deepspeed) => {
            let mut found = accumulate(layout, options);
            found.extend(offload(layout, options));
            found
        }
        Some(Engine::Fsdp2) => ways(recipe, layout, options),
        _ => Vec::new(),
    }
}

/// What somebody has to see to for the conditions to hold.
pub fn asks(recipe: &Recipe, layout: &Layout, options: &Options, on: &Cluster) -> Option<Finding> {
    match layout.engine {
        Some(Engine::Megatron) => exchanges::placement(recipe, layout, options, on),
        _ => None,
    }
}

/// What the emitted FSDP2 program asks of a job that trains another way (`launch/assets/fsdp2`: `quantised.py`,
/// `lora.py`, `stepped.py`, `model.py`).
fn ways(recipe: &Recipe, layout: &Layout, options: &Options) -> Vec<Finding> {
    let ways = options.ways;
    let has_adapters = recipe.adapters().is_some();
    let is_adapted = |optimizer| recipe.tensors().iter().any(|t| !t.is_frozen && t.optimizer == optimizer);
    let base = ways.base.is_quantised();
    let peft = ways.adapters == AdapterLayers::Peft;
    let fused = options.kernels.cross_entropy.has_head();
    let add = "give the recipe an [adapters] table, or say --with adapters";
    let asked = [
        (base && !has_adapters, "fsdp2/base", "base", "a base in nf4 is frozen, and nothing beside it is trained", add),
        (base && layout.tp.splits(), "fsdp2/base", "tp", "blocks of a base in nf4 are not cut over tp", "--tp 1"),
        (
            base && recipe.uses(Mixer::Moe),
            "fsdp2/base",
            "base",
            "bitsandbytes has no nf4 for a bank of experts",
            "take base out of --engine-args",
        ),
        (
            peft && !has_adapters,
            "fsdp2/peft",
            "adapters",
            "peft's layers stand around adapters, and there are none",
            add,
        ),
        (peft && layout.tp.splits(), "fsdp2/peft", "tp", "peft's factors are not cut over tp", "--tp 1"),
        (
            peft && recipe.uses(Mixer::Moe),
            "fsdp2/peft",
            "adapters",
            "peft has no layer for a bank of experts",
            "take adapters=peft out of --engine-args",
        ),
        (
            ways.elements == ElementStep::Adafactor && layout.world > 1,
            "fsdp2/adafactor",
            "optimizer",
            "rows and columns of second moments are of whole matrices, and shards hold a part of them",
            "one rank, or optimizer=adamw8bit",
        ),
        (
            fused && (layout.tp.splits() || layout.pp.splits()),
            "fsdp2/fused-loss",
            "loss",
            "a loss that multiplies the head needs all of it on every rank of one stage",
            "--tp 1 --pp 1",
        ),
        (
            ways.elements == ElementStep::Soap && layout.world > 1,
            "fsdp2/soap",
            "optimizer",
            "preconditioners are of whole matrices, and shards hold a part of their rows",
            "one rank, or --optimizer muon+adamw, whose matrices are gathered",
        ),
        (
            ways.elements == ElementStep::Shampoo && layout.world > 1,
            "fsdp2/shampoo",
            "optimizer",
            "blocks and their roots are of whole matrices, and shards hold a part of their rows",
            "one rank, or --optimizer muon+adamw, whose matrices are gathered",
        ),
        (
            ways.momentum == MomentumFormat::Int8 && !is_adapted(Optimizer::Muon),
            "fsdp2/int8-momentum",
            "momentum",
            "no tensor is stepped by Muon",
            "--optimizer muon+adamw",
        ),
    ];
    let unmet = asked.into_iter().filter(|(is_unmet, ..)| *is_unmet);
    let unmet = unmet.map(|(_, rule, object, message, hint)| refuse(rule, object, message).hint(hint));
    unmet.chain(packed(recipe, layout, options)).chain(distilled(recipe, layout, options)).collect()
}

/// What the emitted program asks of a teacher beside the model (`launch/assets/fsdp2/teacher.py`).
fn distilled(recipe: &Recipe, layout: &Layout, options: &Options) -> Vec<Finding> {
    let Some(teacher) = options.ways.teacher() else { return Vec::new() };
    let vocabularies = format!(
        "the teacher knows {} tokens and the model {}, and distributions are compared token by token",
        teacher.vocab, recipe.vocab
    );
    let is_cut = [layout.tp, layout.pp, layout.ep].iter().any(|degree| degree.splits());
    let asked = [
        (is_cut, "layout", "a teacher is shared out over replicas alone", "--tp 1 --pp 1 --ep 1"),
        (teacher.vocab != recipe.vocab, "vocab", vocabularies.as_str(), "a teacher with this vocabulary"),
        (
            options.kernels.cross_entropy.has_head(),
            "loss",
            "the distance to a teacher is taken of logits, which a fused loss does not make",
            "take loss out of --engine-args",
        ),
    ];
    let unmet = asked.into_iter().filter(|(is_unmet, ..)| *is_unmet);
    unmet.map(|(_, object, message, hint)| refuse("fsdp2/teacher", object, message).hint(hint)).collect()
}

/// What the emitted program asks of documents in a sequence (`launch/assets/fsdp2/documents.py`).
fn packed(recipe: &Recipe, layout: &Layout, options: &Options) -> Vec<Finding> {
    if options.documents.is_none() {
        return Vec::new();
    }
    let knows = |mixer: Mixer| matches!(mixer, Mixer::Attention | Mixer::Mlp | Mixer::Moe);
    let head_dim = match recipe.attention().map(|attention| attention.kind) {
        Some(AttentionKind::Gqa { head_dim, .. }) => head_dim,
        _ => 0,
    };
    let asked = [
        (
            !recipe.layers.iter().flat_map(|layer| layer.mixers()).all(knows),
            "documents",
            "scans and recurrences carry state from one document into the next",
            "leave --documents out",
        ),
        (
            recipe.features.depths().is_some(),
            "features.mod",
            "layers that take some tokens do not know where documents end among them",
            "leave --documents out, or --without mod",
        ),
        (
            layout.pp.splits(),
            "pp",
            "stages of a pipeline hand on hidden states alone, not where documents end",
            "--pp 1",
        ),
        (
            options.kernels.elementwise == Elementwise::Compiled,
            "compile",
            "compiled blocks are of one shape, and documents of many",
            "leave `compile` out of --engine-args",
        ),
        (
            !head_dim.is_multiple_of(8) || head_dim > 256,
            "attention.head_dim",
            "the kernel over documents takes heads of a multiple of 8, up to 256",
            "leave --documents out",
        ),
    ];
    let unmet = asked.into_iter().filter(|(is_unmet, ..)| *is_unmet);
    unmet.map(|(_, object, message, hint)| refuse("fsdp2/documents", object, message).hint(hint)).collect()
}

/// The rule of [`widths`].
const WIDTHS: RuleId = "precision/aligned";

/// Whether a finding is about widths that kernels do not like, whatever the format.
pub fn is_about_widths(finding: &Finding) -> bool {
    finding.rule == WIDTHS || UNALIGNED.found(finding)
}

/// Widths of a rank's products that a format of 8 or 4 bits is not multiplied in. Transformer Engine asks it of
/// every factor (`transformer_engine/pytorch/utils.py`, `assert_dim_for_fp8_exec`; `tensor/mxfp8_tensor.py`), and a
/// weight's rows are the columns of its output's gradient; `torch._scaled_mm` asks for multiples of 16 too. Heads stay
/// in bf16.
pub fn widths(recipe: &Recipe, layout: &Layout, options: &Options) -> Vec<Finding> {
    let quote = match options.format {
        Format::Fp8 => {
            "FP8 execution requires the product of all dimensions except the last to be divisible by 8 and the last \
             dimension to be divisible by 16"
        }
        Format::Mxfp8 | Format::Nvfp4 => "Tensor dims must be divisible by 32",
        Format::Bf16 | Format::F32 | Format::F64 => return Vec::new(),
    };
    let multiple = options.format.multiple();
    let found = unaligned(recipe, layout, multiple);
    let say = |one: &Unaligned| {
        let message = format!(
            "`{}` {} {} columns on a rank, no multiple of the {multiple} that a product in {} takes",
            one.name(),
            if one.side == 0 { "makes" } else { "reads" },
            one.width(),
            options.format
        );
        let finding = Finding::warning(WIDTHS, Blame::Layout, one.path.clone(), message);
        let finding = if layout.engine == Some(Engine::Megatron) { finding.quote(quote) } else { finding };
        one.ways_out(finding, multiple)
    };
    found.iter().filter(|one| !one.layers.is_empty()).map(say).collect()
}

fn refuse(rule: &'static str, object: &str, message: &str) -> Finding {
    Finding::error(rule, Blame::Engine, object, message)
}

/// Those of a rule's conditions that are not met: whether it is one, its object, what is wrong, the engine's words and a hint.
fn quoted<'a, M: AsRef<str>>(
    rule: &'static str,
    asked: impl IntoIterator<Item = (bool, &'a str, M, &'a str, &'a str)>,
) -> Vec<Finding> {
    let unmet = asked.into_iter().filter(|(is_unmet, ..)| *is_unmet);
    unmet
        .map(|(_, object, message, quote, hint)| refuse(rule, object, message.as_ref()).quote(quote).hint(hint))
        .collect()
}

/// `training/arguments.py` asserts it.
fn loss(options: &Options) -> Option<Finding> {
    let message = "Megatron-Core 0.19 has switched Transformer Engine's fused loss off";
    let finding = refuse("megatron/te-loss", "--cross-entropy-fusion-impl", message)
        .quote("Transformer Engine cross entropy loss fusion is disabled due to stability issues.")
        .hint("--cross-entropy-fusion-impl native, or leave it out");
    (options.kernels.cross_entropy == CrossEntropy::TransformerEngine).then_some(finding)
}

/// Overlap of tensor-parallel collectives and of state (Megatron-Core 0.19.2,
/// `training/arguments.py`, `transformer/transformer_config.py`).
fn overlap(layout: &Layout, options: &Options) -> Vec<Finding> {
    let (mut found, overlap) = (Vec::new(), &options.overlap);
    if overlap.tp == TpOverlap::Userbuffers && layout.tp.splits() && !layout.sp {
        let message = "--tp-comm-overlap hides the gathers and scatters of sequence parallelism, which is off";
        let quote = "Tensor parallel communication/GEMM overlap can happen only when sequence parallelism is enabled";
        found.push(refuse("megatron/tp-overlap", "sp", message).quote(quote).hint("take --no-sp out"));
    }
    if overlap.weights && !overlap.gradients && layout.zero != ZeroStage::Zero {
        let message = "weights are gathered under the forward only where gradients are reduced under the backward";
        let quote = "Must use --overlap-param-gather with --overlap-grad-reduce";
        let hint = "say --no-overlap-param-gather too";
        found.push(refuse("megatron/param-gather", "--overlap-param-gather", message).quote(quote).hint(hint));
    }
    if overlap.delay_wgrad && overlap.ep == EpOverlap::None {
        let message = "--delay-wgrad-compute makes room for expert exchanges, which are not overlapped";
        let quote = "overlap_moe_expert_parallel_comm must be enabled when enabling delay_wgrad_compute";
        let hint = "say --overlap-moe-expert-parallel-comm too";
        found.push(refuse("megatron/delay-wgrad", "--delay-wgrad-compute", message).quote(quote).hint(hint));
    }
    if options.kernels.graphs.by == GraphsBy::FullIteration && options.kernels.looks_for_nan {
        let message = "a step that is one graph has nobody to look for losses that are no numbers";
        let quote =
            "--no-check-for-nan-in-loss-and-grad should be set with --cuda-graph-impl=full_iteration for training.";
        let hint = "add --no-check-for-nan-in-loss-and-grad to --engine-args";
        found.push(refuse("megatron/graph-nan", "--cuda-graph-impl", message).quote(quote).hint(hint));
    }
    found
}

/// Documents by `--dataloader-inter-document-masking`: cumulative lengths that differ from sample to sample
/// (`core/datasets/gpt_dataset.py`), over which context-parallel ranks deal every document out by itself
/// (`core/utils.py`, `get_batch_on_this_cp_rank`).
fn documents(layout: &Layout, options: &Options) -> Vec<Finding> {
    let rule = "megatron/documents";
    let mut found = Vec::new();
    if options.documents.is_some() && layout.cp.splits() {
        let message = "context-parallel ranks share out every document by itself, and nothing pads documents to 2·cp";
        found.push(refuse(rule, "cp", message).hint("--cp 1"));
    }
    if options.documents.is_some() && options.kernels.graphs.by != GraphsBy::None {
        let message = "a graph is of one number of documents, and every sample has its own";
        found.push(refuse(rule, "--cuda-graph-impl", message).hint("take --cuda-graph-impl out of --engine-args"));
    }
    found
}

/// What is recorded as graphs of layers (`transformer/transformer_config.py`).
fn graphs(recipe: &Recipe, layout: &Layout, options: &Options) -> Vec<Finding> {
    let graphs = options.kernels.graphs;
    if !matches!(graphs.by, GraphsBy::Local | GraphsBy::TransformerEngine) {
        return Vec::new();
    }
    let names = |module| graphs.modules().any(|named| named == module);
    let again = |name| matches!(&layout.recompute, Recompute::Selective(all) if all.iter().any(|m| m.name() == name));
    let (routes, has_mlp) = (recipe.uses(Mixer::Moe), recipe.uses(Mixer::Mlp));
    let of_experts = [GraphModule::Moe, GraphModule::MoeRouter, GraphModule::MoePreprocess];
    let asked = [
        (
            layout.recompute == Recompute::Full,
            "recompute",
            "layers that are computed again whole are not recorded",
            "full recompute is only supported with full iteration CUDA graph.",
            "--recompute none",
        ),
        (
            again("moe") && names(GraphModule::MoeRouter),
            "recompute",
            "expert blocks that are computed again have their router recorded",
            "moe recompute is not supported with moe_router CUDA graph",
            "take moe out of --recompute, or moe_router out of --cuda-graph-modules",
        ),
        (
            !routes && of_experts.into_iter().any(names),
            "--cuda-graph-modules",
            "the model has no experts",
            "moe cuda graph is only supported for MoE.",
            "take moe, moe_router and moe_preprocess out of it",
        ),
        (
            routes && !has_mlp && names(GraphModule::Mlp),
            "--cuda-graph-modules",
            "every feed-forward block of the model routes",
            "mlp cuda graph is only supported for dense layers, but not found in the model.",
            "take mlp out of it",
        ),
        (
            routes && names(GraphModule::MoePreprocess) && !names(GraphModule::MoeRouter),
            "--cuda-graph-modules",
            "what a router prepares is recorded with the router",
            "moe_preprocess cuda graph is only supported with moe_router cuda graph.",
            "add moe_router to it",
        ),
        (
            options.offload_activations > 0.0,
            "offload-activations",
            "what goes to the host between passes is not recorded",
            "CUDA graphs not supported with CPU offloading.",
            "take --offload-activations out",
        ),
    ];
    quoted("megatron/graphs", asked)
}

/// Products in 8 bits of the projection into a scan (`ssm/mamba_mixer.py`), whole before tp cuts it.
fn scan_in_8_bits(recipe: &Recipe, options: &Options) -> Option<Finding> {
    let Some(Mamba::Two(mamba)) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba)) else { return None };
    let width = 2 * mamba.inner() + 2 * mamba.groups * mamba.state + mamba.heads;
    if options.format != Format::Fp8 || width.is_multiple_of(16) {
        return None;
    }
    let quote = "For FP8, the innermost dimension of the Mamba layer input projection output tensor must be a multiple \
                 of 16.";
    let message = format!("the projection into a scan is {width} wide, no multiple of 16");
    let hint = "--precision bf16, or as many heads as make it one";
    Some(refuse("megatron/mamba-fp8", "mamba", &message).quote(quote).hint(hint))
}

/// Overlap of expert exchanges with another microbatch (`transformer/transformer_config.py`).
fn expert_overlap(recipe: &Recipe, layout: &Layout, options: &Options) -> Vec<Finding> {
    if options.overlap.ep == EpOverlap::None {
        return Vec::new();
    }
    let graphs = options.kernels.graphs;
    let records = |module| graphs.by == GraphsBy::TransformerEngine && graphs.modules().any(|m| m == module);
    let again = match &layout.recompute {
        Recompute::Selective(modules) => modules.iter().any(|module| module.name() == "moe"),
        _ => false,
    };
    let asked = [
        (
            !recipe.layers.iter().all(is_transformer),
            "--overlap-moe-expert-parallel-comm",
            "exchanges are overlapped in GPTModel alone, and blocks other than attention and feed-forward make a HybridModel",
            // `models/gpt/gpt_model.py`, which `pipeline_parallel/combined_1f1b.py` calls.
            "def build_schedule_plan",
            "take the word out of --engine-args",
        ),
        (
            !layout.ep.splits(),
            "ep",
            "no exchange is there to overlap: ep is 1",
            "overlap_moe_expert_parallel_comm is only supported with expert model parallelism",
            "--ep above 1",
        ),
        (
            layout.pp.splits() && !layout.vpp.splits(),
            "vpp",
            "two microbatches share a stage only where it has several chunks",
            "virtual_pipeline_model_parallel_size must be specified when pipeline_model_parallel_size > 1",
            "--vpp 2, or --pp 1",
        ),
        (
            options.kernels.dispatch == Dispatch::AllGather,
            "--moe-token-dispatcher-type",
            "the all-gather dispatcher has no exchange to overlap",
            "overlap_moe_expert_parallel_comm is supported with alltoall/flex token dispatcher",
            "--moe-token-dispatcher-type alltoall",
        ),
        (
            layout.recompute == Recompute::Full,
            "recompute",
            "layers that are computed again whole do not overlap",
            "disable full recomputation when enabling overlap_moe_expert_parallel_comm",
            "--recompute none, or selective",
        ),
        (
            again,
            "recompute",
            "expert blocks that are computed again do not overlap",
            "disable moe in recompute_modules when enabling overlap_moe_expert_parallel_comm",
            "take moe out of --recompute",
        ),
        (
            recipe.features.mtp().is_some_and(|mtp| mtp.depth > 1),
            "features.mtp.depth",
            "more than one prediction depth does not overlap",
            "MTP supports at most one layer when enabling overlap_moe_expert_parallel_comm.",
            "--without mtp, or a depth of 1",
        ),
        (
            records(GraphModule::Moe) || records(GraphModule::Mlp),
            "--cuda-graph-modules",
            "recorded feed-forward blocks do not overlap",
            "CUDA graph scope on moe and mlp is not supported with overlap_moe_expert_parallel_comm",
            "take moe and mlp out of --cuda-graph-modules",
        ),
    ];
    quoted("megatron/ep-overlap", asked)
}

/// Softmax attention, then a dense or an expert block: GPTModel's layer.
pub(crate) fn is_transformer(layer: &Layer) -> bool {
    let mixers: Vec<Mixer> = layer.mixers().collect();
    layer.blocks.len() == 2 && matches!(mixers[..], [Mixer::Attention, Mixer::Mlp | Mixer::Moe])
}

/// Gradients accumulated in fp32 beside bf16 weights (DeepSpeed 0.19.8, `_do_optimizer_sanity_check` of
/// `runtime/engine.py`): ZeRO 1 takes `BF16_Optimizer`, ZeRO 2 and 3 their own; without ZeRO there is none.
fn accumulate(layout: &Layout, options: &Options) -> Vec<Finding> {
    let wide = options.state.gradients;
    if layout.zero != ZeroStage::Zero || wide == Dtype::Bf16 {
        return Vec::new();
    }
    let message = format!("without ZeRO, DeepSpeed accumulates gradients in the weights' bf16, and they are {wide}");
    let finding = refuse("deepspeed/accumulate", "zero", &message).quote("unsupported mix of");
    vec![
        finding.fix("zero", vec![1, 2, 3]).hint("--zero 1 (on one replica it shares nothing out), or --gradients bf16"),
    ]
}

/// State and weights off the device (DeepSpeed 0.19.8, `runtime/zero/offload_config.py`).
fn offload(layout: &Layout, options: &Options) -> Vec<Finding> {
    let mut found = Vec::new();
    let rule = "deepspeed/offload";
    if options.offload > 0.0 && layout.zero == ZeroStage::Zero {
        let finding = refuse(rule, "zero", "DeepSpeed offloads state that ZeRO shares out, and zero is 0");
        found.push(
            finding
                .quote("Set options for optimizer offload. Valid with stage 1, 2, and 3.")
                .fix("zero", vec![1, 2, 3]),
        );
    }
    if options.offload > 0.0 && options.offload < 1.0 {
        let message =
            "a share of the state is DeepSpeed's `ratio`, which is not written: it offloads all of it or none";
        found.push(refuse(rule, "offload-optimizer", message).hint("--offload-optimizer 1, or leave it out"));
    }
    if options.offload_params && layout.zero != ZeroStage::Three {
        let finding = refuse(rule, "zero", "only weights that ZeRO 3 shares out can be kept on the host");
        found.push(finding.quote("Set options for parameter offload. Valid only with stage 3.").fix("zero", vec![3]));
    }
    if options.on_nvme && layout.zero != ZeroStage::Three {
        let message = "DeepSpeed swaps to a drive under ZeRO 3 alone (`runtime/zero/stage3.py`)";
        found.push(refuse(rule, "zero", message).fix("zero", vec![3]));
    }
    if options.on_nvme && options.offload == 0.0 && !options.offload_params {
        let message = "--offload-nvme says where, and nothing is offloaded";
        found.push(refuse(rule, "offload-nvme", message).hint("--offload-optimizer 1, --offload-params, or both"));
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::{Asked, Case, Terms};
    use hardware::Cluster;
    use recipe::import::megatron_args::shell_words;

    /// Rules and objects of what is refused of a job on 16 H200.
    fn refused(words: &str) -> Vec<(&'static str, String)> {
        refused_on(words, "2x8xH200")
    }

    /// The same on another cluster.
    pub(super) fn refused_on(words: &str, on: &str) -> Vec<(&'static str, String)> {
        let asked = Asked::parse(&shell_words(&format!("{words} --on {on}"))).unwrap();
        let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
        match Case::new(asked, recipe, Some(Cluster::parse(on).unwrap()), Terms::RUN) {
            Ok(_) => Vec::new(),
            Err(findings) => {
                let explains = |f: &diag::Finding| f.rule == "case/state" || f.quote.is_some() || f.hint.is_some();
                assert!(findings.iter().all(explains), "{findings:#?}");
                findings.into_iter().filter(diag_error).map(|f| (f.rule, f.object)).collect()
            }
        }
    }

    /// What is said of a job that is not refused.
    pub(super) fn warnings_on(words: &str, on: &str) -> Vec<diag::Finding> {
        let asked = Asked::parse(&shell_words(&format!("{words} --on {on}"))).unwrap();
        let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
        Case::new(asked, recipe, Some(Cluster::parse(on).unwrap()), Terms::RUN).unwrap().findings
    }

    fn diag_error(finding: &diag::Finding) -> bool {
        diag::refuses(std::slice::from_ref(finding))
    }

    #[track_caller]
    fn one(words: &str, rule: &'static str, object: &str) {
        assert_eq!(refused(words), [(rule, object.to_string())], "{words}");
    }

    #[test]
    fn megatron_overlaps_where_it_says_it_does() {
        let tp = "llama3-8b --tp 2 --engine-args --tp-comm-overlap";
        assert_eq!(refused(tp), []);
        one(&format!("{tp} --no-sp"), "megatron/tp-overlap", "sp");
        one("llama3-8b --engine-args --no-overlap-grad-reduce", "megatron/param-gather", "--overlap-param-gather");
        assert_eq!(refused("llama3-8b --engine-args '--no-overlap-grad-reduce --no-overlap-param-gather'"), []);
        assert_eq!(refused("llama3-8b --zero 0 --engine-args --no-overlap-grad-reduce"), []);
        one("mixtral-8x7b --ep 8 --engine-args --delay-wgrad-compute", "megatron/delay-wgrad", "--delay-wgrad-compute");
        let graph = |words: &str| format!("llama3-8b --engine-args '--cuda-graph-impl full_iteration {words}'");
        one(&graph(""), "megatron/graph-nan", "--cuda-graph-impl");
        assert_eq!(refused(&graph("--no-check-for-nan-in-loss-and-grad")), []);
    }

    #[test]
    fn megatron_overlaps_experts_where_it_says_it_does() {
        let with = |words: &str| format!("mixtral-8x7b {words} --engine-args --overlap-moe-expert-parallel-comm");
        assert_eq!(refused(&with("--ep 8")), []);
        assert_eq!(refused(&with("--ep 4 --pp 2 --vpp 2 --microbatches 4")), []);
        let rule = "megatron/ep-overlap";
        let hybrid = "nemotron-3-nano-30b-a3b --ep 8 --engine-args --overlap-moe-expert-parallel-comm";
        one(hybrid, rule, "--overlap-moe-expert-parallel-comm");
        one(&with("--ep 1"), rule, "ep");
        one(&with("--ep 4 --pp 2 --microbatches 4"), rule, "vpp");
        one(&with("--ep 8 --recompute full"), rule, "recompute");
        one(&with("--ep 8 --recompute selective:moe"), rule, "recompute");
        one(&with("--ep 8 --engine-args '--moe-token-dispatcher-type allgather'"), rule, "--moe-token-dispatcher-type");
        let graphs = "--ep 8 --engine-args '--cuda-graph-impl transformer_engine --cuda-graph-modules moe'";
        one(&with(graphs), rule, "--cuda-graph-modules");
    }

    #[test]
    fn megatron_records_what_it_says_it_does() {
        let with = |words: &str, modules: &str| {
            let graphs = format!("--cuda-graph-impl transformer_engine --cuda-graph-modules {modules}");
            format!("{words} --engine-args '{graphs}'")
        };
        let (rule, modules) = ("megatron/graphs", "--cuda-graph-modules");
        assert_eq!(refused(&with("qwen3-30b-a3b --ep 8", "attn moe_router moe_preprocess")), []);
        assert_eq!(refused(&with("deepseek-v3 --ep 16", "attn mlp moe_router")), []);
        one(&with("llama3-8b --recompute full", "attn"), rule, "recompute");
        one(&with("qwen3-30b-a3b --ep 8 --recompute selective:moe", "moe_router"), rule, "recompute");
        one(&with("llama3-8b", "attn moe_router"), rule, modules);
        one(&with("qwen3-30b-a3b --ep 8", "attn mlp"), rule, modules);
        one(&with("qwen3-30b-a3b --ep 8", "moe_preprocess"), rule, modules);
    }

    /// NAM56R's projection is 8248 wide in Megatron's own Mamba-2, Nemotron-H's 18,560.
    #[test]
    fn megatron_multiplies_scans_in_8_bits_where_their_width_lets_it() {
        one("nam56r --mode nemo_native --precision fp8", "megatron/mamba-fp8", "mamba");
        assert_eq!(refused("nam56r --mode nemo_native"), []);
        assert_eq!(refused("nemotron-h-8b --precision fp8"), []);
    }

    #[test]
    fn documents_are_kept_apart_where_something_keeps_them_apart() {
        let fsdp2 = |words: &str| format!("llama3-8b --engine fsdp2 --documents 512,4k {words}");
        assert_eq!(refused(&fsdp2("")), []);
        assert_eq!(refused(&fsdp2("--tp 2")), []);
        one(&fsdp2("--pp 2 --microbatches 2"), "fsdp2/documents", "pp");
        one(&fsdp2("--engine-args compile"), "fsdp2/documents", "compile");
        one("nam56r-mini --engine fsdp2 --documents 512", "fsdp2/documents", "documents");
        let megatron = |words: &str| format!("llama3-8b --documents 512 {words}");
        assert_eq!(refused(&megatron("--tp 2 --pp 2 --microbatches 2")), []);
        one(&megatron("--cp 2"), "megatron/documents", "cp");
        let graphs = "--engine-args '--cuda-graph-impl transformer_engine'";
        one(&megatron(graphs), "megatron/documents", "--cuda-graph-impl");
        for engine in ["torchtitan", "deepspeed", "nanotron"] {
            one(&format!("llama3-8b --engine {engine} --documents 512"), "case/state", "documents");
        }
    }

    #[test]
    fn a_teacher_speaks_the_same_words_on_every_rank() {
        let taught = |words: &str| format!("llama3-8b --engine fsdp2 {words} --engine-args teacher=llama3-70b");
        assert_eq!(refused(&taught("")), []);
        one(&taught("--tp 2"), "fsdp2/teacher", "layout");
        one(&taught("--engine-args loss=cce"), "fsdp2/teacher", "loss");
        one("llama3-8b --engine fsdp2 --engine-args teacher=mixtral-8x7b", "fsdp2/teacher", "vocab");
        one("llama3-8b --engine fsdp2 --engine-args optimizer=soap", "fsdp2/soap", "optimizer");
        one("llama3-8b --engine fsdp2 --engine-args optimizer=shampoo", "fsdp2/shampoo", "optimizer");
    }

    #[test]
    fn deepspeed_accumulates_in_fp32_under_zero_alone() {
        let job = |words: &str| format!("llama3-8b --engine deepspeed {words}");
        one(&job("--zero 0"), "deepspeed/accumulate", "zero");
        for words in ["--zero 0 --gradients bf16", "--zero 1", "--zero 2", "--zero 3"] {
            assert_eq!(refused(&job(words)), [], "{words}");
        }
    }

    #[test]
    fn deepspeed_offloads_what_zero_shares_out() {
        let job = |words: &str| format!("llama3-8b --engine deepspeed {words}");
        let rule = "deepspeed/offload";
        assert_eq!(refused(&job("--zero 3 --offload-optimizer 1 --offload-params --offload-nvme /mnt/nvme")), []);
        one(&job("--zero 0 --gradients bf16 --offload-optimizer 1"), rule, "zero");
        one(&job("--zero 2 --offload-params"), rule, "zero");
        one(&job("--zero 3 --offload-optimizer 0.5"), rule, "offload-optimizer");
        one(&job("--zero 2 --offload-optimizer 1 --offload-nvme /mnt/nvme"), rule, "zero");
        one(&job("--zero 3 --offload-nvme /mnt/nvme"), rule, "offload-nvme");
        one("llama3-8b --offload-params", "case/state", "offload-params");
        one(&job("--zero 3 --offload-optimizer 1 --offload-nvme here"), "case/state", "offload-nvme");
    }
}
