//! What the user asked for: flags as typed, nothing derived.

use recipe::{Mixer, Mode};
use std::fmt;
use units::named;

named! {
    /// How much of the training state data-parallel ranks share out.
    pub enum ZeroStage {
        /// Nothing: every replica holds everything.
        Zero = "0",
        /// Optimizer state.
        One = "1",
        /// Optimizer state and gradients.
        Two = "2",
        /// Optimizer state, gradients and weights.
        Three = "3",
    }
}

named! {
    /// The order in which a pipeline runs its microbatches. Ownership is the same under each but
    /// `dualpipe`, which keeps every stage twice.
    pub enum Schedule {
        /// All forwards, then all backwards.
        GPipe = "gpipe",
        /// One forward, one backward.
        OneF1b = "1f1b",
        /// One forward, one backward over virtual stages.
        Interleaved = "interleaved",
        /// Backward split into input and weight halves to fill the bubble.
        ZbH1 = "zb-h1",
        /// Two pipelines in opposite directions over the same ranks.
        DualPipe = "dualpipe",
        /// The same idea folded into a V: two chunks a rank, no second copy.
        DualPipeV = "dualpipev",
    }
}

named! {
    /// The engine that will run the plan.
    pub enum Engine {
        /// Megatron-Core and NeMo.
        Megatron = "megatron",
        /// Native PyTorch with `fully_shard`.
        Fsdp2 = "fsdp2",
        /// torchtitan.
        Torchtitan = "torchtitan",
        /// DeepSpeed.
        Deepspeed = "deepspeed",
        /// nanotron.
        Nanotron = "nanotron",
        /// MaxText.
        Maxtext = "maxtext",
        /// torch_xla SPMD.
        XlaSpmd = "xla-spmd",
        /// Our own runtime.
        Shardwright = "shardwright",
    }
}

named! {
    /// How layers are dealt out to pipeline chunks.
    pub enum Balance {
        /// As even as possible by count.
        Layers = "layers",
        /// As even as possible by parameters, edges included.
        Params = "params",
        /// By bytes at the peak. Which those are is a question of prices, so whoever has them says
        /// the boundaries.
        Memory = "memory",
        /// By seconds of a microbatch, likewise.
        Time = "time",
    }
}

named! {
    /// Modules an engine can recompute by itself instead of saving what they computed.
    pub enum RecomputeModule {
        /// The attention core.
        CoreAttn = "core_attn",
        /// The activation inside experts.
        MoeAct = "moe_act",
        /// Norms.
        Layernorm = "layernorm",
        /// Latent attention's up-projections.
        MlaUpProj = "mla_up_proj",
        /// Dense MLPs.
        Mlp = "mlp",
        /// Whole expert layers.
        Moe = "moe",
        /// Shared experts.
        SharedExperts = "shared_experts",
        /// The output norm of gated delta nets.
        GdnNormOut = "gdn_norm_out",
        /// Whole attention blocks.
        Attention = "attention",
        /// Whole Mamba blocks.
        Mamba = "mamba",
        /// Whole recurrent blocks.
        Recurrent = "recurrent",
        /// Whole gated delta nets.
        GatedDelta = "gated_delta",
    }
}

impl RecomputeModule {
    /// The mixer that a module is the whole of.
    pub fn whole(self) -> Option<Mixer> {
        match self {
            RecomputeModule::Mlp => Some(Mixer::Mlp),
            RecomputeModule::Moe => Some(Mixer::Moe),
            RecomputeModule::Attention => Some(Mixer::Attention),
            RecomputeModule::Mamba => Some(Mixer::Mamba),
            RecomputeModule::Recurrent => Some(Mixer::Recurrent),
            RecomputeModule::GatedDelta => Some(Mixer::GatedDelta),
            _ => None,
        }
    }

    /// Whether only this project's own engine can compute it again by itself. The others are the
    /// choices of `--recompute-modules` (Megatron-Core `transformer_config.py`).
    pub fn is_ours(self) -> bool {
        use RecomputeModule::{Attention, GatedDelta, Mamba, Recurrent};
        matches!(self, Attention | Mamba | Recurrent | GatedDelta)
    }
}

/// What is computed again in backward instead of being kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Recompute {
    /// Nothing.
    None,
    /// Every layer.
    Full,
    /// The named modules.
    Selective(Vec<RecomputeModule>),
}

impl Recompute {
    /// Whether a mixer as a whole is computed again in backward instead of keeping anything.
    pub fn repeats(&self, mixer: Mixer) -> bool {
        match self {
            Recompute::None => false,
            Recompute::Full => true,
            Recompute::Selective(modules) => modules.iter().any(|module| module.whole() == Some(mixer)),
        }
    }

    /// Whether a module is named.
    pub fn names(&self, module: RecomputeModule) -> bool {
        matches!(self, Recompute::Selective(modules) if modules.contains(&module))
    }

    /// Reads `none`, `full` or `selective:a+b`.
    pub fn parse(text: &str) -> Result<Recompute, String> {
        match text {
            "none" => return Ok(Recompute::None),
            "full" => return Ok(Recompute::Full),
            _ => {}
        }
        let known = RecomputeModule::ALL.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let Some(list) = text.strip_prefix("selective:") else {
            return Err(format!("`{text}` is not `none`, `full` or `selective:a+b`; modules are {known}"));
        };
        let modules = list.split('+').map(|word| {
            let found = RecomputeModule::ALL.iter().find(|(name, _)| *name == word);
            found.map(|(_, module)| *module).ok_or_else(|| {
                match diag::did_you_mean(word, RecomputeModule::ALL.iter().map(|(name, _)| *name)) {
                    Some(close) => format!("`{word}` is no module, did you mean `{close}`? modules are {known}"),
                    None => format!("`{word}` is no module; modules are {known}"),
                }
            })
        });
        let mut modules = modules.collect::<Result<Vec<_>, _>>()?;
        modules.sort();
        modules.dedup();
        Ok(Recompute::Selective(modules))
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompute::None => f.pad("none"),
            Recompute::Full => f.pad("full"),
            Recompute::Selective(modules) => {
                let words: Vec<_> = modules.iter().map(|m| m.name()).collect();
                f.pad(&format!("selective:{}", words.join("+")))
            }
        }
    }
}

/// A layout as asked for. What is `None` is derived, and the derivation is reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayoutRequest {
    /// Ranks in all.
    pub world: Option<u64>,
    /// Tensor-parallel degree.
    pub tp: Option<u64>,
    /// Sequence-sharded activations.
    pub sp: Option<bool>,
    /// Context-parallel degree.
    pub cp: Option<u64>,
    /// Pipeline stages.
    pub pp: Option<u64>,
    /// Chunks a stage holds.
    pub vpp: Option<u64>,
    /// Expert-parallel degree.
    pub ep: Option<u64>,
    /// Tensor-parallel degree inside experts.
    pub etp: Option<u64>,
    /// Data-parallel degree.
    pub dp: Option<u64>,
    /// ZeRO stage.
    pub zero: Option<ZeroStage>,
    /// Sequences a microbatch has on one replica.
    pub micro_batch: Option<u64>,
    /// Sequences a step has in all.
    pub global_batch: Option<u64>,
    /// Microbatches a step has on one replica.
    pub microbatches: Option<u64>,
    /// Tokens a sequence has.
    pub sequence: Option<u64>,
    /// Pipeline schedule.
    pub schedule: Option<Schedule>,
    /// Recompute policy.
    pub recompute: Option<Recompute>,
    /// Runtime mode.
    pub mode: Option<Mode>,
    /// First layer of every chunk but the first.
    pub boundaries: Option<Vec<u64>>,
    /// How layers are dealt out without boundaries.
    pub balance: Option<Balance>,
    /// Engine whose own rules apply too.
    pub engine: Option<Engine>,
    /// The padded vocabulary is a multiple of this times tp.
    pub vocab_multiple: Option<u64>,
}

impl LayoutRequest {
    /// The same with one size changed, by the name of its flag; none for a flag that is no size.
    pub fn with_size(&self, key: &str, value: u64) -> Option<LayoutRequest> {
        let mut request = self.clone();
        let size = match key {
            "world" => &mut request.world,
            "tp" => &mut request.tp,
            "cp" => &mut request.cp,
            "pp" => &mut request.pp,
            "vpp" => &mut request.vpp,
            "ep" => &mut request.ep,
            "etp" => &mut request.etp,
            "dp" => &mut request.dp,
            "mbs" => &mut request.micro_batch,
            "gbs" => &mut request.global_batch,
            "microbatches" => &mut request.microbatches,
            "seq" => &mut request.sequence,
            "vocab-multiple" => &mut request.vocab_multiple,
            _ => return None,
        };
        *size = Some(value);
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recompute_reads_what_it_writes() {
        for text in ["none", "full", "selective:core_attn+moe_act"] {
            assert_eq!(Recompute::parse(text).unwrap().to_string(), text);
        }
        assert!(Recompute::parse("selective:core_atn").unwrap_err().contains("did you mean `core_attn`"));
        assert!(Recompute::parse("some").unwrap_err().contains("not `none`, `full`"));
    }
}
