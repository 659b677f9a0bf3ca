//! What is emitted, word for word, where a reader should see every row: the tables of the FSDP2 and XLA
//! lanes, and one job under every scheduler. A missing golden fails; `UPDATE_GOLDENS=1 cargo test` writes
//! them, and the diff is then read by a person.

use crate::common;
use case::Seams;
use launch::schedulers::Scheduler;
use layout::{Engine, LayoutRequest};
use recipe::Recipe;
use std::path::PathBuf;

fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name);
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("golden {}: {e}", path.display()));
    for (number, (now, then)) in text.lines().zip(stored.lines()).enumerate() {
        assert_eq!(now, then, "{name}, line {}", number + 1);
    }
    assert_eq!(text, stored, "{name}");
}

/// Attention, experts, Mamba and recurrence, small enough to read.
fn tiny() -> Recipe {
    Recipe::parse(include_str!("../../../../data/engines/parity/tiny-mamba2.toml")).unwrap()
}

#[test]
fn tables_of_the_lanes_with_programs_of_their_own() {
    for (engine, file) in [(Engine::Fsdp2, "sharding.json"), (Engine::XlaSpmd, "table.json")] {
        let case = common::Case::new(&tiny(), &common::of_a_program(engine), Seams::Refuse).unwrap();
        let emission = case.emit().unwrap();
        let table = emission.files.iter().find(|f| f.path == file).unwrap();
        golden(&format!("{}.json", engine.name()), &table.contents);
    }
}

#[test]
fn a_block_the_reference_model_lacks_is_named() {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Fsdp2), ..LayoutRequest::default() };
    for (engine, rule) in [(Engine::Fsdp2, "fsdp2/reference-model"), (Engine::XlaSpmd, "xla-spmd/reference-model")] {
        let request = LayoutRequest { engine: Some(engine), ..request.clone() };
        let refused = common::Case::new(&common::recipe("deepseek-v3"), &request, Seams::Refuse).unwrap().emit();
        let findings = common::assert_refused(refused, rule);
        assert!(findings.iter().all(|f| f.message.contains("latent attention")), "{findings:?}");
    }
}

#[test]
fn one_job_under_every_scheduler() {
    let request = LayoutRequest { world: Some(16), engine: Some(Engine::Deepspeed), ..LayoutRequest::default() };
    let mut case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    case.policy.job.partition = Some("gpu".to_string());
    for (name, scheduler) in Scheduler::ALL {
        let all = case.files(*scheduler).unwrap();
        golden(&format!("{name}.txt"), &all.last().unwrap().contents);
    }
}
