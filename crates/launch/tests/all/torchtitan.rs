//! torchtitan's settings against the engine's own fields.

use crate::common;
use case::Seams;
use layout::Engine;
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
