//! What engines of a row's date ran: kernels, formats, and what they let overlap.

use super::super::recompute::again;
use super::engine::Family;
use case::options::{
    Accumulate, AttentionKernel, CrossEntropy, Dispatch, Elementwise, EpOverlap, Format, Graphs, GraphsBy, Overlap,
    TpOverlap,
};
use case::{Case, Options};
use layout::Layout;
use recipe::{Mixer, Recipe};
use serde_json::Value;

/// Over what `plan` has for a row's engine, what the row says it ran.
pub(super) fn set(options: &mut Options, row: &Value, family: Family, case: &Case) {
    let Case { recipe, layout, .. } = case;
    options.again = again(row);
    options.shard_group = row["layout"]["fsdp"].as_u64().filter(|group| *group > 1);
    let said = Said::of(row);
    set_kernels(options, &said, family, layout);
    set_overlap(options, &said, family, recipe.uses(Mixer::Moe));
    if let Some(release) = bridge(row) {
        set_bridge(options, release, &said, recipe, layout);
    }
}

/// Devices from which on BigScience's runs hung unless every launch was waited for
/// (`train/tr11-176B-ml/chronicles-prequel.md`, dealing with JZ hanging on the large model).
const HANGING_DEVICES: u64 = 320;

/// The year and month of a Megatron-Bridge release: `NeMo 26.04.01`.
fn bridge(row: &Value) -> Option<(u32, u32)> {
    let framework = &row["framework"];
    framework["name"].as_str()?.starts_with("Megatron-Bridge").then_some(())?;
    let (_, release) = framework["version"].as_str()?.split_once("NeMo ")?;
    let mut parts = release.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// What Megatron-Bridge's performance recipes set for models with experts and rows do not repeat
/// (`src/megatron/bridge/perf_recipes`).
fn set_bridge(options: &mut Options, release: (u32, u32), said: &Said, recipe: &Recipe, layout: &Layout) {
    if !recipe.uses(Mixer::Moe) {
        return;
    }
    let is_hybrid = recipe.uses(Mixer::Mamba);
    // `moe_flex_dispatcher_backend`: deepep or hybridep on racks, and for these models everywhere.
    if recipe.is_latent() || (release.0 >= 26 && is_hybrid) {
        options.kernels.dispatch = Dispatch::DeepEp;
    }
    // `cuda_graph_impl`: since 26 around all but expert products.
    if release.0 >= 26 && (is_hybrid || said.is_blackwell()) {
        options.kernels.graphs.by = GraphsBy::TransformerEngine;
    }
    // `overlap_moe_expert_parallel_comm`: where exchanges leave the node, which needs virtual
    // stages; and since 26.06 where a whole step is one graph, as it is for models of these recipes
    // without windows or state-space blocks.
    let has_window = recipe.attention().is_some_and(|attention| attention.window.is_some());
    let leaves_node = layout.vpp.splits() && layout.ep.get() > 8 && !said.is_rack();
    let is_one_graph = release >= (26, 6) && said.is_blackwell() && options.format == Format::Mxfp8;
    if leaves_node || (is_one_graph && !has_window && !is_hybrid) {
        options.overlap.ep = EpOverlap::Microbatches;
    }
}

/// What a row says in words, features and notes.
struct Said {
    features: String,
    notes: String,
    device: String,
}

impl Said {
    fn of(row: &Value) -> Said {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        Said { features: text(&row["features"]), notes: text(&row["notes"]), device: text(&row["hardware"]["gpu"]) }
    }

    /// Whether the device has units that only the newer attention kernels use.
    fn is_hopper_or_newer(&self) -> bool {
        !self.device.starts_with("A100")
    }

    fn is_blackwell(&self) -> bool {
        self.device.starts_with('B') || self.is_rack()
    }

    /// Whether its fast fabric reaches over nodes, where dispatch kernels of their own are used.
    fn is_rack(&self) -> bool {
        self.device.starts_with("GB")
    }
}

/// The format products run in, by the words rows use.
pub(super) fn format(row: &Value) -> Result<Format, String> {
    let text = row["precision"].as_str().ok_or("the row lacks `precision`")?;
    match text.split_whitespace().next().unwrap_or_default() {
        "BF16" | "FP16" if !text.contains("FP8") => Ok(Format::Bf16),
        "MXFP8" | "FP8-MX" => Ok(Format::Mxfp8),
        "NVFP4" => Ok(Format::Nvfp4),
        _ if text.contains("FP8") => Ok(Format::Fp8),
        other => Err(format!("products in `{other}` have no time")),
    }
}

fn set_kernels(options: &mut Options, said: &Said, family: Family, layout: &Layout) {
    let kernels = &mut options.kernels;
    kernels.attention = match family {
        // Transformer Engine and MaxText call cuDNN's kernel where the device has the units.
        Family::Megatron | Family::Maxtext if said.is_hopper_or_newer() => AttentionKernel::Flash3,
        Family::Automodel if !said.features.contains("SDPA") => AttentionKernel::Flash3,
        Family::MegatronOfOld | Family::MegatronDeepspeed => AttentionKernel::Unfused,
        // Its `scripts/train/benchmarking/submit_benchmarks.py` runs `attn_impl=triton` unless told
        // otherwise; assumed on both devices.
        Family::Composer => AttentionKernel::Flash1,
        _ => AttentionKernel::Flash2,
    };
    kernels.elementwise = match family {
        Family::Composer | Family::Nanotron => Elementwise::Eager,
        Family::Fms | Family::Maxtext => Elementwise::Compiled,
        // torchtitan's tables name `compile` where it was on; its default is off.
        Family::Torchtitan if said.features.contains("compile") => Elementwise::Compiled,
        Family::Torchtitan => Elementwise::Eager,
        Family::Megatron | Family::MegatronOfOld | Family::MegatronDeepspeed | Family::Automodel => Elementwise::Fused,
    };
    kernels.rope_fusion = kernels.elementwise == Elementwise::Fused;
    kernels.cross_entropy = match family {
        Family::Megatron | Family::Maxtext => CrossEntropy::TransformerEngine,
        _ => CrossEntropy::Eager,
    };
    let has_graphs = said.features.to_ascii_lowercase().replace('_', " ").contains("cuda graph");
    kernels.blocking = family == Family::MegatronDeepspeed && layout.world >= HANGING_DEVICES;
    kernels.graphs = match has_graphs || family == Family::Maxtext {
        true => Graphs::by(GraphsBy::FullIteration),
        false => Graphs::NONE,
    };
    if family == Family::MegatronDeepspeed {
        // DeepSpeed sums gradients itself, so Megatron's fusion is off.
        kernels.accumulate = Accumulate::Separate;
    }
    let has_own_dispatch = ["DeepEP", "HybridEP"].iter().any(|name| said.features.contains(name)) || said.is_rack();
    kernels.dispatch = if has_own_dispatch { Dispatch::DeepEp } else { Dispatch::AllToAll };
}

fn set_overlap(options: &mut Options, said: &Said, family: Family, has_experts: bool) {
    let is_silent = said.notes.contains("no communication overlap");
    let overlaps_state = match family {
        Family::Megatron => !is_silent,
        Family::Composer | Family::Fms | Family::Automodel | Family::Torchtitan | Family::Maxtext => true,
        // ZeRO-1 under a pipeline reduces when the last microbatch is done (DeepSpeed
        // `runtime/pipe/engine.py` _exec_reduce_grads), nanotron likewise.
        Family::MegatronOfOld | Family::MegatronDeepspeed | Family::Nanotron => false,
    };
    let tp = match family {
        _ if is_silent => TpOverlap::None,
        // NeMo and Megatron-Bridge ship user buffers for dense models (`comm_overlap.tp_comm_overlap`).
        Family::Megatron if !has_experts => TpOverlap::Userbuffers,
        Family::Megatron | Family::MegatronOfOld => TpOverlap::Async,
        Family::Torchtitan if said.features.contains("async TP") => TpOverlap::Async,
        _ => TpOverlap::None,
    };
    let has_ep_overlap = said.features.contains("EP overlap");
    options.overlap = Overlap {
        gradients: overlaps_state,
        weights: overlaps_state,
        tp,
        ep: if has_ep_overlap { EpOverlap::Microbatches } else { EpOverlap::None },
        delay_wgrad: has_ep_overlap,
        ring: true,
        // Megatron overlaps stages under the interleaved order only (`overlap_p2p_comm`).
        p2p: family == Family::Megatron && !is_silent,
    };
}
