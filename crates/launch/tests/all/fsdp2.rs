//! What the native PyTorch and TPU programs are told to train.

use crate::common;
use case::Seams;
use layout::{Engine, LayoutRequest};
use recipe::{Mode, Recipe};
use serde_json::Value;

/// The plan of a parity recipe.
fn plan(text: &str, engine: Engine) -> Value {
    let recipe = Recipe::parse(text).unwrap();
    let emission = common::Case::new(&recipe, &common::of_a_program(engine), Seams::Refuse).unwrap().emit().unwrap();
    let file = if engine == Engine::Fsdp2 { "sharding.json" } else { "table.json" };
    serde_json::from_str(&emission.files.iter().find(|f| f.path == file).unwrap().contents).unwrap()
}

const MOE: &str = include_str!("../../../../data/engines/parity/tiny-moe.toml");
const LORA: &str = include_str!("../../../../data/engines/parity/tiny-lora.toml");
const FIELDS: &str = include_str!("../../../../data/engines/parity/tiny-fields.toml");

#[test]
fn what_keeps_routing_even_is_in_the_plan() {
    for engine in [Engine::Fsdp2, Engine::XlaSpmd] {
        let plan = plan(MOE, engine);
        let router = &plan["model"]["moe"]["router"];
        assert_eq!((&router["aux_loss"], &router["aux_loss_over"]), (&0.5.into(), &"batch".into()));
        assert_eq!((&router["z_loss"], &router["bias_rate"]), (&0.1.into(), &0.02.into()));
        assert_eq!((&router["groups"], &router["scaling"]), (&4.into(), &2.5.into()));
    }
    let plan = plan(MOE, Engine::Fsdp2);
    let counting = plan["modules"].as_array().unwrap().iter().filter(|entry| entry["borders"][0] == "counts").count();
    assert_eq!(counting, 2, "both routers see parts of sequences");
}

const WAYS_LORA: &str = include_str!("../../../../data/engines/parity/tiny-ways-lora.toml");

/// The plan of a recipe on one rank, told these words.
fn told(text: &str, words: &[&str]) -> Value {
    let emission = emitted(text, words, |_| {});
    serde_json::from_str(&emission.files.iter().find(|f| f.path == "sharding.json").unwrap().contents).unwrap()
}

fn emitted(text: &str, words: &[&str], change: impl FnOnce(&mut common::Case)) -> launch::Emission {
    let recipe = Recipe::parse(text).unwrap();
    let request = LayoutRequest { world: Some(1), engine: Some(Engine::Fsdp2), ..LayoutRequest::default() };
    let mut job = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
    let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    job.case = job.case.clone().with_options(|options| {
        case::words::read(Some(Engine::Fsdp2), &words, options).unwrap();
    });
    change(&mut job);
    let emission = job.emit().unwrap();
    let names: Vec<&str> = emission.files.iter().map(|file| file.path.as_str()).collect();
    assert!(names.contains(&"stepped.py") && names.contains(&"quantised.py"), "{names:?}");
    emission
}

#[test]
fn ways_to_train_are_in_the_plan() {
    let plain = told(WAYS_LORA, &[]);
    let none = serde_json::json!({
        "optimizer": "adamw", "base": null, "adapters": "ours", "loss": "eager", "average": null, "momentum": "fp32",
    });
    assert_eq!((&plain["ways"], &plain["precision"]["main"]), (&none, &"fp32".into()));
    let words = ["base=nf4-double", "adapters=peft", "optimizer=adamw8bit", "loss=liger", "average", "main=bf16"];
    let all = told(WAYS_LORA, &words);
    let said = serde_json::json!({
        "optimizer": "adamw8bit", "base": "nf4-double", "adapters": "peft", "loss": "liger", "average": 0.9999,
        "momentum": "fp32",
    });
    assert_eq!((&all["ways"], &all["precision"]["main"]), (&said, &"bf16".into()));
}

const WAYS: &str = include_str!("../../../../data/engines/parity/tiny-ways.toml");

#[test]
fn libraries_are_listed_with_the_versions_that_are_known() {
    let list = |words: &[&str], change: fn(&mut common::Case)| {
        let emission = emitted(WAYS_LORA, words, change);
        emission.files.into_iter().find(|file| file.path == "requirements.txt").unwrap().contents
    };
    let names = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split("  #").next().unwrap().to_string()).collect()
    };
    assert_eq!(names(&list(&[], |_| {})), ["torch==2.11.0", "numpy==2.5.4"]);
    let qlora = ["base=nf4", "adapters=peft", "optimizer=paged-adamw8bit", "loss=liger"];
    let all = ["torch==2.11.0", "numpy==2.5.4", "bitsandbytes==0.50.2", "peft==0.21.2", "liger-kernel==0.8.5"];
    assert_eq!(names(&list(&qlora, |_| {})), all);
    assert_eq!(names(&list(&["optimizer=shampoo"], |_| {}))[2], "pytorch_optimizer==4.1.0");
    let other = list(&["optimizer=soap", "loss=cce"], |_| {});
    assert!(other.contains("pytorch_optimizer==4.1.0") && other.contains("cut-cross-entropy==25.1.1"), "{other}");
    for word in ["ao-adamw8bit", "ao-adamw4bit", "ao-adamwfp8"] {
        let listed = names(&list(&[&format!("optimizer={word}")], |_| {}));
        assert_eq!(listed[2], "torchao==0.18.0");
    }
    // A policy's pins are what a run is held to.
    let pinned = list(&[], |case| drop(case.policy.pins.insert("torch".into(), "2.15.0".into())));
    assert_eq!(names(&pinned)[0], "torch==2.15.0");
    // Versions that were measured are the measured rows'.
    let rows = include_str!("../../../../data/truth/ways_h200.jsonl");
    let ao = ["optimizer=ao-adamw4bit"];
    for (package, way) in [("bitsandbytes", &qlora[..]), ("peft", &qlora), ("liger-kernel", &qlora), ("torchao", &ao)] {
        let line = names(&list(way, |_| {})).into_iter().find(|line| line.starts_with(package)).unwrap();
        let version = line.split("==").nth(1).unwrap();
        assert!(rows.contains(&format!("\"{package}\": \"{version}\"")), "{line} was not measured");
    }
}

#[test]
fn documents_and_teachers_are_in_the_plan() {
    let packed = |change: fn(&mut common::Case)| {
        let emission = emitted(WAYS, &[], change);
        let plan = emission.files.iter().find(|file| file.path == "sharding.json").unwrap().contents.clone();
        serde_json::from_str::<Value>(&plan).unwrap()
    };
    assert_eq!(packed(|_| {})["documents"], Value::Null);
    let said = |case: &mut common::Case| {
        case.case = case.case.clone().with_options(|options| options.documents = case::Documents::parse("512,8k").ok());
        case.policy.data.end_of_document = Some(2);
    };
    assert_eq!(packed(said)["documents"], serde_json::json!({"lengths": [512, 8192], "end": 2}));
    let recipe = common::recipe("llama3-8b");
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Fsdp2), ..LayoutRequest::default() };
    let mut job = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
    job.case = job.case.clone().with_options(|options| options.ways.teacher = Some("llama3-70b"));
    job.policy.data.teacher = Some("/mnt/teacher/step-00000001".into());
    let emission = job.emit().unwrap();
    let plan = &emission.files.iter().find(|file| file.path == "sharding.json").unwrap().contents;
    let plan: Value = serde_json::from_str(plan).unwrap();
    let teacher = &plan["teacher"];
    assert_eq!((&teacher["recipe"], &teacher["weights"]), (&"llama3-70b".into(), &"/mnt/teacher/step-00000001".into()));
    assert_eq!(teacher["model"]["layers"].as_array().unwrap().len(), 80);
    assert_eq!(teacher["tensors"].as_array().unwrap().len(), 80 * 6 + 3);
}

#[test]
fn plain_tokens_do_not_say_where_documents_end() {
    let recipe = Recipe::parse(WAYS).unwrap();
    let request = LayoutRequest { world: Some(1), engine: Some(Engine::Fsdp2), ..LayoutRequest::default() };
    let mut job = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
    job.case = job.case.clone().with_options(|options| options.documents = case::Documents::parse("512").ok());
    job.policy.data.paths = vec!["/mnt/data/tokens.u16".into()];
    let refused = job.emit().unwrap_err();
    assert_eq!((refused[0].rule, refused[0].object.as_str()), ("fsdp2/documents", "policy.data.end_of_document"));
    job.policy.data.paths = vec!["/mnt/data/set".into()];
    assert!(job.emit().is_ok());
}

#[test]
fn megatron_is_told_of_documents_by_its_own_word() {
    let recipe = common::recipe("llama3-8b");
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let mut job = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
    let says = |job: &common::Case| {
        let words = job.emit().unwrap().arguments;
        words.iter().any(|argument| argument.flag == "--dataloader-inter-document-masking")
    };
    assert!(!says(&job));
    job.case = job.case.clone().with_options(|options| options.documents = case::Documents::parse("512").ok());
    assert!(says(&job));
}

#[test]
fn constants_of_the_model_are_in_the_plan() {
    for engine in [Engine::Fsdp2, Engine::XlaSpmd] {
        let plan = plan(FIELDS, engine);
        let model = &plan["model"];
        assert_eq!(model["norm_eps"], 1e-3);
        assert_eq!(model["rope"]["rates"].as_array().unwrap().len(), 4, "half of a head of 16 turns in pairs");
        assert_eq!(model["multipliers"]["ssm"][3], 1.4);
        assert_eq!(model["moe"]["router"]["normalize"], false);
    }
}

#[test]
fn adapters_are_rows_with_their_sums() {
    let plan = plan(LORA, Engine::Fsdp2);
    assert_eq!(plan["lora"], serde_json::json!({"rank": 4, "alpha": 8.0}));
    let rows = plan["tensors"].as_array().unwrap();
    let row = |path: &str| rows.iter().find(|row| row["path"] == path).unwrap();
    for (path, gradient) in [
        ("layers.0.attention.qkv.lora_a", "sum"),
        ("layers.0.attention.qkv.lora_b", "cut"),
        ("layers.0.attention.out.lora_a", "cut"),
        ("layers.0.attention.out.lora_b", "sum"),
        ("layers.2.mamba.angle_proj.lora_b", "sum"),
    ] {
        assert_eq!((&row(path)["tp_gradient"], &row(path)["trained"]), (&gradient.into(), &true.into()), "{path}");
    }
    let trained = rows.iter().filter(|row| row["trained"] == true);
    assert!(trained.clone().count() > 0 && trained.clone().all(|row| row["path"].as_str().unwrap().contains(".lora_")));
}

#[test]
fn a_policy_that_asks_for_adapters_needs_a_recipe_that_has_them() {
    let without = Recipe::parse(MOE).unwrap();
    let mut case = common::Case::new(&without, &common::of_a_program(Engine::Fsdp2), Seams::Refuse).unwrap();
    case.policy.run.adapters = true;
    let found = launch::lanes::check(&case.job(), None);
    let refused = found.iter().find(|f| f.rule == "lane/lora-after-sharding").unwrap();
    assert!(diag::refuses(&found));
    assert!(refused.hint.as_ref().unwrap().contains("`[adapters]`"), "{refused:?}");
    let with = Recipe::parse(LORA).unwrap();
    let mut case = common::Case::new(&with, &common::of_a_program(Engine::Fsdp2), Seams::Refuse).unwrap();
    case.policy.run.adapters = true;
    assert!(!diag::refuses(&launch::lanes::check(&case.job(), None)));
}

#[test]
fn megatrons_symbol_is_spoken_of_on_its_own_lane_only() {
    let nam = common::recipe("nam56r");
    for (engine, speaks) in [(Engine::Megatron, true), (Engine::Fsdp2, false), (Engine::XlaSpmd, false)] {
        let mode = Some(Mode::AuthorDp);
        let request = LayoutRequest { world: Some(8), mode, engine: Some(engine), ..LayoutRequest::default() };
        let emission = common::Case::new(&nam, &request, Seams::Allow).unwrap().emit().unwrap();
        let words = format!("{:?}", emission.seams);
        assert_eq!(words.contains("`M`"), speaks, "{engine}: {words}");
    }
}
