//! Every built-in recipe in every legal mode on every engine either emits or refuses by name.

mod common;

use diag::Severity;
use launch::job::Seams;
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
        let has_file = matches!(
            engine,
            Engine::Megatron | Engine::Deepspeed | Engine::Nanotron | Engine::Maxtext | Engine::Torchtitan
        );
        assert!(!has_file || emitted >= 30, "{name}: {emitted}");
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
    assert!(
        refused.iter().any(|f| f.rule == "torchtitan/no-block" && f.hint.as_ref().unwrap().contains("--allow-seams"))
    );
    let emission = common::Case::new(&recipe, &request, Seams::Allow).unwrap().emit().unwrap();
    assert!(emission.seams.iter().any(|seam| seam.name == "torchtitan/no-block"));
    assert!(emission.files[0].contents.contains("# seam torchtitan/no-block"));
    // MaxText's overrides have no patch point: allowed or not, it is refused.
    let request = layout::LayoutRequest { engine: Some(Engine::Maxtext), ..request };
    let case = common::Case::new(&recipe, &request, Seams::Allow).unwrap();
    assert!(case.emit().unwrap_err().iter().all(|f| f.rule == "maxtext/model"));
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
