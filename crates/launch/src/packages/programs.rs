//! Packages of every engine but Megatron's.

use super::Package;
use crate::engines;
use crate::job::Job;
use case::options::Dispatch;
use layout::Engine;

/// By engine.
pub fn packages(job: &Job, engine: Engine) -> Vec<Package> {
    match engine {
        Engine::Torchtitan => torchtitan(job),
        Engine::Deepspeed => deepspeed(job),
        Engine::Fsdp2 => listed(engines::fsdp2::libraries(job)),
        Engine::XlaSpmd => vec![
            Package::new("numpy", "train.py"),
            // What its launch says behind --framework.
            Package::new("torch", "--framework torch_xla"),
            Package::new("torch_xla", "--framework torch_xla"),
        ],
        Engine::Nanotron => nanotron(),
        Engine::Maxtext => vec![
            Package::new("jax", "MaxText"),
            Package::new("maxtext", "the engine").since("0.2.5", "0.2.5").below("0.3"),
        ],
        Engine::Megatron | Engine::Shardwright => Vec::new(),
    }
}

fn torchtitan(job: &Job) -> Vec<Package> {
    let dispatch = job.case.options.kernels.dispatch;
    // It names no version. Of the releases 2.12 is the first with torch.distributed.fsdp.DataParallelMeshDims and
    // ShardPlacementResult, which it imports, and 2.14 with torch._library.opaque_object.CustomClassBase, for HybridEP.
    let least = if dispatch == Dispatch::HybridEp { "2.14.0" } else { "2.12.0" };
    let torch = Package::new("torch", "torchtitan 0.3.0 (DataParallelMeshDims)").since(least, "2.15.0");
    // Its pyproject.toml.
    let titan =
        Package::new("torchtitan", "the engine").since("0.3.0", "0.3.0").below("0.4").imports(&["torchtitan.train"]);
    let mut all = vec![torch, titan, Package::new("tyro", "torchtitan's configuration")];
    all.push(Package::new("datasets", "torchtitan's text loader").since("3.6.0", "4.7.0").below("4.8"));
    all.push(Package::new("tokenizers", "torchtitan's text loader").since("0.15.0", "0.22.1"));
    if matches!(dispatch, Dispatch::DeepEp | Dispatch::HybridEp) {
        all.push(Package::new("deep_ep", "moe_comm_backend"));
    }
    all
}

fn deepspeed(job: &Job) -> Vec<Package> {
    if engines::deepspeed::is_own(job) {
        return listed(engines::deepspeed::libraries());
    }
    // Its metadata: `torch>=2.0.0`. What a script of one's own imports besides is not known.
    vec![
        Package::new("torch", "DeepSpeed").since("2.0.0", "2.15.0"),
        Package::new("deepspeed", "the engine").since("0.19.8", "0.19.8").below("0.20"),
    ]
}

/// What `requirements.txt` of the launch lists.
fn listed(libraries: Vec<(&'static str, &'static str)>) -> Vec<Package> {
    let of = |(name, version): (&'static str, &'static str)| {
        let module = match name {
            "liger-kernel" => "liger_kernel",
            "cut-cross-entropy" => "cut_cross_entropy",
            name => name,
        };
        let package = Package::new(name, "train.py").module(module);
        match name {
            "numpy" => package.since("1.26", version),
            "deepspeed" => Package { why: "the engine".to_string(), ..package.since(version, version).below("0.20") },
            _ => package.since(version, version),
        }
    };
    libraries.into_iter().map(of).collect()
}

fn nanotron() -> Vec<Package> {
    vec![
        Package::new("torch", "nanotron"),
        Package::new("nanotron", "the engine").install("install huggingface/nanotron at 2411b02 from source"),
        Package::new("flash-attn", "nanotron's attention").module("flash_attn").since("2.5.0", "2.8.3"),
    ]
}
