//! Megatron-Core 0.19.2 and what it imports by option: its pyproject.toml (`te`, `ssm`, `dev`) and the imports of the
//! modules that a flag brings in.

use super::{Package, Tool};
use crate::emission::Emission;
use crate::header;
use crate::job::{Frontend, Job};
use case::SparseKernels;
use case::options::Accumulate;
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Optimizer};

/// The module that the engine builds of C++ as it starts; a wheel has it built.
const HELPERS: (&str, &str) = ("megatron.core.datasets", "helpers_cpp");

/// Packages that pip does not install: those that no index has, and one whose archive there lacks its kernels.
const FROM_SOURCE: [(&str, &str); 2] = [
    (
        "fast_hadamard_transform",
        "install Dao-AILab/fast-hadamard-transform from source: the archive in the index lacks its kernels",
    ),
    ("deep_ep", "install deepseek-ai/DeepEP from source (for HybridEP its branch hybrid-ep)"),
];

/// Blocks and options of a launch, each with its packages.
pub fn packages(job: &Job, emission: &Emission) -> Vec<Package> {
    let mut all = engine(job);
    if !is_local(emission) {
        let kernels = Package::new("transformer_engine", "the layers of `--transformer-impl transformer_engine`");
        // docker and uv.lock of core_v0.19.0 pin 2.17.1.
        let kernels = kernels.since(engine_kernels(emission), "2.17.1").imports(&["transformer_engine.pytorch"]);
        all.push(kernels.install("pip install --no-build-isolation 'transformer_engine[pytorch]==2.17.1'"));
    }
    if job.case.options.kernels.accumulate == Accumulate::Fused {
        let apex = Package::new("apex", "gradients summed in the product (--gradient-accumulation-fusion)");
        let how = "install APEX with --cpp_ext and --cuda_ext, or launch with --engine-args \
                   \"--no-gradient-accumulation-fusion\"";
        all.push(apex.module("fused_weight_gradient_mlp_cuda").install(how));
    }
    all.extend(blocks(job));
    all.extend(options(job, emission));
    all
}

/// The engine itself, through which it is reached, and torch.
fn engine(job: &Job) -> Vec<Package> {
    // megatron-core's metadata: `torch>=2.6.0`.
    let torch = Package::new("torch", "Megatron-Core").since("2.6.0", "2.15.0");
    let core =
        Package::new("megatron-core", "the engine").module("megatron.core").since("0.19.0", "0.19.2").below("0.20");
    // initialize.py runs `make` there and exits where it fails; the wheel on PyPI has the sources without a Makefile.
    let core = core.file("megatron.core.datasets", "Makefile");
    let core = core.install("install Megatron-LM's tag core_v0.19.0 from source: the wheel has no datasets/Makefile");
    // dist_checkpointing/strategies/filesystem_async.py: "psutil is not installed" at the first save.
    let psutil = Package::new("psutil", "the first checkpoint");
    // datasets/Makefile: `python3 -m pybind11 --includes`.
    let pybind = Package::new("pybind11", "C++ of the data sets, built as the engine starts").unless(HELPERS);
    let mut all = vec![torch, core, psutil, pybind];
    if job.frontend == Frontend::Bridge {
        let bridge = Package::new("megatron-bridge", "the front end").module("megatron.bridge");
        all.push(bridge.since("0.6.0", "0.6.2").below("0.7"));
    }
    all
}

/// What datasets/Makefile runs (`compile_helpers` of datasets/utils.py, in every start).
pub fn tools() -> Vec<Tool> {
    let why = "C++ of the data sets, built as the engine starts";
    let tool = |name, variable, unless, install| Tool { name, variable, unless, why, install };
    vec![
        tool("make", None, None, "apt-get install make"),
        tool("g++", Some("CXX"), Some(HELPERS), "apt-get install g++, or name a C++17 compiler as CXX"),
        tool("python3-config", None, Some(HELPERS), "apt-get install python3-dev"),
    ]
}

/// The least version of the kernels' library that the flags assert (`is_te_min_version` in training/arguments.py).
fn engine_kernels(emission: &Emission) -> &'static str {
    let says = |flag: &str| emission.arguments.iter().any(|argument| argument.flag == flag);
    match () {
        // docs/launch.md: fused experts.
        () if says("--use-transformer-engine-op-fuser") => "2.16.0",
        () if says("--qk-clip") => "2.9.0",
        () if says("--delay-wgrad-compute") => "2.8.0",
        () if emission.arguments.iter().any(|argument| argument.flag.starts_with("--fp4")) => "2.7.0",
        () => "2.0.0",
    }
}

fn is_local(emission: &Emission) -> bool {
    let is_said = |argument: &&crate::Argument| argument.flag == "--transformer-impl";
    emission.arguments.iter().find(is_said).is_some_and(|argument| argument.values == ["local"])
}

/// What mixers import.
fn blocks(job: &Job) -> Vec<Package> {
    let mut all = Vec::new();
    if job.recipe.uses(Mixer::Mamba) {
        let mamba = Package::new("mamba_ssm", "M blocks");
        let is_third = matches!(job.recipe.mamba, Some(Mamba::Three(_)));
        let mamba = match is_third {
            // 2.3.1 has no Mamba-3.
            true => Package { why: "Mamba-3 blocks".to_string(), ..mamba.since("2.3.2", "2.3.2.post1") }
                .imports(&["mamba_ssm.ops.triton.mamba3.mamba3_siso_combined"])
                .or("Mamba-3 runs in products of matrices instead, many times slower than was priced"),
            false => mamba.since("2.2.0", "2.3.2.post1").imports(&["mamba_ssm.ops.triton.ssd_combined"]),
        };
        all.push(mamba);
        if !is_third {
            // pyproject.toml, `ssm`: causal-conv1d~=1.5.
            all.push(
                Package::new("causal-conv1d", "M blocks").module("causal_conv1d").since("1.5.0", "1.5.4").below("2"),
            );
        }
        all.push(Package::new("einops", "M blocks"));
    }
    if job.recipe.uses(Mixer::GatedDelta) {
        // pyproject.toml, `dev`: flash-linear-attention~=0.4.0.
        let fla = Package::new("flash-linear-attention", "G blocks").module("fla");
        all.push(fla.since("0.4.0", "0.4.0").below("0.5"));
    }
    let is_ours = case::sparse_kernels(job.recipe, job.layout, &job.case.options) == SparseKernels::Ours;
    let uses = |mixer| job.recipe.uses(mixer);
    if uses(Mixer::Mamba) || uses(Mixer::GatedDelta) || uses(Mixer::Recurrent) || is_ours {
        let triton = Package::new("triton", "kernels of M, G and R blocks, and of sparse attention of ours");
        all.push(triton.since("3.5.0", "3.5.0").install("it comes with torch"));
    }
    all
}

fn options(job: &Job, emission: &Emission) -> Vec<Package> {
    let mut all = Vec::new();
    if job.recipe.tensors().iter().any(|tensor| tensor.optimizer == Optimizer::Muon) {
        // megatron/core/optimizer/emerging_optimizers.py asserts 0.2; no wheel is published.
        let muon = Package::new("emerging_optimizers", "--optimizer muon").since("0.2.0", "0.2.0");
        all.push(muon.install("install NVIDIA-NeMo/Emerging-Optimizers v0.2.0 from source"));
    }
    let says = |flag: &str, value: &str| {
        emission.arguments.iter().any(|argument| argument.flag == flag && argument.values == [value])
    };
    if says("--tokenizer-type", "HuggingFaceTokenizer") {
        all.push(Package::new("transformers", "--tokenizer-type HuggingFaceTokenizer"));
    }
    if emission.arguments.iter().any(|argument| argument.flag == "--tensorboard-dir") {
        all.push(Package::new("tensorboard", "--tensorboard-dir").or("nothing is written for TensorBoard"));
    }
    for (name, why) in header::packages(job.case) {
        if !all.iter().any(|package| package.name == name) {
            let package = Package::new(name, why);
            all.push(match FROM_SOURCE.iter().find(|(other, _)| *other == name) {
                Some((_, how)) => package.install(*how),
                None => package,
            });
        }
    }
    all
}
