//! What launches import, and the program that looks for it.

use crate::common;
use case::Seams;
use launch::packages::{self, Package};
use layout::{Engine, LayoutRequest};
use recipe::Mode;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn packages_of(recipe: &str, mode: Option<Mode>, engine: Engine) -> Vec<Package> {
    let tp = mode.map(Mode::tensor_parallel);
    let request = LayoutRequest { world: Some(8), tp, mode, engine: Some(engine), ..LayoutRequest::default() };
    let case = common::Case::new(&common::recipe(recipe), &request, Seams::Allow).unwrap();
    packages::of(&case.job(), &case.emit().unwrap())
}

fn requirements(all: &[Package]) -> Vec<String> {
    all.iter().map(Package::requirement).collect()
}

#[test]
fn every_engine_names_itself_and_its_torch() {
    for (engine, torch, own) in [
        (Engine::Megatron, "torch>=2.6.0", "megatron-core>=0.19.0,<0.20"),
        // 2.11 lacks two names that its FSDP imports.
        (Engine::Torchtitan, "torch>=2.12.0", "torchtitan>=0.3.0,<0.4"),
        // A script of one's own.
        (Engine::Deepspeed, "torch>=2.0.0", "deepspeed>=0.19.8,<0.20"),
        (Engine::Fsdp2, "torch>=2.11.0", "numpy>=1.26"),
    ] {
        let all = requirements(&packages_of("llama3-8b", None, engine));
        assert!(all.contains(&torch.to_string()) && all.contains(&own.to_string()), "{engine}: {all:?}");
    }
}

/// `parallelize.py` imports `fully_shard`, and `data.py` numpy.
#[test]
fn deepspeeds_own_program_needs_what_its_requirements_list() {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Deepspeed), ..LayoutRequest::default() };
    let mut case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    case.policy.job.script = None;
    let emission = case.emit().unwrap();
    let all = requirements(&packages::of(&case.job(), &emission));
    assert_eq!(all, ["torch>=2.11.0", "numpy>=1.26", "deepspeed>=0.19.8,<0.20"]);
    let listed = &emission.files.iter().find(|file| file.path == "requirements.txt").unwrap().contents;
    for name in ["torch==2.11.0", "numpy==", "deepspeed==0.19.8"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
}

/// The first save imports psutil, and every start runs `make` over the C++ of data sets.
#[test]
fn megatron_saves_and_builds_with_what_is_named() {
    let all = packages_of("llama3-8b", None, Engine::Megatron);
    let names: Vec<&str> = all.iter().map(|package| package.name.as_str()).collect();
    assert!(names.contains(&"psutil") && names.contains(&"pybind11"), "{names:?}");
    let tools: Vec<&str> = packages::tools(Engine::Megatron).iter().map(|tool| tool.name).collect();
    assert_eq!(tools, ["make", "g++", "python3-config"]);
    let third = packages_of("nam56r", Some(Mode::AuthorDp), Engine::Megatron);
    let mamba = third.iter().find(|package| package.name == "mamba_ssm").unwrap();
    assert_eq!(mamba.imports, ["mamba_ssm.ops.triton.mamba3.mamba3_siso_combined"]);
}

#[test]
fn blocks_and_options_bring_their_packages() {
    let native = requirements(&packages_of("nam56r", Some(Mode::NemoNative), Engine::Megatron));
    for wanted in ["mamba_ssm>=2.2.0", "causal-conv1d>=1.5.0,<2", "transformer_engine>=2.0.0", "triton>=3.5.0"] {
        assert!(native.contains(&wanted.to_string()), "{wanted}: {native:?}");
    }
    let author = requirements(&packages_of("nam56r", Some(Mode::AuthorDp), Engine::Megatron));
    assert!(author.contains(&"mamba_ssm>=2.3.2".to_string()), "{author:?}");
    let dense = requirements(&packages_of("llama3-8b", None, Engine::Megatron));
    assert!(!dense.iter().any(|name| name.starts_with("mamba") || name.starts_with("emerging")), "{dense:?}");
    let muon = packages_of("nam56r", Some(Mode::NemoNative), Engine::Megatron);
    let has_muon = common::recipe("nam56r").tensors().iter().any(|t| t.optimizer == recipe::Optimizer::Muon);
    assert_eq!(muon.iter().any(|package| package.name == "emerging_optimizers"), has_muon);
}

/// The archive of `fast_hadamard_transform` in the package index lacks its CUDA sources: `pip install` of it fails.
#[test]
fn packages_that_pip_does_not_install_say_where_they_come_from() {
    let sparse =
        common::recipes().into_iter().find(|(_, recipe)| recipe.is_latent() && recipe.features.dsa().is_some());
    let (_, recipe) = sparse.expect("a recipe with sparse attention");
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let request = LayoutRequest { mode: recipe.modes.contains(&Mode::AuthorDp).then_some(Mode::AuthorDp), ..request };
    let case = common::Case::new(&recipe, &request, Seams::Allow).unwrap();
    let all = packages::of(&case.job(), &case.emit().unwrap());
    let package = all.iter().find(|package| package.name == "fast_hadamard_transform").expect("it is needed");
    assert!(package.install.contains("from source"), "{}", package.install);
}

#[test]
fn fused_accumulation_needs_apex_and_says_what_does_without() {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let mut case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    let mut apex = |accumulate| {
        case.case.options.kernels.accumulate = accumulate;
        let all = packages::of(&case.job(), &case.emit().unwrap());
        all.into_iter().find(|package| package.name == "apex")
    };
    let found = apex(case::options::Accumulate::Fused).expect("apex");
    assert!(found.install.contains("--no-gradient-accumulation-fusion"), "{found:?}");
    assert_eq!(apex(case::options::Accumulate::Separate), None);
}

#[test]
fn a_pin_is_the_version_that_is_asked_for() {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Fsdp2), ..LayoutRequest::default() };
    let mut case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    case.policy.pins.insert("torch".to_string(), "2.14.1".to_string());
    let all = packages::of(&case.job(), &case.emit().unwrap());
    let torch = all.iter().find(|package| package.name == "torch").unwrap();
    assert_eq!((torch.requirement().as_str(), torch.install.as_str()), ("torch>=2.14.1", "pip install torch==2.14.1"));
}

/// A folder of modules: two with versions, one without, one that does not import, one file that is needed.
fn modules(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    for (module, text) in [
        ("sw_new", "__version__ = '2.3.2.post1+cu13'"),
        ("sw_old", "__version__ = '2.3.1'"),
        ("sw_vendored", ""),
        ("sw_broken", "raise OSError('libcudart.so.13: cannot open')"),
    ] {
        std::fs::write(path.join(format!("{module}.py")), text).unwrap();
    }
    std::fs::write(path.join("packages.py"), packages::PROGRAM).unwrap();
    path
}

fn entry(module: &'static str, fallback: Option<&str>) -> Package {
    Package {
        name: module.to_string(),
        module,
        imports: Vec::new(),
        file: None,
        unless: None,
        at_least: Some("2.3.2".to_string()),
        below: Some("3"),
        install: format!("pip install {module}==2.3.2.post1"),
        why: "M blocks".to_string(),
        fallback: fallback.map(str::to_string),
    }
}

fn checked(folder: &Path, packages: &[Package], words: &[&str]) -> (Option<i32>, String) {
    let table = json!({ "path": [], "files": [], "packages": packages });
    std::fs::write(folder.join("packages.json"), table.to_string()).unwrap();
    let output = Command::new("python3")
        .arg(folder.join("packages.py"))
        .args(words)
        .env("PYTHONPATH", folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("SHARDWRIGHT_PACKAGES")
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn what_is_there_and_new_enough_passes() {
    let folder = modules("packages-whole");
    let (code, said) = checked(&folder, &[entry("sw_new", None), entry("sw_vendored", None)], &[]);
    assert_eq!((code, said.as_str()), (Some(0), "packages: sw_new 2.3.2.post1+cu13, sw_vendored version unknown\n"));
}

#[test]
fn everything_that_is_wrong_is_named_at_once() {
    let folder = modules("packages-wrong");
    let all = ["sw_new", "sw_old", "sw_broken", "sw_missing"].map(|name| entry(name, None));
    let (code, said) = checked(&folder, &all, &[]);
    assert_eq!(code, Some(1));
    for line in [
        "packages: sw_old 2.3.1, needed >= 2.3.2, < 3 for M blocks\n  pip install sw_old==2.3.2.post1\n",
        "packages: sw_broken does not import: OSError: libcudart.so.13: cannot open, needed",
        "packages: sw_missing not installed, needed >= 2.3.2, < 3 for M blocks\n",
        "packages: 3 of 4 are not as this launch needs them, by ",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn what_has_a_fallback_is_a_note() {
    let folder = modules("packages-note");
    let (code, said) = checked(&folder, &[entry("sw_missing", Some("runs without"))], &[]);
    assert_eq!(code, Some(0));
    assert!(said.starts_with("packages: sw_missing not installed: runs without\n"), "{said}");
}

#[test]
fn answers_are_json_for_preflight_and_nothing_is_imported() {
    let folder = modules("packages-json");
    let all = [entry("sw_broken", None), entry("sw_missing", None)];
    let (code, said) = checked(&folder, &all, &["--quick", "--json"]);
    let found: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &found[0]["state"], &found[1]["state"]), (Some(0), &"ok".into(), &"missing".into()));
}

/// Compilers are for sources that are not built yet.
#[test]
fn what_builds_a_module_is_needed_until_it_is_built() {
    let folder = modules("packages-tools");
    std::fs::create_dir_all(folder.join("sw_engine/core/datasets")).unwrap();
    std::fs::write(folder.join("sw_engine/__init__.py"), "").unwrap();
    let unless = Some(("sw_engine.core.datasets", "helpers_cpp"));
    let (why, install) = ("C++ of the data sets", "apt-get install it");
    let tool = |name, variable| packages::Tool { name, variable, unless, why, install };
    let table = json!({
        "path": [], "files": [], "packages": [Package { unless, ..entry("sw_missing", None) }],
        "tools": [tool("no-such-compiler", Some("SW_CXX")), tool("no-such-config", None)],
    });
    std::fs::write(folder.join("packages.json"), table.to_string()).unwrap();
    let said = |variable: &str| {
        let mut python = Command::new("python3");
        python.arg(folder.join("packages.py")).env("PYTHONPATH", &folder).env("PYTHONDONTWRITEBYTECODE", "1");
        let output = python.env("SW_CXX", variable).env_remove("SHARDWRIGHT_PACKAGES").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, all) = said("");
    assert_eq!(code, Some(1));
    for name in ["sw_missing", "no-such-compiler", "no-such-config"] {
        assert!(all.contains(&format!("packages: {name} not installed, needed")), "{name}: {all}");
    }
    assert!(!said("python3 -O").1.contains("no-such-compiler not installed"), "another one is named");
    std::fs::write(folder.join("sw_engine/core/datasets/helpers_cpp.cpython-312.so"), "").unwrap();
    let (code, all) = said("");
    assert_eq!(code, Some(0), "{all}");
}

/// megatron-core's wheel lacks a file that its own start wants; looking for it imports none of what may be broken.
#[test]
fn a_folder_lacks_a_file_whether_its_package_imports_or_not() {
    let folder = modules("packages-file");
    std::fs::create_dir_all(folder.join("sw_engine/core/datasets")).unwrap();
    std::fs::write(folder.join("sw_engine/core/__init__.py"), "raise OSError('libcudart.so.13')").unwrap();
    let whole = Package { file: Some(("sw_engine.core.datasets", "Makefile")), ..entry("sw_engine", None) };
    let (code, said) = checked(&folder, std::slice::from_ref(&whole), &["--quick"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("packages: sw_engine has no sw_engine/core/datasets/Makefile, needed"), "{said}");
    std::fs::write(folder.join("sw_engine/core/datasets/Makefile"), "").unwrap();
    let (code, said) = checked(&folder, &[whole], &["--quick"]);
    assert_eq!((code, said.as_str()), (Some(0), "packages: sw_engine version unknown\n"));
}

/// Our own entry imports the engine's script: it has to be where the policy says, and its modules are looked for there.
#[test]
fn the_engines_script_is_needed_whoever_starts_it() {
    use recipe::Feature::{NgramHash, Structure};
    let with_sides = common::recipe("nam56r").with_features(&[NgramHash, Structure], &[]).unwrap();
    for recipe in [common::recipe("nam56r"), with_sides] {
        let mode = Some(Mode::NemoNative);
        let request = LayoutRequest {
            world: Some(8),
            tp: Some(2),
            mode,
            engine: Some(Engine::Megatron),
            ..LayoutRequest::default()
        };
        let mut case = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
        let table = |case: &common::Case| packages::table(&case.job(), &case.emit().unwrap());
        assert_eq!((&table(&case)["path"], &table(&case)["files"]), (&json!([]), &json!([])), "launch.sh looks for it");
        case.policy.job.engine_root = Some("/opt/engine".to_string());
        assert_eq!(table(&case)["path"], json!(["/opt/engine"]));
        assert_eq!(table(&case)["files"][0]["path"], "/opt/engine/pretrain_hybrid.py");
    }
}
