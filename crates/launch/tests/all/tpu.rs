//! Jobs on TPUs: slices and topologies as GKE wants them, flags of the compiler as published, and nothing of
//! NVIDIA's.

use crate::common::{Case, assert_refused, recipe, recipes};
use case::Seams;
use hardware::Cluster;
use launch::schedulers::{Scheduler, files};
use launch::{Emission, lanes};
use layout::{Engine, LayoutRequest, ZeroStage};

fn case(name: &str, engine: Engine, on: &str) -> Case {
    let cluster = Cluster::parse(on).unwrap();
    let request = LayoutRequest {
        world: Some(cluster.devices()),
        zero: Some(ZeroStage::Three),
        engine: Some(engine),
        ..LayoutRequest::default()
    };
    Case::on(&recipe(name), &request, Seams::Refuse, cluster).unwrap_or_else(|f| panic!("{name} on {on}: {f:?}"))
}

fn said<'a>(emission: &'a Emission, flag: &str) -> Option<&'a str> {
    emission.arguments.iter().find(|a| a.flag == flag).map(|a| a.values[0].as_str())
}

fn variable(emission: &Emission, name: &str) -> Option<String> {
    emission.environment.iter().find(|v| v.name == name).map(|v| v.value.clone())
}

fn file(case: &Case, scheduler: Scheduler, path: &str) -> String {
    let all = files(scheduler, &case.job(), &case.emit().unwrap()).unwrap();
    all.into_iter().find(|f| f.path == path).unwrap().contents
}

#[test]
fn maxtext_on_one_slice_has_nothing_between_slices() {
    let case = case("llama3-8b", Engine::Maxtext, "256xTPU-v5e");
    let emission = case.emit().unwrap();
    assert_eq!(said(&emission, "hardware"), Some("tpu"));
    assert_eq!(said(&emission, "ici_fsdp_parallelism"), Some("256"));
    for key in ["dcn_data_parallelism", "dcn_fsdp_parallelism", "dcn_pipeline_parallelism"] {
        assert_eq!(said(&emission, key), Some("1"), "{key}");
    }
    assert_eq!(said(&emission, "num_slices"), None, "MaxText counts slices itself");
    let text = file(&case, Scheduler::JobSet, "jobset.yaml");
    for line in [
        "alpha.jobset.sigs.k8s.io/exclusive-topology: \"cloud.google.com/gke-nodepool\"",
        "name: \"slice\"",
        "replicas: 1",
        "parallelism: 64",
        "completions: 64",
        "google.com/tpu: \"4\"",
        "cloud.google.com/gke-tpu-accelerator: \"tpu-v5-lite-podslice\"",
        "cloud.google.com/gke-tpu-topology: \"16x16\"",
    ] {
        assert!(text.lines().any(|l| l.trim().trim_start_matches("- ") == line), "{line}\n{}", &text[..1500]);
    }
    let script = file(&case, Scheduler::Torchrun, "launch.sh");
    assert!(script.find("export LIBTPU_INIT_ARGS=").unwrap() < script.find("exec python3").unwrap());
    assert!(!script.contains("JAX_COORDINATOR"));
}

#[test]
fn several_slices_are_joined_by_replicas_or_stages() {
    let case = case("llama3-8b", Engine::Maxtext, "2x16xTPU-v6e");
    let emission = case.emit().unwrap();
    assert_eq!(said(&emission, "dcn_fsdp_parallelism"), Some("2"));
    assert_eq!(said(&emission, "ici_fsdp_parallelism"), Some("16"));
    let text = file(&case, Scheduler::JobSet, "jobset.yaml");
    assert!(text.contains("replicas: 2") && text.contains("completions: 4") && text.contains("\"4x4\""), "{text}");
    let refused = files(Scheduler::TrainJob, &case.job(), &emission).unwrap_err();
    assert!(refused.iter().any(|f| f.rule == "launch/trainjob" && f.message.contains("2 slices")), "{refused:?}");
}

#[test]
fn on_gpus_maxtext_is_told_what_it_was_told() {
    let case = case("llama3-8b", Engine::Maxtext, "2x8xH200");
    let emission = case.emit().unwrap();
    assert_eq!((said(&emission, "hardware"), said(&emission, "num_slices")), (Some("gpu"), Some("2")));
    let all = files(Scheduler::JobSet, &case.job(), &emission).unwrap();
    let text: String = all.iter().map(|f| f.contents.as_str()).collect();
    assert!(text.contains("nvidia.com/gpu") && !text.contains("xla_tpu_") && !text.contains("LIBTPU"), "{text}");
}

#[test]
fn nothing_of_nvidias_is_in_any_tpu_job() {
    let mut emitted = 0;
    for (name, source) in recipes() {
        for engine in [Engine::Maxtext, Engine::XlaSpmd] {
            for on in ["16xTPU-v5e", "16xTPU-v5p", "16xTPU-v6e"] {
                let mode = source.modes.contains(&recipe::Mode::AuthorDp).then_some(recipe::Mode::AuthorDp);
                let zero = Some(ZeroStage::Three);
                let request =
                    LayoutRequest { mode, zero, engine: Some(engine), world: Some(16), ..LayoutRequest::default() };
                let case = Case::on(&source, &request, Seams::Allow, Cluster::parse(on).unwrap());
                let Ok(case) = case else { continue };
                let Ok(emission) = case.emit() else { continue };
                emitted += 1;
                for v in &emission.environment {
                    let is_theirs = v.name.starts_with("CUDA_") || v.name.starts_with("NCCL_");
                    assert!(!is_theirs && !v.value.to_lowercase().contains("nvidia"), "{name}: {}", v.name);
                }
                for scheduler in [Scheduler::Torchrun, Scheduler::JobSet, Scheduler::TrainJob] {
                    let Ok(all) = files(scheduler, &case.job(), &emission) else { continue };
                    // What the launch sets and asks for; programs that are emitted as they stand are not.
                    let own = all.iter().filter(|f| f.path == "launch.sh" || f.path.ends_with(".yaml"));
                    for (path, line) in own.flat_map(|f| f.contents.lines().map(move |line| (&f.path, line))) {
                        let is_program = path.ends_with(".yaml") && line.len() > 4000;
                        let text = line.to_lowercase();
                        let is_theirs =
                            text.contains("nvidia") || text.contains("export cuda_") || text.contains("nccl_");
                        assert!(is_program || !is_theirs, "{name} on {on} by {scheduler}, {path}: {line}");
                    }
                }
            }
        }
    }
    assert!(emitted > 40, "{emitted}");
}

#[test]
fn flags_of_the_compiler_follow_generation_and_model() {
    let flags =
        |name: &str, engine, on: &str| variable(&case(name, engine, on).emit().unwrap(), "LIBTPU_INIT_ARGS").unwrap();
    let v6e = flags("llama3-8b", Engine::Maxtext, "8xTPU-v6e");
    assert!(v6e.contains("--xla_tpu_scoped_vmem_limit_kib=98304"), "{v6e}");
    assert!(v6e.contains("--xla_tpu_enable_async_collective_fusion=true"), "{v6e}");
    let experts = flags("mixtral-8x7b", Engine::Maxtext, "8xTPU-v6e");
    assert!(experts.contains("vmem_limit_kib=81920") && !experts.contains("98304"), "{experts}");
    let v5e = flags("llama3-8b", Engine::Maxtext, "8xTPU-v5e");
    assert!(!v5e.contains("vmem") && v5e.contains("data_parallel_all_reduce_opt=true"), "{v5e}");
    assert!(flags("llama3-8b", Engine::XlaSpmd, "8xTPU-v5p").contains("xla_tpu_enable_ag_backward_pipelining=true"));
    let torch = case("llama3-8b", Engine::XlaSpmd, "8xTPU-v6e").emit().unwrap();
    assert_eq!(variable(&torch, "PJRT_DEVICE").as_deref(), Some("TPU"));
    let mut named = case("llama3-8b", Engine::Maxtext, "8xTPU-v6e");
    named.policy.run.tpu_flags = vec!["vmem".to_string(), "sparse-core".to_string()];
    let named = variable(&named.emit().unwrap(), "LIBTPU_INIT_ARGS").unwrap();
    assert!(named.contains("sparse_core_collective_offload_all_gather=true"), "{named}");
    assert!(!named.contains("fuse_all_gather=true"), "a collective has one owner: {named}");
    let mut off = case("llama3-8b", Engine::Maxtext, "8xTPU-v6e");
    off.policy.run.tpu_flags = vec!["none".to_string()];
    assert_eq!(variable(&off.emit().unwrap(), "LIBTPU_INIT_ARGS"), None);
}

#[test]
fn variables_and_flags_of_other_devices_are_refused() {
    let rules = |case: &Case| -> Vec<&'static str> {
        let findings = lanes::check(&case.job(), None).into_iter();
        findings.filter(|f| f.severity == diag::Severity::Error).map(|f| f.rule).collect()
    };
    let with = |mut case: Case, name: &str| {
        case.policy.environment.set.insert(name.to_string(), "1".to_string());
        rules(&case)
    };
    let tpu = || case("llama3-8b", Engine::Maxtext, "8xTPU-v6e");
    for name in ["NCCL_IB_TIMEOUT", "CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_FLASH_ATTN", "LIBTPU_INIT_ARGS"] {
        assert_eq!(with(tpu(), name), ["lane/device-variable"], "{name}");
    }
    assert_eq!(with(tpu(), "JAX_TRACEBACK_FILTERING"), Vec::<&str>::new());
    let gpu = || case("llama3-8b", Engine::Maxtext, "8xH200");
    assert_eq!(with(gpu(), "LIBTPU_INIT_ARGS"), ["lane/device-variable"]);
    assert_eq!(with(gpu(), "NCCL_IB_TIMEOUT"), Vec::<&str>::new());
    let flagged = |mut case: Case, group: &str| {
        case.policy.run.tpu_flags = vec![group.to_string()];
        rules(&case)
    };
    assert_eq!(flagged(gpu(), "vmem"), ["lane/device-variable"]);
    assert_eq!(flagged(tpu(), "vmen"), ["lane/tpu-flags"]);
}

#[test]
fn schedulers_that_ask_for_gpus_refuse_tpus() {
    let case = case("llama3-8b", Engine::Maxtext, "8xTPU-v6e");
    let emission = case.emit().unwrap();
    for scheduler in [Scheduler::Slurm, Scheduler::RayJob] {
        let refused = files(scheduler, &case.job(), &emission).unwrap_err();
        assert_eq!(refused[0].rule, "launch/tpu-scheduler");
    }
    let mut cluster = Cluster::parse("8xTPU-v6e").unwrap();
    cluster.slice = None;
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Maxtext), ..LayoutRequest::default() };
    let bare = Case::on(&recipe("llama3-8b"), &request, Seams::Refuse, cluster).unwrap();
    assert_eq!(files(Scheduler::JobSet, &bare.job(), &emission).unwrap_err()[0].rule, "launch/slice");
}

#[test]
fn an_engine_elsewhere_is_refused_before_anything_is_written() {
    let cluster = Cluster::parse("8xTPUv6e").unwrap();
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let refused = Case::on(&recipe("llama3-8b"), &request, Seams::Refuse, cluster).and_then(|case| case.emit());
    assert_refused(refused, "case/device");
}
