//! What a job's options mean to each ledger; what no ledger replays of them is refused by name.

use crate::deepspeed::{DeepspeedOptions, Offload};
use crate::fsdp2::{Blocks, Fsdp2Options, Prefetch};
use crate::megatron::{
    AttentionBackend, CrossEntropy, Dispatcher, Fp8Recipe, GraphInputs, Handed, MegatronOptions, ParamGather,
    Reduction, Routing, Segments, StateFormats,
};
use case::options::{
    self, Accumulate, Again, AttentionKernel, Dispatch, Elementwise, Format, GraphModule, GraphsBy, Scaling, TpOverlap,
};
use case::{Options, Ways};
use layout::{Engine, Layout, ZeroStage};
use recipe::{Dtype, Mixer, Recipe};
use replay::Unmodelled;

fn refuse<T>(what: &str, why: &str) -> Result<T, Unmodelled> {
    Err(Unmodelled::new(what, why))
}

/// What graphs hold beside the passes they record. All graphs of a rank share one private pool and are recorded in the
/// order of the schedule, so that what their passes save and free comes to what it does without them; a step that is
/// one graph holds nothing else.
fn graphs(recipe: &Recipe, asked: &Options) -> Result<GraphInputs, Unmodelled> {
    let graphs = asked.kernels.graphs;
    let uses_others = |known: &[Mixer]| recipe.layers.iter().any(|l| l.mixers().any(|mixer| !known.contains(&mixer)));
    let predicts = recipe.features.mtp().is_some();
    let of_others = || {
        refuse(
            "captured graphs of other blocks than attention, feed-forward, experts and Mamba",
            "what they hand out of a graph stays in its pool, which is not replayed",
        )
    };
    match graphs.by {
        GraphsBy::None => Ok(GraphInputs::None),
        GraphsBy::Local => refuse(
            "--cuda-graph-impl local",
            "its pool goes by Megatron's own record of lifetimes, which is not replayed",
        ),
        GraphsBy::FullIteration if uses_others(&[Mixer::Attention, Mixer::Mlp]) || predicts => of_others(),
        GraphsBy::FullIteration => Ok(GraphInputs::None),
        GraphsBy::TransformerEngine
            if uses_others(&[Mixer::Attention, Mixer::Mlp, Mixer::Moe, Mixer::Mamba])
                || predicts
                || graphs.modules().any(|module| module == GraphModule::Moe) =>
        {
            of_others()
        }
        GraphsBy::TransformerEngine => Ok(GraphInputs::OfLayers {
            has_mask: graphs.records(Some(GraphModule::Attention)),
            hands: match asked.kernels.dispatch {
                _ if graphs.modules().all(|module| module != GraphModule::MoePreprocess) => Handed::Nothing,
                Dispatch::AllToAll => Handed::Permuted,
                Dispatch::HybridEp => Handed::Scores,
                Dispatch::AllGather | Dispatch::DeepEp => Handed::Nothing,
            },
        }),
    }
}

impl MegatronOptions {
    /// What a launch with these options allocates by.
    pub(crate) fn from_options(
        recipe: &Recipe,
        layout: &Layout,
        asked: &Options,
    ) -> Result<MegatronOptions, Unmodelled> {
        let dispatcher = match asked.kernels.dispatch {
            Dispatch::AllToAll => Dispatcher::AllToAll,
            Dispatch::AllGather => Dispatcher::AllGather,
            Dispatch::DeepEp => Dispatcher::DeepEp,
            Dispatch::HybridEp => Dispatcher::HybridEp,
        };
        if asked.overlap.tp == TpOverlap::Userbuffers {
            return refuse("--tp-comm-overlap", "Transformer Engine's user buffers are not replayed");
        }
        if asked.offload > 0.0 && precision_aware(asked).is_some() {
            return refuse("state in formats of its own on the host", "what the host steps is priced in fp32 only");
        }
        Ok(MegatronOptions {
            gradients: asked.state.gradients,
            cross_entropy: match asked.kernels.cross_entropy {
                options::CrossEntropy::Eager => CrossEntropy::Unfused,
                options::CrossEntropy::Native => CrossEntropy::FusedNative,
                options::CrossEntropy::TransformerEngine => CrossEntropy::FusedTransformerEngine,
                options::CrossEntropy::Liger | options::CrossEntropy::Cce => {
                    return refuse(
                        "a loss with its head",
                        "Megatron's head gives logits, and takes its own loss of them",
                    );
                }
            },
            fp8: match asked.scaling {
                None => None,
                Some(Scaling::Delayed) => Some(Fp8Recipe::Delayed),
                Some(Scaling::Tensorwise) => Some(Fp8Recipe::Tensorwise),
                Some(Scaling::Blockwise) => Some(Fp8Recipe::Blockwise),
                Some(Scaling::Mxfp8) => Some(Fp8Recipe::Mxfp8),
                Some(Scaling::Nvfp4) => Some(Fp8Recipe::Nvfp4),
                Some(Scaling::Rowwise) => return refuse("scales a row", "Transformer Engine has no such recipe"),
            },
            fp8_param_gather: asked.fp8_param_gather,
            dispatcher,
            reduction: if asked.overlap.gradients { Reduction::Overlapped } else { Reduction::AtTheEnd },
            param_gather: if asked.overlap.weights { ParamGather::Overlapped } else { ParamGather::AtTheStep },
            bucket_size: asked.bucket_size,
            num_buckets: asked.num_buckets,
            pad_buckets: asked.pad_buckets,
            gradient_accumulation_fusion: asked.kernels.accumulate == Accumulate::Fused,
            rope_fusion: asked.kernels.rope_fusion,
            permute_fusion: asked.kernels.permute_fusion,
            relu2_fusion: asked.kernels.relu2_fusion,
            expert_fusion: asked.kernels.expert_fusion,
            sparse: case::sparse_kernels(recipe, layout, asked),
            graphs: graphs(recipe, asked)?,
            attention: match asked.kernels.attention {
                AttentionKernel::Flash3 => AttentionBackend::Fused,
                AttentionKernel::Flash1 | AttentionKernel::Flash2 => AttentionBackend::Flash,
                AttentionKernel::Unfused => AttentionBackend::Unfused,
            },
            precision_aware: precision_aware(asked),
            documents: asked.documents,
            segments: if asked.expandable_segments { Segments::Expandable } else { Segments::Fixed },
            routing: match asked.overload {
                1.0 => Routing::Random { seed: 0 },
                factor => Routing::Overloaded { factor },
            },
            ..MegatronOptions::launched(recipe)
        })
    }
}

/// Formats of AdamW's state, where any is not fp32.
fn precision_aware(asked: &Options) -> Option<StateFormats> {
    let state = &asked.state;
    let formats = StateFormats {
        main_weights: state.main,
        main_gradients: state.gradients,
        exp_avg: state.exp_avg,
        exp_avg_sq: state.exp_avg_sq,
    };
    let is_plain = [state.main, state.exp_avg, state.exp_avg_sq].iter().all(|dtype| *dtype == Dtype::Fp32);
    (!is_plain).then_some(formats)
}

/// Refuses formats of state that an engine's ledger has no bytes for: what it replays is fp32 main
/// weights and moments, and gradients in fp32.
pub(crate) fn formats(recipe: &Recipe, asked: &Options, engine: Engine) -> Result<(), Unmodelled> {
    let state = &asked.state;
    let held = [("main weights", state.main), ("moments", state.exp_avg), ("moments", state.exp_avg_sq)];
    // The emitted program steps bf16 weights with moments of their format, as torch makes them.
    let is_narrow = engine == Engine::Fsdp2 && held.iter().all(|(_, format)| *format == Dtype::Bf16);
    if let Some((what, format)) = held.into_iter().find(|(_, format)| *format != Dtype::Fp32 && !is_narrow) {
        let why = format!("{}'s ledger replays them in fp32 only", engine.name());
        return Err(Unmodelled::new(format!("{what} in {format}"), why));
    }
    // DeepSpeed's gradients are priced in bf16 and in fp32.
    let is_narrow = engine == Engine::Deepspeed && state.gradients == Dtype::Bf16;
    if state.gradients != Dtype::Fp32 && !is_narrow {
        let why = format!("{}'s ledger replays them in fp32 only", engine.name());
        return Err(Unmodelled::new(format!("gradients in {}", state.gradients), why));
    }
    // Our own runtime's one format is `--precision`'s.
    let is_half = recipe.precision.weights == Dtype::Fp16 && engine == Engine::Fsdp2;
    if recipe.precision.weights != Dtype::Bf16 && engine != Engine::Shardwright && !is_half {
        let why = format!("{}'s ledger replays products in bf16 only", engine.name());
        return Err(Unmodelled::new(format!("weights in {}", recipe.precision.weights), why));
    }
    Ok(())
}

/// What only Megatron's ledger replays.
pub(crate) fn plain(asked: &Options) -> Result<(), Unmodelled> {
    if asked.overload != 1.0 {
        return refuse("routing skew", "this engine's ledger replays balanced routing only");
    }
    if asked.offload_activations > 0.0 {
        return refuse("activations on the host", "this engine's ledger keeps them on the device");
    }
    if asked.expandable_segments {
        return refuse("expandable segments", "they are replayed for Megatron-Core only");
    }
    Ok(())
}

impl Fsdp2Options {
    pub(crate) fn with_options(self, asked: &Options) -> Result<Fsdp2Options, Unmodelled> {
        plain(asked)?;
        if asked.again != Again::Layout {
            return refuse("recompute by operator", "what an operator's policy keeps is not replayed");
        }
        if asked.kernels.dispatch != Dispatch::AllToAll {
            return refuse("this dispatcher", "buffers of DeepEP and HybridEP are not replayed");
        }
        if asked.offload > 0.0 {
            return refuse("optimizer state on the host", "this engine keeps it on the device");
        }
        if self.blocks == Blocks::Emitted && !matches!(asked.format, Format::Bf16) {
            return refuse("products in another format than bf16", "the emitted program's projections have no other");
        }
        let [forward, backward] = [asked.prefetch.forward, asked.prefetch.backward]
            .map(|groups| usize::try_from(groups).unwrap_or(usize::MAX));
        let compile = asked.kernels.elementwise == Elementwise::Compiled;
        let (loss, documents) = (asked.kernels.cross_entropy, asked.documents);
        let is_plain =
            asked.ways == Ways::PLAIN && !loss.has_head() && documents.is_none() && asked.state.main == Dtype::Fp32;
        if self.blocks == Blocks::Common && !is_plain {
            return refuse(
                "8-bit and bf16 state, nf4, averages, teachers, fused losses and documents",
                "they are replayed in the program that `launch --engine fsdp2` writes, which does not have this model",
            );
        }
        let prefetch = Prefetch { forward, backward };
        Ok(Fsdp2Options { compile, prefetch, ways: asked.ways, loss, documents, main: asked.state.main, ..self })
    }
}

impl DeepspeedOptions {
    pub(crate) fn from_options(layout: &Layout, asked: &Options) -> Result<DeepspeedOptions, Unmodelled> {
        plain(asked)?;
        let offload_optimizer = match asked.offload {
            0.0 => None,
            1.0 => Some(Offload::DEFAULT),
            _ => {
                return refuse("a part of optimizer state on the host", "DeepSpeed offloads all of it or nothing");
            }
        };
        let sizes = &asked.zero;
        Ok(DeepspeedOptions {
            reduce_bucket_size: sizes.reduce_bucket,
            allgather_bucket_size: sizes.allgather_bucket,
            overlap_comm: (layout.zero != ZeroStage::Three).then_some(asked.overlap.gradients),
            prefetch_bucket_size: sizes.prefetch_bucket,
            param_persistence_threshold: sizes.param_persistence_threshold,
            max_live_parameters: sizes.max_live_parameters,
            max_reuse_distance: sizes.max_reuse_distance,
            sub_group_size: sizes.sub_group,
            gradients: asked.state.gradients,
            offload_optimizer,
            offload_param: asked.offload_params.then_some(Offload::DEFAULT),
            on_nvme: asked.on_nvme,
            has_script: asked.is_of_script(layout),
            ..DeepspeedOptions::defaults()
        })
    }
}
