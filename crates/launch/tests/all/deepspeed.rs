//! The program that `launch --engine deepspeed` writes.

use crate::common;
use case::Seams;
use layout::{Engine, LayoutRequest, Recompute, ZeroStage};
use serde_json::Value;

/// A case of the emitted program: no script is named.
fn own(recipe: &str, request: LayoutRequest) -> common::Case {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Deepspeed), ..request };
    let mut case = common::Case::new(&common::recipe(recipe), &request, Seams::Refuse).unwrap();
    case.policy.job.script = None;
    case
}

#[test]
fn everything_that_is_started_and_imported_is_in_the_directory() {
    let zero = Some(ZeroStage::Three);
    let emission = own("llama3-8b", LayoutRequest { tp: Some(1), zero, ..LayoutRequest::default() }).emit().unwrap();
    let has = |path: &str| emission.files.iter().any(|file| file.path == path);
    assert_eq!(emission.entry[0], "train.py");
    for word in emission.entry.iter().filter(|word| word.contains('.')) {
        assert!(has(word), "{word} is not written");
    }
    let all = include_str!("../../src/engines/fsdp2.rs");
    for file in emission.files.iter().filter(|file| file.path.ends_with(".py")) {
        for line in file.contents.lines().filter(|line| !line.starts_with(' ')) {
            let mut words = line.split_whitespace();
            let (Some("import" | "from"), Some(module)) = (words.next(), words.next()) else { continue };
            let path = format!("{module}.py");
            let is_ours = all.contains(&format!("(\"{path}\", ")) || path == "zero.py";
            assert!(!is_ours || has(&path), "{} imports {module}", file.path);
        }
    }
}

#[test]
fn no_word_is_passed_that_the_program_does_not_know() {
    let request = LayoutRequest { tp: Some(1), recompute: Some(Recompute::Full), ..LayoutRequest::default() };
    let emission = own("llama3-8b", request).emit().unwrap();
    let known = ["--plan", "--deepspeed_config", "--steps"];
    assert!(emission.entry.iter().filter(|word| word.starts_with('-')).all(|word| known.contains(&word.as_str())));
    let plan = emission.files.iter().find(|file| file.path == "sharding.json").unwrap();
    let plan: Value = serde_json::from_str(&plan.contents).unwrap();
    assert_eq!(plan["recompute"]["policy"], "full");
}

#[test]
fn gradients_are_accumulated_as_they_are_priced() {
    for zero in [ZeroStage::One, ZeroStage::Two, ZeroStage::Three] {
        let request = LayoutRequest { tp: Some(1), zero: Some(zero), ..LayoutRequest::default() };
        let emission = own("llama3-8b", request).emit().unwrap();
        let config = emission.files.iter().find(|file| file.path == "ds_config.json").unwrap();
        let config: Value = serde_json::from_str(&config.contents).unwrap();
        assert_eq!(config["data_types"]["grad_accum_dtype"], "fp32", "{zero}");
        assert_eq!(config["bf16"]["enabled"], true);
        // In BF16_Optimizer, which takes ZeRO 1 alone.
        assert_eq!(config["bf16"]["immediate_grad_update"] == true, zero == ZeroStage::One);
        assert_eq!(config["optimizer"]["params"]["torch_adam"], true);
        assert!(config["pipeline"].is_null());
    }
}

#[test]
fn what_the_program_does_not_do_is_refused_by_name() {
    for (recipe, request, object) in [
        ("llama3-8b", LayoutRequest { tp: Some(2), ..LayoutRequest::default() }, "tp"),
        ("llama3-8b", LayoutRequest { tp: Some(1), pp: Some(2), ..LayoutRequest::default() }, "pp"),
        ("mixtral-8x7b", LayoutRequest { tp: Some(1), ep: Some(8), ..LayoutRequest::default() }, "ep"),
    ] {
        let found = common::assert_refused(own(recipe, request).emit(), "deepspeed/program");
        assert!(found.iter().any(|finding| finding.object == object), "{recipe}: {found:?}");
    }
}
