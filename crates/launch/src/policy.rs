//! Where a run keeps things, what it reads, and how long it goes on: what neither recipe nor
//! layout says; and what a machine must be like before it may run there. Written by people, so
//! unknown keys are refused. One file serves `launch` and `preflight`.

mod cluster;
mod machine;
mod rate;
mod read;

pub use cluster::{Container, GpuRequest, Kubernetes, Slurm, Toleration, Volume};
pub use machine::{Clock, Environment, Gpu, Limit, Limits, Ports, Processes};
pub use rate::{BatchRamp, Decay};
pub(crate) use read::DIALECT;

use hardware::Kind;
use layout::Engine;
use serde::Serialize;
use std::collections::BTreeMap;
use units::named;

/// A launch policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Policy {
    /// Locations.
    pub storage: Storage,
    /// What is trained on.
    pub data: Data,
    /// How long, how fast.
    pub run: Run,
    /// Constants by the topology they were measured on.
    pub tuned: BTreeMap<String, Tuned>,
    /// What the scheduler is told.
    pub job: JobPolicy,
    /// What pods are given besides.
    pub kubernetes: Kubernetes,
    /// What Slurm is told besides.
    pub slurm: Slurm,
    /// Implementations of seams by the seam's name, as `module:function`.
    pub seams: BTreeMap<String, String>,
    /// Versions of packages the run is pinned to.
    pub pins: BTreeMap<String, String>,
    /// Variables carried into the run, and those the machine must or must not have.
    pub environment: Environment,
    /// Ports nobody may listen at.
    pub ports: Ports,
    /// What counts as a training process.
    pub processes: Processes,
    /// What the devices must be like.
    pub gpu: Gpu,
    /// Limits of a process.
    pub limits: Limits,
    /// The clock.
    pub clock: Clock,
}

/// Locations. A relative one is relative to the launch directory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Storage {
    /// Checkpoints.
    pub checkpoints: String,
    /// Data caches and indices.
    pub data: String,
    /// Logs.
    pub logs: String,
    /// Compiler, Triton and CUDA caches.
    pub caches: String,
    /// Temporary files.
    pub temporary: String,
    /// Triton's kernels; below `caches` when it is not said.
    pub triton_cache: Option<String>,
    /// Inductor's kernels; below `caches` when it is not said.
    pub inductor_cache: Option<String>,
    /// The driver's own kernels; below `caches` when it is not said.
    pub cuda_cache: Option<String>,
    /// Tokenizers and data sets of Hugging Face; below `data` when it is not said.
    pub hf_home: Option<String>,
    /// Whether any of these on the root volume is a violation.
    pub forbid_root_volume: bool,
    /// Checkpoints kept at a time; every one that is written when it is not said.
    pub keep_last: Option<u64>,
    /// Bytes that must be free, by location.
    pub free: BTreeMap<&'static str, u64>,
}

/// Whether what a location holds is missed after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// It must outlive the machine's memory.
    Lasting,
    /// It is made again.
    Remade,
}

/// One location with where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its key in `[storage]`.
    pub key: &'static str,
    /// Where it is.
    pub path: String,
    /// The variable that tells a library so.
    pub variable: Option<&'static str>,
    /// Whether it must last.
    pub keeps: Keeps,
}

impl Storage {
    /// Every location, those below another spelled out.
    pub fn places(&self) -> Vec<Place> {
        let below = |said: &Option<String>, folder: &str, name: &str| {
            said.clone().unwrap_or_else(|| format!("{}/{name}", folder.trim_end_matches('/')))
        };
        let place = |key, path: String, variable, keeps| Place { key, path, variable, keeps };
        use Keeps::{Lasting, Remade};
        vec![
            place("checkpoints", self.checkpoints.clone(), None, Lasting),
            place("data", self.data.clone(), None, Lasting),
            place("logs", self.logs.clone(), None, Lasting),
            place("caches", self.caches.clone(), None, Remade),
            place("triton_cache", below(&self.triton_cache, &self.caches, "triton"), Some("TRITON_CACHE_DIR"), Remade),
            place(
                "inductor_cache",
                below(&self.inductor_cache, &self.caches, "inductor"),
                Some("TORCHINDUCTOR_CACHE_DIR"),
                Remade,
            ),
            place("cuda_cache", below(&self.cuda_cache, &self.caches, "cuda"), Some("CUDA_CACHE_PATH"), Remade),
            place("hf_home", below(&self.hf_home, &self.data, "huggingface"), Some("HF_HOME"), Remade),
            place("temporary", self.temporary.clone(), Some("TMPDIR"), Remade),
        ]
    }
}

/// Locations that only compilers of GPU kernels write to.
const GPU_ONLY: [&str; 3] = ["triton_cache", "inductor_cache", "cuda_cache"];

impl Storage {
    /// The locations a job on such devices uses.
    pub fn places_on(&self, kind: Kind) -> Vec<Place> {
        let is_used = |place: &Place| kind == Kind::Gpu || !GPU_ONLY.contains(&place.key);
        self.places().into_iter().filter(is_used).collect()
    }
}

impl Storage {
    /// Where runs are kept when no policy says: beside the launch's own files.
    const LOCAL: &str = "./runs";

    /// Every location in a folder of its own below one.
    fn below(folder: &str) -> Storage {
        let below = |name: &str| format!("{}/{name}", folder.trim_end_matches('/'));
        Storage {
            checkpoints: below("checkpoints"),
            data: below("data"),
            logs: below("logs"),
            caches: below("caches"),
            temporary: below("tmp"),
            triton_cache: None,
            inductor_cache: None,
            cuda_cache: None,
            hf_home: None,
            forbid_root_volume: false,
            keep_last: None,
            free: BTreeMap::new(),
        }
    }

    /// Locations that no policy names, moved below `mount`: a pod's own folder ends with the pod.
    pub fn mounted(&mut self, mount: &str) {
        let (local, mounted) = (Storage::default(), Storage::below(mount));
        for (place, local, mounted) in [
            (&mut self.checkpoints, local.checkpoints, mounted.checkpoints),
            (&mut self.data, local.data, mounted.data),
            (&mut self.logs, local.logs, mounted.logs),
            (&mut self.caches, local.caches, mounted.caches),
            (&mut self.temporary, local.temporary, mounted.temporary),
        ] {
            if *place == local {
                *place = mounted;
            }
        }
    }
}

impl Default for Storage {
    fn default() -> Storage {
        Storage::below(Storage::LOCAL)
    }
}

/// What is trained on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Data {
    /// Data sets in the engine's own form; the engine's made-up data when there are none.
    pub paths: Vec<String>,
    /// Structure ids of every token, beside the data sets: for each, one of every component.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub structure: Vec<String>,
    /// Tokenizer: a name or path the engine's loader takes; a made-up one when there is none.
    pub tokenizer: Option<String>,
    /// The token behind which a document ends, in files that do not say where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_of_document: Option<u64>,
    /// A checkpoint of the teacher's weights; drawn ones when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<String>,
}

/// How long and how fast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Steps.
    pub steps: u64,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Learning rate at the end.
    pub least_learning_rate: f64,
    /// Steps of warm-up.
    pub warmup_steps: u64,
    /// How the learning rate comes down.
    #[serde(serialize_with = "decay_name", skip_serializing_if = "is_cosine")]
    pub decay: Decay,
    /// Of `wsd`, the steps in which it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_steps: Option<u64>,
    /// A batch that grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_ramp: Option<BatchRamp>,
    /// Weight decay.
    pub weight_decay: f64,
    /// Largest gradient norm.
    pub clip: f64,
    /// Seed.
    pub seed: u64,
    /// Steps between checkpoints.
    pub save_every: u64,
    /// Steps between log lines.
    pub log_every: u64,
    /// Options of the engine in its own words, as `--engine-args` takes them; what is typed there
    /// comes behind them.
    pub engine_args: Option<String>,
    /// Groups of flags the TPU compiler is given: those published for the generation when the list is
    /// empty, and none for `none`.
    pub tpu_flags: Vec<String>,
    /// What to do where `[tuned]` has constants, and none for this topology.
    #[serde(serialize_with = "untuned_name")]
    pub untuned: Untuned,
    /// Whether adapters are added after sharding, so that their gradients need hooks of their own.
    pub adapters: bool,
}

impl Default for Run {
    /// A short run that shows whether a plan works; a real one has a policy.
    fn default() -> Run {
        Run {
            steps: 100,
            learning_rate: 3e-4,
            least_learning_rate: 3e-5,
            warmup_steps: 10,
            decay: Decay::Cosine,
            decay_steps: None,
            batch_ramp: None,
            weight_decay: 0.1,
            clip: 1.0,
            seed: 1234,
            save_every: 50,
            log_every: 1,
            engine_args: None,
            tpu_flags: Vec::new(),
            untuned: Untuned::Refuse,
            adapters: false,
        }
    }
}

named! {
    /// What becomes of constants that were tuned for another topology.
    pub enum Untuned {
        /// The launch is refused, with the way to tune.
        Refuse = "refuse",
        /// The engine's own are used, and the answer says so.
        Engine = "engine",
    }
}

/// Constants that belong to one topology.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// The engine they were measured with.
    #[serde(serialize_with = "engine_name")]
    pub engine: Engine,
    /// Sizes of buckets and padding in the engine's own words.
    pub engine_args: Option<String>,
    /// The vocabulary is padded to a multiple of this times tp.
    pub vocab_multiple: Option<u64>,
    /// Where they come from: what was measured, and when.
    pub source: String,
}

fn decay_name<S: serde::Serializer>(decay: &Decay, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(decay.name())
}

fn is_cosine(decay: &Decay) -> bool {
    *decay == Decay::Cosine
}

fn untuned_name<S: serde::Serializer>(untuned: &Untuned, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(untuned.name())
}

fn engine_name<S: serde::Serializer>(engine: &Engine, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(engine.name())
}

/// What the scheduler is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobPolicy {
    /// Name; the recipe's when there is none.
    pub name: Option<String>,
    /// Container image; [`JobPolicy::IMAGE`] in pods when none is named, and none under Slurm.
    pub image: Option<String>,
    /// Where the engine's scripts are, on the machine or in the image; `launch.sh` looks for them when it is not said.
    pub engine_root: Option<String>,
    /// The training script of engines that have none of their own.
    pub script: Option<String>,
    /// Restarts after a failure.
    pub restarts: u64,
    /// Port of the rendezvous.
    pub port: u16,
    /// Host of the rendezvous, where the scheduler does not name one.
    pub host: String,
    /// CPU cores of a node that the run gets.
    pub cpus: u64,
    /// Wall-clock limit in hours.
    pub hours: u64,
    /// Slurm partition.
    pub partition: Option<String>,
    /// Slurm account.
    pub account: Option<String>,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes training runtime a TrainJob refers to.
    pub runtime: String,
    /// Kubernetes volume claim that holds the storage.
    pub claim: String,
    /// Where the claim is mounted.
    pub mount: String,
}

impl JobPolicy {
    /// The image of pods where the policy names none: a name to be replaced.
    pub const IMAGE: &'static str = "training:latest";

    /// The image of pods.
    pub fn pod_image(&self) -> &str {
        self.image.as_deref().unwrap_or(JobPolicy::IMAGE)
    }
}

impl Default for JobPolicy {
    fn default() -> JobPolicy {
        JobPolicy {
            name: None,
            image: None,
            engine_root: None,
            script: None,
            restarts: 3,
            port: 29500,
            host: "localhost".to_string(),
            cpus: 64,
            hours: 24,
            partition: None,
            account: None,
            namespace: "default".to_string(),
            runtime: "torch-distributed".to_string(),
            claim: "shardwright".to_string(),
            mount: "/mnt/shardwright".to_string(),
        }
    }
}
