//! The emitted programs of the FSDP2 and XLA lanes: what they are told of the policy, and that they are whole.

use crate::common;
use case::Seams;
use launch::Emission;
use layout::Engine;
use recipe::Recipe;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const LANES: [(Engine, &str); 2] = [(Engine::Fsdp2, "sharding.json"), (Engine::XlaSpmd, "table.json")];

/// Mamba-3 and experts under Muon.
fn under_muon() -> Recipe {
    Recipe::parse(include_str!("../../../../data/engines/parity/tiny-mamba3.toml")).unwrap()
}

fn case(recipe: &Recipe, engine: Engine) -> common::Case {
    common::Case::new(recipe, &common::of_a_program(engine), Seams::Refuse).unwrap()
}

fn read(emission: &Emission, path: &str) -> Value {
    let file = emission.files.iter().find(|file| file.path == path).unwrap();
    serde_json::from_str(&file.contents).unwrap()
}

#[test]
fn the_policy_reaches_both_programs() {
    for (engine, path) in LANES {
        let mut case = case(&under_muon(), engine);
        case.policy.data.paths = vec!["/data/corpus".to_string()];
        case.policy.storage.keep_last = Some(3);
        (case.policy.run.clip, case.policy.run.warmup_steps, case.policy.run.weight_decay) = (0.25, 7, 0.5);
        let told = read(&case.emit().unwrap(), path);
        let run = &told["run"];
        assert_eq!(run["data"], serde_json::json!(["/data/corpus"]));
        assert_eq!(run["checkpoints"], case.job().checkpoints());
        assert_eq!((&run["keep_last"], &run["clip"], &run["warmup_steps"]), (&3.into(), &0.25.into(), &7.into()));
        for name in ["adamw", "muon"] {
            assert_eq!(told["optimizers"][name]["weight_decay"], 0.5, "{engine} {name}");
        }
        let identity = &run["identity"];
        assert_eq!((&identity["recipe"], &identity["features"]), (&"tiny-mamba3".into(), &serde_json::json!(["moe"])));
        assert_eq!(identity["recipe_sha256"], launch::record::hash(case.job().source.to_toml()));
        assert!(identity["layout"].as_str().unwrap().contains("--tp 2"), "{identity}");
    }
}

/// On TPUs the program said AdamW and Muon, and ran SGD.
#[test]
fn every_tensor_has_the_optimizer_of_its_recipe() {
    let case = case(&under_muon(), Engine::XlaSpmd);
    let emission = case.emit().unwrap();
    let table = read(&emission, "table.json");
    let owned = layout::OwnershipTable::new(case.job().recipe, case.job().layout).unwrap();
    for row in &owned.rows {
        assert_eq!(table["optimizer_of"][&row.tensor.path], row.tensor.optimizer.name(), "{}", row.tensor.path);
    }
    let kinds: BTreeSet<&str> = owned.rows.iter().map(|row| row.tensor.optimizer.name()).collect();
    assert_eq!(kinds, BTreeSet::from(["adamw", "muon"]));
    assert!(emission.files.iter().all(|file| !file.contents.contains("optim.SGD")));
}

#[test]
fn another_optimizer_is_refused_by_name() {
    let text = include_str!("../../../../data/engines/parity/tiny-mamba3.toml")
        .replace("matrix = \"muon\"", "matrix = \"sgd\"");
    for (engine, rule) in [(Engine::Fsdp2, "fsdp2/optimizer"), (Engine::XlaSpmd, "xla-spmd/optimizer")] {
        let findings = common::assert_refused(case(&Recipe::parse(&text).unwrap(), engine).emit(), rule);
        assert!(findings[0].message.contains("not sgd"), "{findings:?}");
    }
}

/// Modules by name, and the modules each imports when it is imported itself.
fn imports(emission: &Emission) -> BTreeMap<&str, Vec<&str>> {
    let modules = emission.files.iter().filter_map(|file| Some((file.path.strip_suffix(".py")?, file)));
    modules
        .map(|(name, file)| {
            let lines = file.contents.lines();
            let found = lines.filter_map(|line| line.strip_prefix("import ").or_else(|| line.strip_prefix("from ")));
            (name, found.filter_map(|rest| rest.split([' ', '.', ',']).next()).collect())
        })
        .collect()
}

/// libtpu and XLA read their flags when the framework is imported: nothing may import one before `main` has set them.
#[test]
fn flags_are_set_before_a_framework_is_imported() {
    let emission = case(&under_muon(), Engine::XlaSpmd).emit().unwrap();
    let imports = imports(&emission);
    let (mut seen, mut open) = (BTreeSet::new(), vec!["train"]);
    while let Some(name) = open.pop() {
        assert!(!["torch", "torch_xla", "jax", "jaxlib"].contains(&name), "imported with train.py: {seen:?}");
        if seen.insert(name) {
            open.extend(imports.get(name).into_iter().flatten());
        }
    }
    assert!(seen.contains("environment") && seen.contains("tensors"), "{seen:?}");
    let train = &emission.files.iter().find(|file| file.path == "train.py").unwrap().contents;
    let main = train.split("def main()").nth(1).unwrap();
    let (flags, framework) = (main.find("environment.apply(").unwrap(), main.find("start(table").unwrap());
    assert!(flags < framework);
}

/// A module that one of the emitted ones imports is emitted too.
#[test]
fn programs_carry_every_module_they_import() {
    let folders = ["fsdp2", "xla_spmd"].map(|name| format!("{}/assets/{name}", env!("CARGO_MANIFEST_DIR")));
    let ours: BTreeSet<String> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.strip_suffix(".py")?.to_string()))
        .collect();
    for (engine, _) in LANES {
        let emission = case(&under_muon(), engine).emit().unwrap();
        let emitted: BTreeSet<&str> = emission.files.iter().filter_map(|file| file.path.strip_suffix(".py")).collect();
        for file in emission.files.iter().filter(|file| file.path.ends_with(".py")) {
            for line in file.contents.lines().map(str::trim) {
                let Some(rest) = line.strip_prefix("import ").or_else(|| line.strip_prefix("from ")) else { continue };
                let name = rest.split([' ', '.', ',']).next().unwrap_or_default();
                assert!(!ours.contains(name) || emitted.contains(name), "{engine}: {} imports {name}", file.path);
            }
        }
    }
}
