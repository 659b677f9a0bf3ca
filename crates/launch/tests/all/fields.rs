//! Every field of every recipe is accounted for by every engine, and fails closed.

use crate::common;
use case::Seams;
use launch::fields::{self, Told};
use layout::{Engine, LayoutRequest};
use recipe::{Recipe, Scaling};

const EVERYTHING: &str = include_str!("../../../recipe/tests/all/everything.toml");

fn request(engine: Engine, tp: u64) -> LayoutRequest {
    LayoutRequest { world: Some(8), tp: Some(tp), engine: Some(engine), ..LayoutRequest::default() }
}

fn case(recipe: &Recipe, engine: Engine, seams: Seams) -> Result<common::Case, Vec<diag::Finding>> {
    let mode = recipe.modes.first().copied();
    let tp = mode.map_or(1, recipe::Mode::tensor_parallel);
    common::Case::new(recipe, &LayoutRequest { mode, ..request(engine, tp) }, seams)
}

#[test]
fn every_engine_accounts_for_every_field_of_every_recipe() {
    for (engine_name, engine) in Engine::ALL {
        let mut accounted = 0;
        for (name, recipe) in common::recipes() {
            let Ok(case) = case(&recipe, *engine, Seams::Allow) else { continue };
            let Ok(emission) = case.emit() else { continue };
            let fields = fields::account(&case.job(), &emission);
            let paths: Vec<String> = fields.iter().map(|f| f.path.clone()).collect();
            let wanted: Vec<String> = case.recipe.fields().into_iter().map(|f| f.path).collect();
            assert_eq!(paths, wanted, "{name} on {engine_name}");
            for field in &fields {
                let is_seam = emission.seams.iter().any(|s| s.wanted.contains(&format!("`{} =", field.path)));
                assert_eq!(matches!(field.told, Told::Seam(_)), is_seam, "{name} on {engine_name}: {field:?}");
                if let Told::By(names) = &field.told {
                    assert!(!names.is_empty(), "{name} on {engine_name}: {field:?}");
                }
            }
            accounted += 1;
        }
        assert!(accounted > 0 || matches!(engine, Engine::Shardwright), "{engine_name}");
    }
}

/// Each field set alone on a plain model: an engine says it, by an argument that was not there with the default, or
/// refuses it by name; never the same emission.
#[test]
fn a_field_that_is_set_is_said_or_refused() {
    let llama = common::recipe("llama3-8b");
    let mixtral = common::recipe("mixtral-8x7b");
    let router = |recipe: &Recipe, set: &dyn Fn(&mut recipe::kinds::moe::Router)| {
        let mut recipe = recipe.clone();
        set(&mut recipe.moe.as_mut().unwrap().router);
        recipe
    };
    let with = |set: &dyn Fn(&mut Recipe)| {
        let mut recipe = llama.clone();
        set(&mut recipe);
        recipe
    };
    let rope = |set: &dyn Fn(&mut recipe::Rope)| {
        with(&|r| {
            let recipe::Positions::Rope(rope) = &mut r.positions else { unreachable!() };
            set(rope);
        })
    };
    let llama3 = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
    let yarn = Scaling::Yarn(recipe::Yarn::usual(4.0, 8192));
    let changed: Vec<(&str, Recipe, &Recipe)> = vec![
        ("norm_eps", with(&|r| r.norm_eps = 1e-6), &llama),
        ("init_std", with(&|r| r.init_std = Some(0.006)), &llama),
        ("dropout", with(&|r| r.dropout = 0.1), &llama),
        ("norm", with(&|r| r.norm = recipe::kinds::Norm::LayerNormScale), &llama),
        ("norm_place", with(&|r| r.norm_place = recipe::kinds::NormPlace::Both), &llama),
        ("embedding_norm", with(&|r| r.embedding_norm = true), &llama),
        ("head_bias", with(&|r| r.head_bias = true), &llama),
        ("attention.dropout", with(&|r| r.attention.as_mut().unwrap().dropout = 0.1), &llama),
        ("rope.fraction", rope(&|r| r.fraction = 0.5), &llama),
        ("rope.scaling llama3", rope(&|r| r.scaling = Some(llama3)), &llama),
        ("rope.scaling yarn", rope(&|r| r.scaling = Some(yarn)), &llama),
        ("rope.scaling linear", rope(&|r| r.scaling = Some(Scaling::Linear { factor: 2.0 })), &llama),
        ("multipliers.embedding", with(&|r| r.multipliers.embedding = 12.0), &llama),
        ("multipliers.attention", with(&|r| r.multipliers.attention = Some(0.01)), &llama),
        ("not_carried", with(&|r| r.not_carried = vec![("x".to_string(), "1".to_string())]), &llama),
        ("moe.router.aux_loss", router(&mixtral, &|r| r.aux_loss = Some(0.5)), &mixtral),
        ("moe.router.z_loss", router(&mixtral, &|r| r.z_loss = Some(1e-3)), &mixtral),
        ("moe.router.scaling", router(&mixtral, &|r| r.scaling = 2.5), &mixtral),
        ("moe.router.normalize", router(&mixtral, &|r| r.normalize = false), &mixtral),
        ("moe.router.groups", router(&mixtral, &|r| (r.groups, r.group_top_k) = (4, 1)), &mixtral),
        ("moe.router.expert_bias", router(&mixtral, &|r| r.expert_bias = true), &mixtral),
    ];
    for (engine_name, engine) in Engine::ALL {
        // DeepSpeed wraps what a script builds; our own runtime is not launched.
        if matches!(engine, Engine::Deepspeed | Engine::Shardwright) {
            continue;
        }
        for (field, recipe, base) in &changed {
            let told = |recipe: &Recipe| case(recipe, *engine, Seams::Refuse).and_then(|case| case.emit());
            let (Ok(before), Ok(after)) = (told(base), told(recipe)) else { continue };
            let said = |e: &launch::Emission| (e.arguments.clone(), e.entry.clone(), e.files.clone());
            assert_ne!(said(&before), said(&after), "{engine_name} drops {field}");
        }
    }
}

#[test]
fn what_an_engine_is_not_told_is_refused_by_name_and_may_be_allowed() {
    let mut recipe = common::recipe("llama3-8b");
    recipe.multipliers.residual = 0.22;
    recipe.not_carried = vec![("swiglu_limit".to_string(), "7.0".to_string())];
    let refused =
        common::assert_refused(case(&recipe, Engine::Megatron, Seams::Refuse).unwrap().emit(), "launch/field");
    let objects: Vec<&str> = refused.iter().map(|f| f.object.as_str()).collect();
    assert_eq!(objects, ["multipliers.residual", "not_carried.swiglu_limit"]);
    assert_eq!(
        refused[1].message,
        "megatron is not told `not_carried.swiglu_limit = \"7.0\"`: the config had it, and a recipe has no place for it"
    );
    let allowed = case(&recipe, Engine::Megatron, Seams::Allow).unwrap().emit().unwrap();
    assert_eq!(allowed.seams.iter().filter(|s| s.name == "launch/field").count(), 2);
}

/// Stochastic gradient descent never becomes AdamW in silence.
#[test]
fn sgd_is_refused_where_an_engine_steps_by_adamw() {
    let text = common::recipe("llama3-8b").to_toml() + "\n[optimizer]\nmatrix = \"sgd\"\n";
    let recipe = Recipe::parse(&text).unwrap();
    for engine in [Engine::Torchtitan, Engine::Nanotron, Engine::Maxtext, Engine::Megatron, Engine::Fsdp2] {
        let findings = case(&recipe, engine, Seams::Refuse).and_then(|c| c.emit()).expect_err("refused");
        assert!(
            findings.iter().any(|f| f.object == "optimizer" && f.message.to_lowercase().contains("sgd")),
            "{engine}: {findings:?}"
        );
    }
}

/// A recipe with every field set is refused everywhere, each time with names.
#[test]
fn a_recipe_with_every_field_set_is_refused_by_name() {
    let recipe = Recipe::parse(EVERYTHING).unwrap();
    for (name, engine) in Engine::ALL {
        let findings = case(&recipe, *engine, Seams::Refuse).and_then(|c| c.emit()).err();
        let findings = findings.unwrap_or_else(|| panic!("{name} takes everything"));
        assert!(findings.iter().any(|f| f.severity == diag::Severity::Error), "{name}");
    }
}
