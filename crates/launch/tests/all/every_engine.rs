//! Every built-in recipe in every legal mode on every engine either emits or refuses by name.

use crate::common;
use case::Seams;
use diag::Severity;
use launch::record::{self, MemoryVerdict};
use launch::schedulers::{Scheduler, files};
use layout::Engine;

#[test]
fn every_case_emits_or_refuses_by_name() {
    for (name, engine) in Engine::ALL {
        let mut emitted = 0;
        for (case_name, case) in common::cases(*engine, Seams::Refuse) {
            match case.and_then(|case| case.emit()) {
                Ok(emission) => {
                    emitted += 1;
                    assert_eq!(emission.engine, *engine, "{case_name}");
                    assert!(!emission.entry.is_empty() && !emission.arguments.is_empty(), "{case_name}");
                }
                Err(findings) => {
                    let refused = findings.iter().find(|f| f.severity == Severity::Error);
                    let refused = refused.unwrap_or_else(|| panic!("{case_name} on {name} refused without a reason"));
                    assert!(refused.rule.contains('/') && !refused.message.is_empty(), "{case_name}");
                }
            }
        }
        // nanotron is told dense models only: its router is not that of a built-in recipe.
        let least = match engine {
            Engine::Shardwright => 0,
            Engine::Nanotron => 20,
            _ => 30,
        };
        assert!(emitted >= least, "{name}: {emitted}");
    }
}

#[test]
fn a_block_an_engine_lacks_is_a_seam_only_when_allowed() {
    let request = layout::LayoutRequest {
        world: Some(8),
        mode: Some(recipe::Mode::AuthorDp),
        engine: Some(Engine::Torchtitan),
        ..layout::LayoutRequest::default()
    };
    let recipe = common::recipe("nam56r");
    let refused = common::Case::new(&recipe, &request, Seams::Refuse).err().unwrap();
    assert!(refused.iter().any(|f| f.rule == "torchtitan/no-block"));
    let emission = common::Case::new(&recipe, &request, Seams::Allow).unwrap().emit().unwrap();
    assert!(emission.seams.iter().any(|seam| seam.name == "torchtitan/no-block"));
    assert!(emission.files[0].contents.contains("# seam torchtitan/no-block"));
    // MaxText's overrides have no patch point: allowed or not, it is refused.
    let request = layout::LayoutRequest { engine: Some(Engine::Maxtext), ..request };
    let case = common::Case::new(&recipe, &request, Seams::Allow).unwrap();
    common::assert_refused(case.emit(), "maxtext/model");
}

#[test]
fn emission_is_deterministic() {
    let request = layout::LayoutRequest {
        world: Some(16),
        tp: Some(2),
        engine: Some(Engine::Megatron),
        ..layout::LayoutRequest::default()
    };
    let emit = || {
        let case = common::Case::new(&common::recipe("deepseek-v3"), &request, Seams::Refuse).unwrap();
        let emission = case.emit().unwrap();
        Scheduler::ALL.iter().map(|(_, s)| files(*s, &case.job(), &emission).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(emit(), emit());
}

#[test]
fn a_launch_directory_names_every_file_once_and_by_its_hash() {
    for (name, engine) in Engine::ALL.iter().filter(|(_, engine)| *engine != Engine::Shardwright) {
        let request =
            layout::LayoutRequest { world: Some(8), engine: Some(*engine), ..layout::LayoutRequest::default() };
        let case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
        let memory = MemoryVerdict::unmodelled(case.job().case, &replay::Unmodelled::new("it", "a test"), true);
        let mut written = 0;
        for (_, scheduler) in Scheduler::ALL {
            let mut emission = case.emit().unwrap();
            emission.files = match files(*scheduler, &case.job(), &emission) {
                Ok(files) => files,
                Err(findings) => {
                    let known = ["launch/bundle", "launch/tpu-scheduler"];
                    let is_known = !findings.is_empty() && findings.iter().all(|f| known.contains(&f.rule));
                    assert!(is_known, "{name}: {findings:?}");
                    continue;
                }
            };
            let (plan, nothing) = (serde_json::json!({}), serde_json::Value::Null);
            let predicted = record::Predicted { memory: &memory, step: nothing.clone(), case: nothing };
            let all = record::files(&case.job(), &emission, *scheduler, &predicted, plan);
            let names: std::collections::BTreeSet<&str> = all.iter().map(|f| f.path.as_str()).collect();
            assert_eq!(names.len(), all.len(), "{name} by {scheduler}: {names:?}");
            let sums = &all.last().unwrap().contents;
            assert_eq!(sums.lines().count(), all.len() - 1);
            for file in &all[..all.len() - 1] {
                assert!(sums.contains(&format!("{}  {}\n", record::hash(&file.contents), file.path)), "{}", file.path);
            }
            written += 1;
        }
        assert!(written >= 3, "{name} by {written} schedulers");
    }
}

#[test]
fn torchtitans_dispatcher_is_told() {
    let mut recipe = common::recipe("qwen3-30b-a3b");
    recipe.moe.as_mut().unwrap().router.aux_loss = None;
    let request = layout::LayoutRequest {
        world: Some(8),
        ep: Some(8),
        engine: Some(Engine::Torchtitan),
        ..layout::LayoutRequest::default()
    };
    let mut case = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
    let told = |case: &common::Case| case.emit().unwrap().files[0].contents.clone();
    assert!(told(&case).contains("\"comm_backend\": \"standard\""));
    case.case = case.case.with_options(|options| options.kernels.dispatch = case::options::Dispatch::DeepEp);
    assert!(told(&case).contains("\"comm_backend\": \"deepep\""));
}
