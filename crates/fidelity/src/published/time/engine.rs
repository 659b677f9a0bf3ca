//! Which engine ran a row, as far as step time cares: from the row's own name of its framework, whoever
//! published it.

use super::super::words::{Clauses, plain, tokens};
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
    /// torch's own FSDP around a plain model.
    Fsdp,
    /// FSDP2 around Transformer Engine layers: NeMo Automodel.
    Automodel,
    /// DeepSpeed around a plain model.
    Deepspeed,
    /// torchtitan.
    Torchtitan,
    /// MaxText on XLA.
    Maxtext,
    /// nanotron.
    Nanotron,
}

impl Family {
    pub fn of(row: &Value) -> Result<Family, String> {
        let framework = &row["framework"];
        let name = framework["name"].as_str().unwrap_or_default();
        // `torchtitan + torchao`, `Megatron-Bridge / Megatron-Core`: the first is the engine.
        let all = plain(name);
        let has = |word: &str| all.contains(word);
        match () {
            () if has("nanotron") => Ok(Family::Nanotron),
            () if has("torchtitan") => Ok(Family::Torchtitan),
            () if has("maxtext") => Ok(Family::Maxtext),
            () if has("llmfoundry") || has("composer") => Ok(Family::Composer),
            () if has("fmsfsdp") => Ok(Family::Fms),
            () if has("automodel") => Ok(Family::Automodel),
            () if has("megatrondeepspeed") => Ok(Family::MegatronDeepspeed),
            () if has("megatron") || has("mcore") || has("nemo") => Ok(Family::of_megatron(framework)),
            () if has("deepspeed") => Ok(Family::Deepspeed),
            () if has("fsdp") => Ok(Family::Fsdp),
            () => Err(format!("no time is modelled for engine `{name}`")),
        }
    }

    /// Fused attention came to Megatron-LM with 2023.
    fn of_megatron(framework: &Value) -> Family {
        let version = framework["version"].as_str().unwrap_or_default();
        let years = tokens(version).into_iter().filter_map(|word| word.parse::<u64>().ok());
        match years.into_iter().find(|year| (2019..2100).contains(year)) {
            Some(..2023) => Family::MegatronOfOld,
            _ => Family::Megatron,
        }
    }

    /// Whether its wrapper keeps weights in one flat buffer, as torch's first did: Composer's and fms-fsdp's, and `FSDP` where
    /// nobody says that it is the second.
    pub fn is_flat(self, row: &Value) -> bool {
        let name = plain(row["framework"]["name"].as_str().unwrap_or_default());
        matches!(self, Family::Composer | Family::Fms) || self == Family::Fsdp && !name.contains("fsdp2")
    }

    /// The engine whose rules its layouts follow; none where ours names no such engine.
    pub fn engine(self) -> Option<Engine> {
        match self {
            Family::Megatron | Family::MegatronOfOld => Some(Engine::Megatron),
            Family::MegatronDeepspeed => None,
            Family::Composer | Family::Fms | Family::Fsdp | Family::Automodel => Some(Engine::Fsdp2),
            Family::Deepspeed => Some(Engine::Deepspeed),
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

/// The name of a row's framework, as words.
pub(super) fn named(row: &Value) -> Clauses {
    Clauses::of(row["framework"]["name"].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn engines_are_read_however_they_are_spelled() {
        let of = |name: &str, version: &str| Family::of(&json!({ "framework": { "name": name, "version": version } }));
        for name in ["Megatron-LM", "megatron_lm", "MCore", "NVIDIA NeMo", "megatron-bridge", "Megatron Core"] {
            assert_eq!(of(name, "2025"), Ok(Family::Megatron), "{name}");
        }
        assert_eq!(of("Megatron-LM", "2022"), Ok(Family::MegatronOfOld));
        assert_eq!(of("megatron-deepspeed", "2022-02"), Ok(Family::MegatronDeepspeed));
        assert_eq!(of("TorchTitan + torchao", ""), Ok(Family::Torchtitan));
        assert_eq!(of("PyTorch FSDP2", ""), Ok(Family::Fsdp));
        assert_eq!(of("DeepSpeed (HF Trainer)", ""), Ok(Family::Deepspeed));
        assert!(of("ColossalAI", "").unwrap_err().contains("`ColossalAI`"));
    }
}
