//! Which engine ran a row, as far as step time cares.

use layout::Engine;
use serde_json::Value;

/// Engines that lay a step out alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Megatron-Core with Transformer Engine: Megatron-LM, NeMo, Megatron-Bridge.
    Megatron,
    /// Megatron-LM of 2022 before fused attention: Korthikanti's runs.
    MegatronOfOld,
    /// Megatron-LM of 2022 under DeepSpeed's pipeline and ZeRO.
    MegatronDeepspeed,
    /// torch FSDP under Composer: MPT.
    Composer,
    /// torch FSDP around compiled layers: fms-fsdp.
    Fms,
    /// FSDP2 around Transformer Engine layers: NeMo Automodel.
    Automodel,
    /// torchtitan.
    Torchtitan,
    /// MaxText on XLA.
    Maxtext,
    /// nanotron.
    Nanotron,
}

impl Family {
    /// From the row's own name of its framework.
    pub fn of(row: &Value) -> Result<Family, String> {
        let framework = &row["framework"];
        let version = framework["version"].as_str().unwrap_or_default();
        let name = framework["name"].as_str().unwrap_or_default();
        match name {
            "nanotron" => Ok(Family::Nanotron),
            "Megatron-LM" if version.starts_with("202") && version < "2023" => Ok(Family::MegatronOfOld),
            "Megatron-LM" | "Megatron-Core" | "NeMo" => Ok(Family::Megatron),
            "Megatron-DeepSpeed" => Ok(Family::MegatronDeepspeed),
            "MaxText" => Ok(Family::Maxtext),
            _ if name.starts_with("Megatron-Bridge") => Ok(Family::Megatron),
            _ if name.starts_with("llm-foundry") => Ok(Family::Composer),
            _ if name.starts_with("fms-fsdp") => Ok(Family::Fms),
            _ if name.starts_with("NeMo Automodel") => Ok(Family::Automodel),
            _ if name.starts_with("torchtitan") => Ok(Family::Torchtitan),
            _ => Err(format!("no time is modelled for `{name}`")),
        }
    }

    /// The engine whose rules its layouts follow; none where ours names no such engine.
    pub fn engine(self) -> Option<Engine> {
        match self {
            Family::Megatron | Family::MegatronOfOld => Some(Engine::Megatron),
            Family::MegatronDeepspeed => None,
            Family::Composer | Family::Fms | Family::Automodel => Some(Engine::Fsdp2),
            Family::Torchtitan => Some(Engine::Torchtitan),
            Family::Maxtext => Some(Engine::Maxtext),
            Family::Nanotron => Some(Engine::Nanotron),
        }
    }

    /// Whether activations between tensor-parallel regions are sharded where a row does not say.
    pub fn shards_sequence(self) -> bool {
        // Sequence parallelism came to Megatron-LM after DeepSpeed's fork of it.
        self != Family::MegatronDeepspeed
    }
}
