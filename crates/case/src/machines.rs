//! What engines run on, and which one a cluster runs when nobody names any.

use crate::Asked;
use diag::{Blame, Finding};
use hardware::{Cluster, Kind, Vendor};
use layout::Engine;
use recipe::{Mixer, Recipe};
use units::named;

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

named! {
    /// What a run is for.
    pub enum Goal {
        /// The most tokens a second.
        Throughput = "throughput",
        /// PyTorch-native control: debugging, adapters, blocks of one's own.
        Control = "control",
        /// A model that does not fit the devices.
        Offload = "offload",
        /// A run on TPUs.
        Tpu = "tpu",
    }
}

/// The goal on a cluster when none is typed.
pub fn usual_goal(cluster: &Cluster) -> Goal {
    if cluster.device.kind == Kind::Tpu { Goal::Tpu } else { Goal::Throughput }
}

const TRAINS_ADAPTERS: &str = "adapters on a frozen model, which FSDP2 trains";

/// Engines for a job, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Suited {
    /// The first one first. Which of several is faster depends on the layout: `plan` compares them.
    pub engines: Vec<Engine>,
    /// Why these engines suit the job.
    pub why: String,
}

/// The engines for a recipe, a cluster and a goal; or why there are none. `lanes`, `plan` and every command to which no
/// engine is typed ask here.
pub fn suited(recipe: &Recipe, cluster: &Cluster, goal: Goal) -> Result<Suited, &'static str> {
    let custom: Vec<&str> = custom_mixers(recipe).iter().map(|mixer| mixer.table()).collect();
    let is_plain = custom.is_empty() && recipe.modes.is_empty();
    let own_blocks = if custom.is_empty() { "the recipe's modes".to_string() } else { custom.join(", ") };
    let device = &cluster.device;
    let is_small = cluster.devices() <= FEW && device.visible_bytes() < SMALL;
    let of = |engines: &[Engine], why: String| Ok(Suited { engines: engines.to_vec(), why });
    let one = |engine, why: &str| of(&[engine], why.to_string());
    match (device.vendor, goal) {
        (Vendor::Google, Goal::Offload) => Err("no lane keeps state on a TPU's host"),
        (Vendor::Google, Goal::Control) => {
            one(Engine::XlaSpmd, "annotated PyTorch is a program of one's own on TPUs; unpriced for now")
        }
        (Vendor::Google, _) if is_plain => {
            one(Engine::Maxtext, "MaxText is written for TPUs and for models of plain blocks; unpriced for now")
        }
        (Vendor::Google, _) => {
            let why = format!(
                "MaxText has no block for {own_blocks}; annotated PyTorch keeps the model one source; unpriced for now"
            );
            of(&[Engine::XlaSpmd], why)
        }
        (_, Goal::Tpu) => Err("the goal is TPUs"),
        // The refusal names the device.
        (Vendor::Intel, _) => one(Engine::Fsdp2, "no engine that we write for runs on Intel accelerators"),
        (_, Goal::Offload) => {
            one(Engine::Deepspeed, "state that does not fit moves to the host, and DeepSpeed's ZeRO moves most of it")
        }
        _ if recipe.adapters().is_some() => one(Engine::Fsdp2, TRAINS_ADAPTERS),
        (_, Goal::Throughput) if is_small => {
            let why =
                "few devices of little memory, where state is shared out (FSDP2) or moves to the host (DeepSpeed)";
            of(&[Engine::Fsdp2, Engine::Deepspeed], why.to_string())
        }
        (Vendor::Nvidia, Goal::Throughput) => {
            let why = "pretraining on NVIDIA GPUs, where its fused kernels and overlap decide throughput";
            let experts = if recipe.uses(Mixer::Moe) { " and experts need its dispatcher" } else { "" };
            of(&[Engine::Megatron], format!("{why}{experts}"))
        }
        _ if is_plain => one(
            Engine::Torchtitan,
            "native PyTorch, and torchtitan has the model's plain attention and feed-forward blocks",
        ),
        _ => of(&[Engine::Fsdp2], format!("native PyTorch, which runs {own_blocks} as written")),
    }
}

/// Engines that suit a recipe on a cluster when neither engine nor goal is typed, and why.
pub fn usual_engines(recipe: &Recipe, cluster: Option<&Cluster>) -> (Vec<Engine>, String) {
    let found = cluster.and_then(|cluster| suited(recipe, cluster, usual_goal(cluster)).ok());
    match found {
        Some(Suited { engines, why }) => (engines, why),
        None if recipe.adapters().is_some() => (vec![Engine::Fsdp2], TRAINS_ADAPTERS.to_string()),
        None => (vec![Engine::Megatron], "the engine of large pretraining, as no cluster is named".to_string()),
    }
}

/// The first of them.
pub fn usual_engine(recipe: &Recipe, cluster: Option<&Cluster>) -> (Engine, String) {
    let (engines, why) = usual_engines(recipe, cluster);
    (engines[0], format!("{why}; --engine picks another"))
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
    fn engines_follow_machine_model_and_goal() {
        use Engine::*;
        let of = |name: &str, on: &str, goal| {
            let recipe = recipe::builtin::find(name).unwrap();
            let on = Cluster::parse(on).unwrap();
            let found = suited(&recipe, &on, goal)?;
            assert!(
                !found.why.is_empty()
                    && found.engines.iter().all(|engine| runs_on(*engine).contains(&on.device.vendor))
            );
            Ok::<Vec<Engine>, &str>(found.engines)
        };
        assert_eq!(of("nam56r", "8xH200", Goal::Throughput), Ok(vec![Megatron]));
        assert_eq!(of("nam56r", "8xH200", Goal::Control), Ok(vec![Fsdp2]));
        assert_eq!(of("llama3-8b", "8xH200", Goal::Control), Ok(vec![Torchtitan]));
        assert_eq!(of("llama3-8b", "4xRTX-4090", Goal::Throughput), Ok(vec![Fsdp2, Deepspeed]));
        assert_eq!(of("llama3-8b", "4xRTX-4090", Goal::Control), Ok(vec![Torchtitan]));
        assert_eq!(of("deepseek-v3", "8xH200", Goal::Offload), Ok(vec![Deepspeed]));
        assert_eq!(of("nam56r", "8xMI300X", Goal::Throughput), Ok(vec![Fsdp2]));
        assert_eq!(of("llama3-8b", "8xTPU-v6e", Goal::Tpu), Ok(vec![Maxtext]));
        assert_eq!(of("nam56r", "8xTPU-v6e", Goal::Throughput), Ok(vec![XlaSpmd]));
        assert!(of("llama3-8b", "8xTPU-v6e", Goal::Offload).is_err() && of("llama3-8b", "8xH200", Goal::Tpu).is_err());
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
