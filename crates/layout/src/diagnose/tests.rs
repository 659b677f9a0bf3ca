use super::*;

fn first(symptom: &str) -> &'static str {
    diagnose(symptom).first().map_or("none", |m| m.diagnosis.id)
}

#[test]
fn symptoms_of_the_texts_point_where_the_texts_point() {
    for (symptom, id) in [
        ("reduce-scatter dtype mismatch with fp8 activations", "sp-dtype"),
        ("all-to-all hang in the MoE layer", "ep-hang"),
        ("routed-token imbalance", "ep-imbalance"),
        ("long-context attention reconstruction bug", "cp-reconstruction"),
        ("num_attention_heads must be divisible by tensor_model_parallel_size: heads", "tp-divisibility"),
        ("Mamba loss differs with context parallel", "cp-recurrence"),
        ("LoRA gradients diverge after fully_shard", "fsdp-lora"),
        ("OOM on the last pipeline stage with a big vocab", "pp-edge"),
        ("zero-token expert has no gradient", "ep-zero-token"),
        ("out of memory hundreds of steps later when routing drifts", "ep-imbalance"),
        ("auxiliary loss missing on the first stage", "pp-aux-loss"),
        ("OOM in the first backward", "startup-peak"),
        ("the recipe drifted: docs and launcher disagree on the depth", "recipe-drift"),
        ("mode drift", "mode-drift"),
        ("the same nickname for nemo_native and author_dp runs", "mode-drift"),
        ("feature bundle drift", "feature-drift"),
        ("infrastructure drift between machines", "infrastructure-drift"),
        ("caches spill to the root volume", "disk-full"),
        ("stale training processes hold the port", "stale-process"),
        ("debug a live run that hangs", "live-debug"),
        ("silent fp8 scope mismatch", "fp8-scope"),
        ("wrong framework choice", "framework-choice"),
        ("reimplementing sequence-parallel norm grad sync in the wrong framework", "framework-choice"),
        ("LoRA injected after fully_shard needs hooks", "fsdp-lora"),
        ("MFU of Megatron compared with the TPU lane", "mfu-across-lanes"),
        ("overlap lost after bucket sizes were copied, gradient reduce exposed", "fsdp-buckets"),
        ("XLA recompiles every step because of a Python scalar", "recompiles"),
        ("logs of the completed job are gone", "logs-lost"),
        ("it is broken", "none"),
    ] {
        assert_eq!(first(symptom), id, "{symptom}");
    }
}

#[test]
fn symptoms_as_people_type_them_get_an_answer() {
    for (symptom, id) in [
        ("NCCL timeout", "collective-timeout"),
        ("NCCL watchdog timed out", "collective-timeout"),
        ("NCCL timeout in the MoE all-to-all", "ep-hang"),
        ("CUDA out of memory", "device-memory"),
        ("OOM", "device-memory"),
        ("CUDA OOM in the first step", "startup-peak"),
        ("tokens dropped by the router", "ep-capacity"),
        ("stage 0 is slower than the others", "pp-edge"),
        ("router scratch grows with experts", "ep-scratch"),
        ("loss is nan after the first step", "not-a-number"),
        ("expert gradients wrong with expert tensor parallelism", "etp-reduction"),
        ("same model name but a different parameter count", "recipe-drift"),
        ("author_dp is slower than nemo_native", "mode-drift"),
        ("one run had MTP on and the other off", "feature-drift"),
        ("same job is slower on the other node", "infrastructure-drift"),
        ("works on one machine and fails on another", "infrastructure-drift"),
        ("environment variables missing under slurm", "environment-not-carried"),
        ("RuntimeError: Address already in use", "port-in-use"),
        ("port 29500 is taken", "port-in-use"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("disk full", "disk-full"),
        ("triton cache on the root disk", "disk-full"),
        ("GPU memory in use but no job is running", "stale-process"),
        ("zombie python processes hold GPU memory", "stale-process"),
        ("training is stuck, how do I debug it", "live-debug"),
        ("fp8 is not faster, same speed", "fp8-scope"),
        ("LoRA does not learn", "fsdp-lora"),
        ("LoRA adapters have no gradient", "fsdp-lora"),
        ("adapter weights differ between ranks", "fsdp-lora"),
        ("torch.compile hangs", "compile-hang"),
        ("stuck compiling for hours", "compile-hang"),
        ("recompiles every step", "recompiles"),
        ("torch._dynamo hit cache_size_limit", "recompiles"),
        ("graph breaks in the MoE layer", "graph-break"),
        ("should we use FSDP2 or Megatron", "framework-choice"),
        ("checkpoint does not load after changing tp", "checkpoint-layout"),
        ("size mismatch loading a checkpoint with another pp", "checkpoint-layout"),
        ("data repeats after restart", "data-position"),
        ("same batches seen again after resume", "data-position"),
        ("MFU is higher with torchtitan than on our lane", "mfu-across-lanes"),
    ] {
        assert_eq!(first(symptom), id, "{symptom}");
    }
}

#[test]
fn what_no_axis_causes_is_not_put_on_one() {
    let at = |id| all().find(|d| d.id == id).unwrap().at;
    for (id, family) in [
        ("startup-peak", "memory"),
        ("collective-timeout", "communication"),
        ("not-a-number", "precision"),
        ("device-memory", "memory"),
        ("port-in-use", "infrastructure"),
        ("recipe-drift", "recipe"),
        ("mode-drift", "mode"),
        ("feature-drift", "features"),
    ] {
        assert_eq!((at(id).axis(), at(id).family()), (NO_AXIS, Some(family)), "{id}");
    }
    assert_eq!((at("ep-scratch").axis(), at("etp-reduction").axis()), ("ep", "etp"));
    assert_eq!(at("ep-scratch").family(), None);
}

#[test]
fn every_diagnosis_names_a_known_axis_or_family_and_has_an_id_of_its_own() {
    let mut ids = std::collections::BTreeSet::new();
    for d in all() {
        assert!(d.at.axis() == NO_AXIS || crate::axes::find(d.at.axis()).is_some(), "{} names {:?}", d.id, d.at);
        assert!(!d.inspect.is_empty() && ids.insert(d.id), "{}", d.id);
    }
    for (family, name, _) in Family::ALL {
        assert!(all().any(|d| d.at == At::Family(*family)), "nothing points at {name}");
    }
}
