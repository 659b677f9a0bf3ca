//! What decides how far a step's time is to be trusted.

use case::Case;
use case::options::Format;
use hardware::Device;
use layout::Engine;
use recipe::{Mixer, Recipe};
use serde::{Deserialize, Serialize};
use units::named;

/// Names that residuals are written under, by the words people read.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$case_doc:meta])* $case:ident = $word:literal),+ $(,)? }) => {
        named! {
            $(#[$doc])*
            #[derive(Serialize, Deserialize)]
            pub enum $name { $($(#[$case_doc])* #[serde(rename = $word)] $case = $word,)+ }
        }
    };
}

words! {
    /// Engines that lay a step out alike.
    EngineClass {
        /// Megatron-Core, and no engine at all, which is priced as it.
        Megatron = "Megatron",
        /// torch's own sharding: FSDP2, torchtitan.
        Fsdp = "FSDP",
        /// DeepSpeed.
        Deepspeed = "DeepSpeed",
        /// nanotron.
        Nanotron = "nanotron",
        /// XLA: MaxText, SPMD.
        Xla = "XLA",
        /// This project's own runtime.
        Shardwright = "shardwright",
    }
}

words! {
    /// What a model is made of.
    ModelClass {
        /// Attention and feed-forward blocks.
        Dense = "dense",
        /// Routed experts.
        Experts = "experts",
        /// Latent attention, with experts or not.
        Latent = "latent attention",
        /// Blocks of state: Mamba, recurrences, delta nets.
        Hybrid = "hybrid",
    }
}

words! {
    /// Generations of devices.
    DeviceClass {
        /// A100.
        Ampere = "Ampere",
        /// H100, H200.
        Hopper = "Hopper",
        /// B200, GB200 and their kin.
        Blackwell = "Blackwell",
        /// Everything else: devices that nobody has measured the curves of, which borrow a relative's.
        Other = "other devices",
    }
}

words! {
    /// Bits of a product's factors.
    FormatClass {
        /// 16 and more.
        Sixteen = "16 bits",
        /// 8.
        Eight = "8 bits",
        /// 4.
        Four = "4 bits",
    }
}

words! {
    /// How many devices.
    Scale {
        /// Up to 8.
        Node = "up to 8 devices",
        /// Up to 64.
        Nodes = "up to 64 devices",
        /// Up to 512.
        Rows = "up to 512 devices",
        /// More.
        Hall = "more than 512 devices",
    }
}

/// The class of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Class {
    /// Who runs it.
    pub engine: EngineClass,
    /// What the model is made of.
    pub model: ModelClass,
    /// On what.
    pub device: DeviceClass,
    /// In what.
    pub format: FormatClass,
    /// On how many.
    pub scale: Scale,
    /// Whether depth is cut into stages.
    pub pipeline: bool,
}

impl Class {
    /// The class of a job.
    ///
    /// # Panics
    /// When the job has no cluster.
    pub fn of(case: &Case) -> Class {
        Class {
            engine: engine_of(case.layout.engine),
            model: model_of(&case.recipe),
            device: device_of(&case.on().device),
            format: format_of(case.options.format),
            scale: match case.layout.world {
                0..=8 => Scale::Node,
                9..=64 => Scale::Nodes,
                65..=512 => Scale::Rows,
                513.. => Scale::Hall,
            },
            pipeline: case.layout.pp.splits(),
        }
    }

    /// The class with every other model, engine and device, with stages and without.
    pub(super) fn relatives(self) -> impl Iterator<Item = Class> {
        let models = ModelClass::ALL.iter().map(|(_, model)| *model);
        models.flat_map(move |model| {
            let engines = EngineClass::ALL.iter().map(|(_, engine)| *engine);
            engines.flat_map(move |engine| {
                let devices = DeviceClass::ALL.iter().map(|(_, device)| *device);
                devices.flat_map(move |device| {
                    [false, true].map(|pipeline| Class { model, engine, device, pipeline, ..self })
                })
            })
        })
    }

    /// The class less what the `level`th fallback leaves out: scale, format, device, pipeline, engine, model.
    pub(super) fn agrees(&self, other: &Class, level: usize) -> bool {
        (level > 0 || self.scale == other.scale)
            && (level > 1 || self.format == other.format)
            && (level > 2 || self.device == other.device)
            && (level > 3 || self.pipeline == other.pipeline)
            && (level > 4 || self.engine == other.engine)
            && (level > 5 || self.model == other.model)
    }

    /// What of the class is left at a level of fallback.
    pub(super) fn words(&self, level: usize) -> String {
        let parts = [
            (level <= 5).then(|| self.model.name()),
            (level <= 4).then(|| self.engine.name()),
            (level <= 3).then_some(if self.pipeline { "with stages" } else { "without stages" }),
            (level <= 2).then(|| self.device.name()),
            (level <= 1).then(|| self.format.name()),
            (level == 0).then(|| self.scale.name()),
        ];
        let words: Vec<&str> = parts.into_iter().flatten().collect();
        if words.is_empty() { "all published runs".to_string() } else { words.join(", ") }
    }
}

/// Levels of fallback, the class itself and everything included.
pub(super) const LEVELS: usize = 7;

fn engine_of(engine: Option<Engine>) -> EngineClass {
    match engine {
        None | Some(Engine::Megatron) => EngineClass::Megatron,
        Some(Engine::Fsdp2 | Engine::Torchtitan) => EngineClass::Fsdp,
        Some(Engine::Deepspeed) => EngineClass::Deepspeed,
        Some(Engine::Nanotron) => EngineClass::Nanotron,
        Some(Engine::Maxtext | Engine::XlaSpmd) => EngineClass::Xla,
        Some(Engine::Shardwright) => EngineClass::Shardwright,
    }
}

fn model_of(recipe: &Recipe) -> ModelClass {
    let states = [Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta, Mixer::Linear];
    match () {
        () if states.iter().any(|mixer| recipe.uses(*mixer)) => ModelClass::Hybrid,
        () if recipe.is_latent() => ModelClass::Latent,
        () if recipe.uses(Mixer::Moe) => ModelClass::Experts,
        () => ModelClass::Dense,
    }
}

fn device_of(device: &Device) -> DeviceClass {
    let name = device.name.to_ascii_uppercase();
    match () {
        () if name.starts_with("A100") || name.starts_with("A800") => DeviceClass::Ampere,
        () if ["H100", "H200", "H800"].iter().any(|start| name.starts_with(start)) => DeviceClass::Hopper,
        () if ["B200", "B300", "GB"].iter().any(|start| name.starts_with(start)) => DeviceClass::Blackwell,
        () => DeviceClass::Other,
    }
}

fn format_of(format: Format) -> FormatClass {
    match format {
        Format::Bf16 | Format::F32 | Format::F64 => FormatClass::Sixteen,
        Format::Fp8 | Format::Mxfp8 => FormatClass::Eight,
        Format::Nvfp4 => FormatClass::Four,
    }
}
