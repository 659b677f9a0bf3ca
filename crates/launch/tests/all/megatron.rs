//! Megatron's argument lists against the engine's own list of options, and read back.

use crate::common;
use case::Seams;
use launch::{Argument, Kind};
use layout::{Engine, LayoutRequest, ZeroStage};
use recipe::{Mixer, Mode};
use serde_json::Value;

const OPTIONS: &str = include_str!("../../../../data/engines/megatron_flags_0.19.2.json");

/// What is wrong with an argument by the engine's list: its name, how many values, their type and
/// choices.
fn complaint(argument: &Argument, options: &Value) -> Option<String> {
    let option = options.get(&argument.flag)?;
    let count = argument.values.len();
    let fits = match (&option["nargs"], option["takes_value"].as_bool()) {
        (_, Some(false)) => count == 0,
        (Value::String(many), _) if many == "*" || many == "+" => count >= 1,
        _ => count == 1,
    };
    if !fits {
        return Some(format!("{} has {count} values", argument.flag));
    }
    argument.values.iter().find_map(|value| {
        let chosen = option["choices"].as_array().is_none_or(|all| all.iter().any(|c| c.as_str() == Some(value)));
        let typed = match option["type"].as_str() {
            Some("int") => value.parse::<i64>().is_ok(),
            Some("float") => value.parse::<f64>().is_ok(),
            _ => true,
        };
        (!chosen || !typed).then(|| format!("{} {value}", argument.flag))
    })
}

#[test]
fn every_flag_of_every_layout_is_the_engines() {
    let file: Value = serde_json::from_str(OPTIONS).unwrap();
    let options = &file["flags"];
    let mut emitted = 0;
    for (name, case) in common::cases(Engine::Megatron, Seams::Refuse) {
        let Ok(emission) = case.and_then(|case| case.emit()) else { continue };
        emitted += 1;
        let mut seen = std::collections::BTreeSet::new();
        for argument in &emission.arguments {
            assert!(options.get(&argument.flag).is_some(), "{name}: {}", argument.flag);
            assert!(seen.insert(&argument.flag), "{name}: {} twice", argument.flag);
            assert_eq!(complaint(argument, options), None, "{name}");
            assert!(!argument.from.is_empty() && !argument.why.is_empty(), "{name}: {}", argument.flag);
        }
    }
    assert!(emitted > 300, "{emitted}");
}

/// `training.py` divides the steps by the interval where nothing is evaluated too, and its default is None.
#[test]
fn whoever_says_how_much_is_evaluated_says_how_often() {
    let mut checked = 0;
    for (name, case) in common::cases(Engine::Megatron, Seams::Refuse) {
        let Ok(emission) = case.and_then(|case| case.emit()) else { continue };
        let values = |flag: &str| emission.arguments.iter().find(|argument| argument.flag == flag).map(|a| &a.values);
        assert!(values("--eval-iters").is_some(), "{name}");
        let often = values("--eval-interval").and_then(|values| values.first()?.parse::<u64>().ok());
        assert!(often.is_some_and(|steps| steps > 0), "{name}: {often:?}");
        checked += 1;
    }
    assert!(checked > 300, "{checked}");
}

/// `optimizer_config.py`: "--use-precision-aware-optimizer only supported with distributed optimizer", and "with adam".
#[test]
fn the_precision_aware_optimizer_comes_with_what_it_asserts() {
    let (mut offloaded, mut aware) = (0, 0);
    for (name, case) in common::cases(Engine::Megatron, Seams::Refuse) {
        let Ok(emission) = case.and_then(|case| case.emit()) else { continue };
        let find = |flag: &str| emission.arguments.iter().find(|argument| argument.flag == flag);
        offloaded += u64::from(find("--optimizer-cpu-offload").is_some());
        if find("--use-precision-aware-optimizer").is_none() {
            assert!(find("--optimizer-cpu-offload").is_none(), "{name}");
            continue;
        }
        aware += 1;
        assert!(find("--use-distributed-optimizer").is_some(), "{name}");
        assert_eq!(
            find("--optimizer").map(|argument| argument.values.as_slice()),
            Some(&["adam".to_string()][..]),
            "{name}"
        );
    }
    assert!(offloaded > 5 && aware >= offloaded, "{offloaded} {aware}");
}

/// checkpointing.py removes the one before the newest unless the interval divides its step.
#[test]
fn the_newest_checkpoint_alone_is_kept_in_megatrons_words() {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let mut case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    let interval = |case: &common::Case| {
        let emission = case.emit().unwrap();
        let found = emission.arguments.iter().find(|argument| argument.flag == "--save-retain-interval");
        found.map(|argument| argument.values[0].parse::<u64>().unwrap())
    };
    assert_eq!(interval(&case), None);
    (case.policy.storage.keep_last, case.policy.run.steps, case.policy.run.save_every) = (Some(1), 100, 30);
    let found = interval(&case).unwrap();
    assert!(found > 100 && found.is_multiple_of(30), "{found}");
    case.policy.storage.keep_last = Some(2);
    let findings = common::assert_refused(case.emit(), "launch/keep-last");
    assert!(findings[0].message.contains("not the newest 2"), "{findings:?}");
    case.frontend = launch::Frontend::Bridge;
    let emission = case.emit().unwrap();
    let kept = emission.arguments.iter().find(|argument| argument.flag == "checkpoint.most_recent_k");
    assert_eq!(kept.map(|argument| argument.values.clone()), Some(vec!["2".to_string()]));
}

/// Switches that form sums are asked for by a variable and by the engine's own flag, where replicas leave a node; rails that
/// nothing joins by variables alone.
#[test]
fn a_network_is_told_to_nccl() {
    let told = |on: &str, change: fn(&mut hardware::Link)| {
        let mut cluster = hardware::Cluster::parse(on).unwrap();
        cluster.device.network.as_mut().map(change);
        let request = LayoutRequest { tp: Some(8), world: Some(cluster.devices()), ..LayoutRequest::default() };
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let emission = common::Case::on(&recipe, &request, Seams::Refuse, cluster).unwrap().emit().unwrap();
        let asks = emission.arguments.iter().any(|argument| argument.flag == "--use-sharp");
        let variables = emission.environment.iter().filter(|one| one.name.starts_with("NCCL_"));
        (asks, variables.map(|one| format!("{}={}", one.name, one.value)).collect::<Vec<_>>())
    };
    let sharp = vec!["NCCL_COLLNET_ENABLE=1".to_string()];
    assert_eq!(told("4x8xH100@ndr400-sharp", |_| {}), (true, sharp));
    assert_eq!(told("1x8xH100@ndr400-sharp", |_| {}), (false, vec![]));
    assert_eq!(told("4x8xH100@ndr400-rails", |_| {}), (false, vec![]));
    let only = told("4x8xH100@ndr400-rails", |link| {
        link.rails = Some(hardware::Rails { joined: hardware::RailsJoined::Only, pxn: false });
    });
    assert_eq!(only, (false, vec!["NCCL_CROSS_NIC=0".to_string(), "NCCL_PXN_DISABLE=1".to_string()]));
}

/// A list that is read back describes the model it was written for.
#[test]
fn a_list_reads_back_as_its_model() {
    let mut read = 0;
    for (name, case) in common::cases(Engine::Megatron, Seams::Refuse) {
        let Ok(case) = case else { continue };
        let Ok(emission) = case.emit() else { continue };
        let has = |flag: &str| emission.arguments.iter().any(|a| a.flag == flag);
        let custom = case.seams.iter().any(|seam| !seam.gives_up);
        if has("--pipeline-model-parallel-layout") || custom {
            continue;
        }
        let text = emission.shell_words().join(" ");
        let imported = recipe::import::megatron_args::import(&text, "back").unwrap_or_else(|f| panic!("{name}: {f:?}"));
        let wanted = &case.recipe;
        for mixer in Mixer::ALL {
            assert_eq!(imported.recipe.count(mixer), wanted.count(mixer), "{name}: {mixer:?}");
        }
        let sizes = |r: &recipe::Recipe| r.tensors().iter().map(|t| t.elements()).sum::<u64>();
        assert_eq!(sizes(&imported.recipe), sizes(wanted), "{name}");
        let degree = |key: &str| imported.layout.iter().find(|(k, _)| *k == key).map(|(_, v)| v.clone());
        assert_eq!(degree("tp"), Some(case.layout.tp.to_string()), "{name}");
        assert_eq!(degree("pp"), Some(case.layout.pp.to_string()), "{name}");
        assert_eq!(degree("zero"), Some(case.layout.zero.to_string()), "{name}");
        assert_eq!(degree("gbs"), Some(case.layout.global_batch.to_string()), "{name}");
        read += 1;
    }
    assert!(read > 150, "{read}");
}

fn nam56r(mode: Mode) -> launch::Emission {
    let tp = if mode == Mode::NemoNative { 2 } else { 1 };
    let request = LayoutRequest {
        world: Some(8),
        tp: Some(tp),
        mode: Some(mode),
        engine: Some(Engine::Megatron),
        ..LayoutRequest::default()
    };
    common::Case::new(&common::recipe("nam56r"), &request, Seams::Refuse).unwrap().emit().unwrap()
}

/// The pinned values of the model, by name.
#[test]
fn nam56r_nemo_native_carries_its_pinned_values() {
    let emission = nam56r(Mode::NemoNative);
    let value = |flag: &str| emission.arguments.iter().find(|a| a.flag == flag).map(|a| a.values.join(" "));
    for (flag, wanted) in [
        ("--hidden-size", "3584"),
        ("--ffn-hidden-size", "18944"),
        ("--num-attention-heads", "56"),
        ("--num-query-groups", "8"),
        ("--kv-channels", "64"),
        ("--seq-length", "4096"),
        ("--max-position-embeddings", "4096"),
        ("--position-embedding-type", "rope"),
        ("--rotary-base", "500000"),
        ("--num-experts", "16"),
        ("--moe-router-topk", "4"),
        ("--moe-ffn-hidden-size", "896"),
        ("--moe-shared-expert-intermediate-size", "1024"),
        ("--vocab-size", "65536"),
        ("--mamba-num-heads", "56"),
        ("--mamba-head-dim", "64"),
        ("--mamba-state-dim", "64"),
        ("--mamba-num-groups", "8"),
        ("--tensor-model-parallel-size", "2"),
    ] {
        assert_eq!(value(flag).as_deref(), Some(wanted), "{flag}");
    }
    for switch in ["--group-query-attention", "--sequence-parallel", "--untie-embeddings-and-output-weights"] {
        assert_eq!(value(switch).as_deref(), Some(""), "{switch}");
    }
    let pattern = value("--hybrid-layer-pattern").unwrap();
    let count = |symbol| pattern.chars().filter(|c| *c == symbol).count();
    // 13 A, 22 E, and 13 M with the 4 R behind the same symbol.
    assert_eq!((count('*'), count('E'), count('M'), pattern.len()), (13, 22, 17, 52));
    assert!(pattern.starts_with("*EME*EME*EMM"), "{pattern}");
    assert!(emission.seams.iter().all(|seam| seam.gives_up) && emission.files.is_empty());
    let connections = emission.environment.iter().find(|v| v.name == "CUDA_DEVICE_MAX_CONNECTIONS");
    assert_eq!(connections.map(|v| v.value.as_str()), Some("1"));
}

/// The custom mixers are patch points of a spec of their own.
#[test]
fn nam56r_author_dp_names_its_patch_points() {
    let emission = nam56r(Mode::AuthorDp);
    let patches: Vec<&str> = emission.of_kind(Kind::RuntimePatch).map(|a| a.flag.as_str()).collect();
    assert_eq!(patches, ["--spec"], "plain flags are none");
    assert!(emission.of_kind(Kind::Mode).any(|argument| argument.flag == "--hybrid-layer-pattern"));
    let spec = emission.arguments.iter().find(|argument| argument.flag == "--spec").unwrap();
    assert_eq!(spec.values, ["shardwright_megatron.spec", "hybrid_stack_spec"]);
    let written = |path: &str| emission.files.iter().find(|file| file.path == format!("shardwright_megatron/{path}"));
    for seam in &emission.seams {
        let module = seam.filled_by.and_then(|path| path.strip_prefix("shardwright_megatron/")).unwrap();
        assert!(written(module).is_some(), "{}: {module}", seam.name);
    }
    let blocks: serde_json::Value = serde_json::from_str(&written("blocks.json").unwrap().contents).unwrap();
    let layers =
        |kind: &str| blocks[kind]["layers"].as_array().unwrap().iter().map(|l| l.as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(layers("m2rnn"), [11, 23, 35, 47]);
    let pattern =
        emission.arguments.iter().find(|a| a.flag == "--hybrid-layer-pattern").unwrap().values[0].replace('|', "");
    let mut mamba: Vec<u64> = layers("mamba3").into_iter().chain(layers("m2rnn")).collect();
    mamba.sort();
    let behind_m: Vec<u64> = pattern.match_indices('M').map(|(place, _)| place as u64).collect();
    assert_eq!(mamba, behind_m);
    assert_eq!((&blocks["unfilled"], &blocks["patches"]), (&serde_json::json!([]), &serde_json::json!([])));
    assert!(emission.arguments.iter().any(|a| a.flag == "--tensor-model-parallel-size" && a.values == ["1"]));
    assert!(!emission.arguments.iter().any(|a| a.flag == "--sequence-parallel"));
}

/// On one replica no gradient travels, and overlap would only test each bucket for NaN. With experts cuBLASLt is told to keep
/// more algorithms, since their products have new sizes in every step.
#[test]
fn a_step_on_one_replica_waits_for_no_bucket() {
    let told = |name: &str, dp: u64, zero: ZeroStage| {
        let request = LayoutRequest { world: Some(dp), tp: Some(1), zero: Some(zero), ..LayoutRequest::default() };
        let request = LayoutRequest { engine: Some(Engine::Megatron), ..request };
        let emission = common::Case::new(&common::recipe(name), &request, Seams::Refuse).unwrap().emit().unwrap();
        let overlaps = emission.arguments.iter().any(|a| a.flag == "--overlap-grad-reduce");
        (overlaps, emission.environment.iter().any(|v| v.name == "CUBLASLT_HEURISTICS_CACHE_CAPACITY"))
    };
    let both = |name: &str| [told(name, 1, ZeroStage::Zero), told(name, 2, ZeroStage::Zero)];
    assert_eq!(both("qwen3-30b-a3b"), [(false, true), (true, true)]);
    assert_eq!(both("llama3-8b"), [(false, false), (true, false)]);
    // A distributed optimizer gathers weights under forward, which Megatron refuses without it.
    assert_eq!(told("llama3-8b", 1, ZeroStage::One), (true, false));
}

/// Fused experts read gates and linear halves in turns, in blocks that a checkpoint shows in no shape: whoever loads it has
/// to be told.
#[test]
fn fused_experts_are_told_what_their_kernels_read() {
    let request =
        LayoutRequest { world: Some(8), ep: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let mut case = common::Case::new(&common::recipe("qwen3-30b-a3b"), &request, Seams::Refuse).unwrap();
    let told = |case: &common::Case| {
        let emission = case.emit().unwrap();
        let name = "--moe-mlp-glu-interleave-size";
        let block = emission.arguments.iter().find(|a| a.flag == name).map(|a| a.values.join(" "));
        let variable = emission.environment.iter().find(|v| v.name == "NVTE_CUTEDSL_FUSED_GROUPED_MLP");
        let folder = launch::identity::Identity::of(&case.job()).checkpoint_name;
        (block, variable.map(|v| v.value.clone()), folder.ends_with("-glu32"))
    };
    assert_eq!(told(&case), (None, None, false));
    case.case = case.case.with_options(|options| options.kernels.expert_fusion = true);
    assert_eq!(told(&case), (Some("32".to_string()), Some("1".to_string()), true));
}

/// Megatron-Core 0.19.2 norms the key/value latent together with queries alone; the refusal says so in its words.
#[test]
fn a_lone_latent_norm_is_refused_in_the_engines_words() {
    let request =
        LayoutRequest { world: Some(8), ep: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let case = common::Case::new(&common::recipe("deepseek-v2-lite"), &request, Seams::Refuse).unwrap();
    let findings = common::assert_refused(case.emit(), "megatron/unsayable");
    assert!(findings[0].message.contains("qk_layernorm/qk_l2_norm are supposed to be disabled"), "{findings:?}");
    assert!(findings[0].hint.as_deref().is_some_and(|hint| hint.contains("fsdp2")), "{findings:?}");
}

/// ERNIE 4.5 has such a router, and Megatron-Core 0.19.2 stopped at it.
#[test]
fn a_balancing_bias_under_softmax_is_refused_in_the_engines_words() {
    let request =
        LayoutRequest { world: Some(8), ep: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let mut recipe = common::recipe("qwen3-30b-a3b");
    recipe.moe.as_mut().unwrap().router.expert_bias = true;
    let case = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
    let findings = common::assert_refused(case.emit(), "megatron/unsayable");
    let quote = findings[0].quote.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(quote.contains("only supports 'sigmoid'"), "{findings:?}");
}

/// Megatron-Bridge 0.6.2 sets `model.moe_permute_fusion` in its own recipes of experts (`recipes/qwen/h100/qwen3_moe.py`).
#[test]
fn bridge_has_experts() {
    for name in ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"] {
        let request =
            LayoutRequest { world: Some(64), ep: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
        let mut case = common::Case::new(&common::recipe(name), &request, Seams::Refuse).unwrap();
        case.frontend = launch::Frontend::Bridge;
        let emission = case.emit().unwrap_or_else(|findings| panic!("{name}: {findings:?}"));
        let said = |key: &str| emission.arguments.iter().find(|a| a.flag == key).map(|a| a.values.join(" "));
        assert_eq!(said("model.moe_permute_fusion").as_deref(), Some("True"), "{name}");
    }
}

fn with_sides(mode: Mode, data: launch::policy::Data) -> common::Case {
    use recipe::Feature::{NgramHash, Structure};
    let tp = if mode == Mode::NemoNative { 2 } else { 1 };
    let recipe = common::recipe("nam56r").with_features(&[NgramHash, Structure], &[]).unwrap();
    let engine = Some(Engine::Megatron);
    let request = LayoutRequest { world: Some(8), tp: Some(tp), mode: Some(mode), engine, ..LayoutRequest::default() };
    let mut case = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
    case.policy.data = data;
    case
}

/// `HybridModel` builds its own token table: the entry is ours, and no patch of the layers is asked for.
#[test]
fn side_embeddings_have_an_entry_of_their_own() {
    for mode in [Mode::NemoNative, Mode::AuthorDp] {
        let emission = with_sides(mode, launch::policy::Data::default()).emit().unwrap();
        assert_eq!(emission.entry, ["shardwright_megatron/pretrain.py"]);
        let file = |name: &str| emission.files.iter().find(|f| f.path == name).map(|f| f.contents.as_str());
        for name in ["pretrain.py", "side_data.py", "side_embeddings.py", "side_model.py"] {
            assert!(file(&format!("shardwright_megatron/{name}")).is_some(), "{name}");
        }
        let settings: Value = serde_json::from_str(file("shardwright_megatron/sides.json").unwrap()).unwrap();
        let lookups = settings["sides"][0]["lookups"].as_array().unwrap();
        assert_eq!((&settings["engine_root"], lookups.len()), (&Value::Null, 16));
        assert_eq!(emission.checkout.map(|checkout| checkout.script), Some("pretrain_hybrid.py"), "launch.sh finds it");
        assert_eq!((&lookups[0]["rows"], &lookups[15]["rows"]), (&Value::from(499_801), &Value::from(500_041)));
        let read = |table: usize| lookups[table]["factors"].as_array().unwrap().len();
        assert_eq!((read(0), read(7), read(8), read(15)), (2, 2, 3, 3));
        assert_eq!(settings["sides"][1]["from_data"], Value::from(false));
        let patched = file("custom_spec.py").is_some_and(|text| text.contains("\"side-embeddings\""));
        assert!(!patched, "a layer spec cannot fill it");
    }
    let plain = nam56r(Mode::NemoNative);
    assert_eq!((plain.entry[0].as_str(), plain.checkout.is_some()), ("pretrain_hybrid.py", true));
}

/// A folder that the policy names is looked for nowhere else, by our entry too.
#[test]
fn a_policy_says_where_the_engine_is() {
    let mut case = with_sides(Mode::NemoNative, launch::policy::Data::default());
    case.policy.job.engine_root = Some("/opt/engine/".to_string());
    let emission = case.emit().unwrap();
    let file = emission.files.iter().find(|f| f.path == "shardwright_megatron/sides.json").unwrap();
    let settings: Value = serde_json::from_str(&file.contents).unwrap();
    assert_eq!((&settings["engine_root"], emission.checkout), (&"/opt/engine/".into(), None));
    assert_eq!(emission.entry, ["shardwright_megatron/pretrain.py"]);
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    case.case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap().case;
    let plain = case.emit().unwrap();
    assert_eq!((plain.entry, plain.checkout), (vec!["/opt/engine/pretrain_gpt.py".to_string()], None));
}

/// Structure ids come with real data: one stream a component, beside each data set.
#[test]
fn structure_ids_lie_beside_the_data() {
    let texts = |all: &[&str]| all.iter().map(|one| one.to_string()).collect::<Vec<_>>();
    let data = |paths: &[&str], structure: &[&str]| launch::policy::Data {
        paths: texts(paths),
        structure: texts(structure),
        ..launch::policy::Data::default()
    };
    let blend = ["0.3", "/a", "0.7", "/b"];
    let emission = with_sides(Mode::NemoNative, data(&blend, &["/a1", "/a2", "/b1", "/b2"])).emit().unwrap();
    let file = emission.files.iter().find(|f| f.path == "shardwright_megatron/sides.json").unwrap();
    let settings: Value = serde_json::from_str(&file.contents).unwrap();
    assert_eq!(settings["streams"], serde_json::json!({ "/a": ["/a1", "/a2"], "/b": ["/b1", "/b2"] }));
    assert_eq!(settings["sides"][1]["from_data"], Value::from(true));
    for wrong in [data(&blend, &["/a1", "/a2"]), data(&blend, &[]), data(&[], &["/a1", "/a2"])] {
        common::assert_refused(with_sides(Mode::NemoNative, wrong).emit(), "launch/structure");
    }
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Fsdp2), ..LayoutRequest::default() };
    let mut other = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    other.policy.data = data(&["/a"], &["/a1"]);
    common::assert_refused(other.emit(), "launch/structure");
}
