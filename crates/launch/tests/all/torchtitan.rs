//! torchtitan's settings against the engine's own fields.

use crate::common;
use case::Seams;
use layout::{Engine, LayoutRequest};
use serde_json::Value;

const KEYS: &str = include_str!("../../../../data/engines/torchtitan_keys_0.3.0.json");

#[test]
fn every_setting_is_a_field_of_its_section() {
    let file: Value = serde_json::from_str(KEYS).unwrap();
    let mut checked = 0;
    for (name, case) in common::cases(Engine::Torchtitan, Seams::Refuse) {
        let Ok(emission) = case.and_then(|case| case.emit()) else { continue };
        for argument in &emission.arguments {
            let Some((section, key)) = argument.flag.split_once('.') else { continue };
            let Some(fields) = file["sections"][section].as_array() else { continue };
            assert!(fields.iter().any(|field| field == key), "{name}: {section} has no `{key}`");
            checked += 1;
        }
    }
    assert!(checked > 500, "{checked}");
}

/// Its own default removes all but ten checkpoints, and it keeps two at least.
#[test]
fn checkpoints_are_kept_as_the_policy_says() {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Torchtitan), ..LayoutRequest::default() };
    let mut case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    for (kept, said) in [(None, "0"), (Some(3), "3")] {
        case.policy.storage.keep_last = kept;
        let emission = case.emit().unwrap();
        let found = emission.arguments.iter().find(|argument| argument.flag == "checkpoint.keep_latest_k").unwrap();
        assert_eq!(found.values, [said]);
    }
    case.policy.storage.keep_last = Some(1);
    common::assert_refused(case.emit(), "launch/keep-last");
}
