//! What a row ran besides recipe and layout: what it says, over what its source's own recipe says, over what its
//! engine of that day did by itself. Nobody's name decides anything.

use super::super::recompute::again;
use super::super::words::Clauses;
use super::engine::{Family, named};
use super::features::Features;
use super::recipes::Recipe;
use case::options::{
    Accumulate, AttentionKernel, CrossEntropy, Dispatch, Elementwise, EpOverlap, Gathered, Graphs, GraphsBy, Overlap,
    TpOverlap,
};
use case::{Case, Options, words};
use layout::Engine;
use recipe::Mixer;
use serde_json::Value;

/// Over what `plan` has for a row's engine today, what that engine had in its day, and how the row's layout is read:
/// no plan chooses these.
pub(super) fn set_day(options: &mut Options, row: &Value, family: Family, case: &Case) {
    options.again = again(row);
    options.shard_group = row["layout"]["fsdp"].as_u64().filter(|group| *group > 1);
    // Its rows ran models of Hugging Face.
    options.has_script = family == Family::Deepspeed;
    let kernels = &mut options.kernels;
    kernels.attention = attention(family, is_hopper_or_newer(case));
    kernels.blocking = waits_for_launches(row, family);
    if family == Family::Automodel {
        // Transformer Engine's layers and mamba_ssm's scans, which no program of ours has.
        kernels.elementwise = Elementwise::Fused;
    }
    kernels.gathered = match family {
        Family::Automodel => Gathered::WhereShared,
        _ if family.is_flat(row) => Gathered::Flat,
        _ => kernels.gathered,
    };
    if case.engine() == Engine::Megatron {
        // Megatron's default; published runs are of images that have APEX.
        kernels.accumulate = Accumulate::Fused;
    }
    if family == Family::MegatronDeepspeed {
        // DeepSpeed sums gradients itself, so Megatron's fusion is off.
        kernels.accumulate = Accumulate::Separate;
    }
}

/// What the row ran besides.
pub(super) fn set(
    options: &mut Options,
    row: &Value,
    family: Family,
    case: &Case,
    recipe: Option<&Recipe>,
) -> Result<(), String> {
    set_kernels(options, family);
    let is_dense = ![Mixer::Moe, Mixer::Mamba].into_iter().any(|mixer| case.recipe.uses(mixer));
    set_overlap(options, row, family, is_dense);
    if let Some(recipe) = recipe {
        options.overlap.tp = TpOverlap::Async;
        read(&recipe.args, options)?;
    }
    let source = row["source"].as_str().unwrap_or_default();
    for (_, words) in DOCUMENTS.iter().filter(|(document, _)| family == Family::Megatron && source.contains(document)) {
        read(words, options)?;
    }
    Features::of(row, family).set(options)
}

/// Documents that say in their text what their tables ran, in Megatron's words.
const DOCUMENTS: [(&str, &str); 1] = [
    // "This configuration follows those defined in NeMo Framework's performance scripts", which turn it on.
    ("Megatron-LM examples/llama README", "--tp-comm-overlap"),
];

pub(super) fn read(said: &str, options: &mut Options) -> Result<(), String> {
    let said: Vec<String> = said.split_whitespace().map(str::to_string).collect();
    words::read_priced(Some(Engine::Megatron), &said, options)
}

/// Whether the device has units that only the newer attention kernels use.
fn is_hopper_or_newer(case: &Case) -> bool {
    !case.on().device.name.starts_with("A100")
}

fn attention(family: Family, is_new: bool) -> AttentionKernel {
    match family {
        // Transformer Engine and MaxText call cuDNN's kernel where the device has the units.
        Family::Megatron | Family::Maxtext | Family::Automodel if is_new => AttentionKernel::Flash3,
        Family::MegatronOfOld | Family::MegatronDeepspeed => AttentionKernel::Unfused,
        // Its `scripts/train/benchmarking/submit_benchmarks.py` runs `attn_impl=triton` unless told
        // otherwise; assumed on both devices.
        Family::Composer => AttentionKernel::Flash1,
        _ => AttentionKernel::Flash2,
    }
}

fn set_kernels(options: &mut Options, family: Family) {
    let kernels = &mut options.kernels;
    kernels.elementwise = match family {
        // torchtitan's `compile` and DeepSpeed's are off unless asked for, and so is `torch.compile`.
        Family::Composer | Family::Nanotron | Family::Torchtitan | Family::Fsdp | Family::Deepspeed => {
            Elementwise::Eager
        }
        Family::Fms | Family::Maxtext => Elementwise::Compiled,
        Family::Megatron | Family::MegatronOfOld | Family::MegatronDeepspeed | Family::Automodel => Elementwise::Fused,
    };
    kernels.rope_fusion = kernels.elementwise == Elementwise::Fused;
    kernels.cross_entropy = match family {
        // NeMo's and Megatron-Bridge's recipes have it (`cross_entropy_fusion_impl = "te"`), and the rows of
        // Megatron-LM that are read here name a fused loss.
        Family::Megatron | Family::Maxtext => CrossEntropy::TransformerEngine,
        _ => CrossEntropy::Eager,
    };
    kernels.graphs = match family {
        Family::Maxtext => Graphs::by(GraphsBy::FullIteration),
        _ => Graphs::NONE,
    };
    kernels.dispatch = Dispatch::AllToAll;
    kernels.permute_fusion = false;
}

/// BigScience's chronicle says that its runs on 320 devices and more hung unless every launch was waited for
/// (`train/tr11-176B-ml/chronicles-prequel.md`, dealing with JZ hanging on the large model).
fn waits_for_launches(row: &Value, family: Family) -> bool {
    let source = row["source"].as_str().unwrap_or_default();
    let is_told = source.contains("tr11-176B-ml/chronicles");
    is_told && family == Family::MegatronDeepspeed && row["hardware"]["count"].as_u64().is_some_and(|n| n >= 320)
}

fn set_overlap(options: &mut Options, row: &Value, family: Family, is_dense: bool) {
    let overlaps_state = match family {
        // Megatron-LM's own default is off; every recipe of it, of NeMo and of Megatron-Bridge that was read here
        // turns it on.
        Family::Megatron => true,
        Family::Composer | Family::Fms | Family::Fsdp | Family::Automodel | Family::Torchtitan | Family::Maxtext => {
            true
        }
        // ZeRO-1 under a pipeline reduces when the last microbatch is done (DeepSpeed
        // `runtime/pipe/engine.py` _exec_reduce_grads), nanotron likewise; `overlap_comm` of DeepSpeed is off.
        Family::MegatronOfOld | Family::MegatronDeepspeed | Family::Nanotron => false,
        Family::Deepspeed => options.overlap.gradients,
    };
    let ships_buffers = named(row).say(&["nemo", "megatron bridge"]) == Some(true);
    let tp = match family {
        // NeMo's and Megatron-Bridge's configurations of dense models turn on `tp_comm_overlap`, those of hybrids do so in
        // their performance mode alone; Megatron-LM's default is off, which leaves the backward's own.
        Family::Megatron if ships_buffers && is_dense => TpOverlap::Userbuffers,
        Family::Megatron | Family::MegatronOfOld => TpOverlap::Async,
        // The script of nanotron's sweep sets `tp_linear_async_communication`, but its rows do not show that it hides
        // anything: priced so, steps over 2, 4 and 8 ranks alike come out 5 % short.
        _ => TpOverlap::None,
    };
    options.overlap = Overlap {
        gradients: overlaps_state,
        weights: overlaps_state,
        tp,
        ep: EpOverlap::None,
        delay_wgrad: false,
        ring: true,
        // Megatron overlaps stages under the interleaved order only (`overlap_p2p_comm`).
        p2p: family == Family::Megatron,
    };
}

/// What the notes of a row say.
pub(super) fn notes(row: &Value) -> Clauses {
    Clauses::of(row["notes"].as_str().unwrap_or_default())
}
