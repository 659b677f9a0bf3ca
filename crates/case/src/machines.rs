//! What engines run on, and which one a cluster runs when nobody names any.

use crate::Asked;
use diag::{Blame, Finding};
use hardware::{Cluster, Vendor};
use layout::Engine;
use recipe::{Mixer, Recipe};

/// Whose devices an engine, as we emit for it, runs on. Megatron-Core's lane is Transformer Engine's
/// CUDA kernels (AMD keeps forks of both, ROCm/Megatron-LM and ROCm/TransformerEngine, whose flags nobody has checked
/// ours against) and nanotron's flash-attn's; torch's own engines and MaxText also run under ROCm;
/// torch_xla's releases since 2.8 have no GPU build. Our own runtime computes on hosts and is only priced.
pub fn runs_on(engine: Engine) -> &'static [Vendor] {
    match engine {
        Engine::Megatron | Engine::Nanotron => &[Vendor::Nvidia],
        Engine::Fsdp2 | Engine::Torchtitan | Engine::Deepspeed => &[Vendor::Nvidia, Vendor::Amd],
        Engine::Maxtext => &[Vendor::Google, Vendor::Nvidia, Vendor::Amd],
        Engine::XlaSpmd => &[Vendor::Google],
        Engine::Shardwright => &[Vendor::Nvidia, Vendor::Amd, Vendor::Google],
    }
}

/// Engines that train on these devices.
pub fn engines_on(vendor: Vendor) -> Vec<Engine> {
    let all = Engine::ALL.iter().map(|(_, engine)| *engine).filter(|engine| *engine != Engine::Shardwright);
    all.filter(|engine| runs_on(*engine).contains(&vendor)).collect()
}

/// Mixers that engines of plain transformers have no block for.
pub fn custom_mixers(recipe: &Recipe) -> Vec<Mixer> {
    let custom = [Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta, Mixer::Linear];
    custom.into_iter().filter(|mixer| recipe.uses(*mixer)).collect()
}

/// Devices up to which a machine is somebody's own rather than a cluster, and the memory up to which they are cards of
/// that kind.
const FEW: u64 = 8;
const SMALL: u64 = 50 << 30;

/// Engines that suit a recipe on a cluster when none is typed, the first one first, and why. Where there are several, it
/// depends on the layout which is to be taken.
pub fn usual_engines(recipe: &Recipe, cluster: Option<&Cluster>) -> (Vec<Engine>, String) {
    let is_plain = custom_mixers(recipe).is_empty() && recipe.modes.is_empty();
    let is_small = cluster.is_some_and(|cluster| cluster.devices() <= FEW && cluster.device.visible_bytes() < SMALL);
    let vendor = cluster.map_or(Vendor::Nvidia, |cluster| cluster.device.vendor);
    let (engines, why): (Vec<Engine>, &str) = match vendor {
        Vendor::Nvidia | Vendor::Amd if recipe.adapters().is_some() => {
            (vec![Engine::Fsdp2], "adapters on a frozen model; --engine picks another")
        }
        Vendor::Nvidia | Vendor::Amd if is_small => {
            let why =
                "few devices of little memory: shards of everything, or state on the host; --engine picks another";
            (vec![Engine::Fsdp2, Engine::Deepspeed], why)
        }
        Vendor::Nvidia => (vec![Engine::Megatron], "the lane of NVIDIA pretraining; --engine picks another"),
        Vendor::Amd if is_plain => (vec![Engine::Torchtitan], "native PyTorch runs on AMD GPUs"),
        Vendor::Amd => (vec![Engine::Fsdp2], "native PyTorch runs on AMD GPUs, with the model's own blocks"),
        // Nothing runs there: the refusal names the device.
        Vendor::Intel => (vec![Engine::Fsdp2], "no engine that we write for runs on Intel accelerators"),
        Vendor::Google if is_plain => (vec![Engine::Maxtext], "the lane of TPUs for a model of plain blocks"),
        Vendor::Google => (vec![Engine::XlaSpmd], "the lane of TPUs that keeps a model's own blocks"),
    };
    (engines, why.to_string())
}

/// The first of them.
pub fn usual_engine(recipe: &Recipe, cluster: Option<&Cluster>) -> (Engine, String) {
    let (engines, why) = usual_engines(recipe, cluster);
    (engines[0], why)
}

/// An engine that does not run on the cluster's devices. A job of `any` engine is priced as
/// Megatron-Core's.
pub fn refusal(engine: Engine, cluster: &Cluster, asked: &Asked) -> Option<Finding> {
    let device = &cluster.device;
    if runs_on(engine).contains(&device.vendor) {
        return None;
    }
    let on: Vec<&str> = runs_on(engine).iter().map(|vendor| vendor.devices()).collect();
    let message = format!("`{engine}` runs on {}, and {} is {}", on.join(" and "), device.name, device.kind_words());
    let would: Vec<String> = engines_on(device.vendor).iter().map(|engine| format!("--engine {engine}")).collect();
    if would.is_empty() {
        let hint = "no engine that we write for runs on it; docs/fleets.md says which run on what";
        return Some(Finding::error("case/device", Blame::Engine, "engine", message).hint(hint));
    }
    let hint = format!(
        "{} run on it; `shardwright lanes --for {} --on {}` says which lane suits",
        would.join(" and "),
        shell_word(&asked.recipe.recipe),
        shell_word(asked.on.as_deref().unwrap_or(&cluster.typed())),
    );
    Some(Finding::error("case/device", Blame::Engine, "engine", message).hint(hint))
}

/// A word for a shell; anything but plain characters goes into single quotes.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(engine: Engine, on: &str) -> Option<(&'static str, String, String)> {
        let mut asked = Asked { on: Some(on.to_string()), ..Asked::default() };
        asked.recipe.recipe = "my model.toml".to_string();
        let finding = refusal(engine, &Cluster::parse(on).unwrap(), &asked)?;
        Some((finding.rule, finding.message, finding.hint.unwrap()))
    }

    #[test]
    fn a_mismatch_names_what_would_do() {
        let (rule, message, hint) = finding(Engine::Megatron, "8xTPUv6e").unwrap();
        assert_eq!(rule, "case/device");
        assert_eq!(message, "`megatron` runs on NVIDIA GPUs, and TPU-v6e is a TPU");
        assert_eq!(
            hint,
            "--engine maxtext and --engine xla-spmd run on it; `shardwright lanes --for 'my model.toml' --on 8xTPUv6e` says which lane suits"
        );
        let (_, message, hint) = finding(Engine::Fsdp2, "8xGaudi-3").unwrap();
        assert!(message.ends_with("and Gaudi-3 is an Intel accelerator") && hint.starts_with("no engine"), "{message}");
        assert!(finding(Engine::Megatron, "8xMI300X").unwrap().1.contains("MI300X is an AMD GPU"));
        assert!(finding(Engine::Torchtitan, "8xMI300X").is_none());
        assert!(finding(Engine::XlaSpmd, "8xH200").unwrap().1.contains("runs on TPUs, and H200 is an NVIDIA GPU"));
        for (_, engine) in Engine::ALL {
            let both = ["8xH200", "8xTPU-v5p"].map(|on| finding(*engine, on).is_none());
            assert!(both[0] || both[1], "{engine} runs somewhere");
        }
    }

    #[test]
    fn the_usual_engine_follows_the_devices() {
        let engine = |name: &str, on: &str| {
            usual_engine(&recipe::builtin::find(name).unwrap(), Some(&Cluster::parse(on).unwrap())).0
        };
        assert_eq!(engine("llama3-8b", "8xH200"), Engine::Megatron);
        assert_eq!(engine("llama3-8b", "8xTPU-v6e"), Engine::Maxtext);
        assert_eq!(engine("nam56r", "8xTPU-v6e"), Engine::XlaSpmd);
        assert_eq!(engine("llama3-8b", "4xRTX-4090"), Engine::Fsdp2);
        assert_eq!(engine("llama3-8b", "2x8xRTX-4090"), Engine::Megatron);
        for (name, engine) in Engine::ALL {
            for vendor in runs_on(*engine).iter().filter(|_| *engine != Engine::Shardwright) {
                assert!(engines_on(*vendor).contains(engine), "{name}");
            }
        }
    }
}
