//! What the commands print, word for word. A missing golden fails; `UPDATE_GOLDENS=1 cargo test`
//! writes them, and the diff is then read by a person.

use crate::common;
use std::path::PathBuf;

fn golden(name: &str, line: &str) {
    let ran = common::run(line);
    let text = format!("$ shardwright {line}\n{}{}[exit {}]\n", ran.stdout, ran.stderr, ran.code);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
        return;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("golden {}: {e}", path.display()));
    for (number, (now, then)) in text.lines().zip(stored.lines()).enumerate() {
        assert_eq!(now, then, "{name}, line {}", number + 1);
    }
    assert_eq!(text, stored, "{name}");
}

macro_rules! goldens {
    ($($name:ident: $line:literal,)+) => {
        $(#[test] fn $name() { golden(stringify!($name), $line); })+
    };
}

goldens! {
    splits_nam56r_nemo_native: "splits nam56r --mode nemo_native --ep 4 --etp 1 --world 8",
    splits_nam56r_author_dp: "splits nam56r --mode author_dp --ep 8 --world 8",
    splits_nam56r_as_written: "splits nam56r --tp 4 --pp 2 --ep 4 --etp 1 --with mla,dsa,mtp,ngram_hash,structure",
    splits_deepseek_v3: "splits deepseek-v3 --tp 2 --pp 16 --ep 64 --etp 1 --world 2048 --zero 1 --with mtp",
    splits_nemotron_nano: "splits nemotron-3-nano-30b-a3b --tp 2 --cp 2 --ep 8 --etp 1 --world 16",
    splits_gpt3: "splits gpt3-175b --tp 8 --pp 8 --world 128 --zero 0 --rank 127",
    splits_llama_kv_below_tp: "splits llama3-70b --tp 16 --world 16",
    check_nam56r_nemo_native: "check nam56r --mode nemo_native --world 8 --engine megatron",
    check_nam56r_author_dp: "check nam56r --mode author_dp --world 8 --engine megatron",
    check_nam56r_everything_wrong: "check nam56r --tp 16 --ep 5 --cp 2 --world 100 --no-sp --engine megatron",
    check_nam56r_author_dp_with_tp: "check nam56r --mode author_dp --tp 2 --world 8",
    check_nam56r_torchtitan: "check nam56r --world 8 --engine torchtitan",
    check_deepseek_dualpipe: "check deepseek-v3 --pp 16 --ep 64 --world 2048 --schedule dualpipe --gbs 15360 --mbs 1",
    check_qwen_deepspeed: "check qwen3-30b-a3b --pp 2 --ep 2 --tp 2 --zero 3 --world 8 --engine deepspeed",
    check_llama_nanotron: "check llama3-8b --tp 16 --ep 2 --zero 3 --world 32 --engine nanotron",
    stages_nam56r_virtual: "stages nam56r --mode nemo_native --pp 2 --vpp 2 --with mtp",
    stages_nam56r_author_dp: "stages nam56r --mode author_dp --pp 4 --balance params",
    stages_llama_v: "stages llama3-8b --pp 4 --schedule dualpipev --balance params",
    stages_gpt3_uneven: "stages gpt3-175b --pp 3 --boundaries 30,62",
    mesh_experts: "mesh --tp 2 --cp 2 --pp 2 --ep 4 --etp 1 --world 32 --rank 13",
    mesh_large: "mesh --tp 8 --cp 4 --pp 16 --ep 16 --world 131072 --rank 77777",
    params_nam56r: "params nam56r",
    params_nam56r_nemo_native: "params nam56r --mode nemo_native --with mtp",
    params_without_moe: "params nam56r --without moe",
    axes_all: "axes",
    axes_cp: "axes cp",
    diagnose_dtype: "diagnose reduce-scatter dtype mismatch with fp8 activations",
    recipes_all: "recipes",
    hardware_all: "hardware",
    hardware_gb200: "hardware GB200",
    hardware_network: "hardware tcpxo",
    plan_nam56r: "plan nam56r --on 8xH200",
    plan_llama_on_racks: "plan llama3-70b --tp 4 --on 128xGB200",
    plan_one_layout: "plan nam56r --tp 2 --cp 1 --pp 2 --vpp 2 --ep 1 --etp 2 --zero 1 --mbs 4 --gbs 64 --schedule interleaved --recompute none --balance layers --mode nemo_native --offload-optimizer 0 --on 8xH200",
    plan_explained: "plan llama3-8b --gbs 64 --pp 1 --cp 1 --on 8xH200 --explain --tp=16",
    plan_nothing_fits: "plan llama3-405b --pp 2 --cp 1 --mbs 1 --gbs 64 --on 8xH100",
    plan_nothing_legal: "plan llama3-8b --tp 3 --on 8xH200",
    plan_sweep: "plan llama3-8b --cp 1 --pp 1 --gbs 64 --on 4,8xH200 --sequences 4096,8192",
    stages_even_in_time: "stages nam56r --mode nemo_native --pp 4 --balance time --on 8xH200",
    fit_nam56r_ep8: "fit nam56r --tp 1 --ep 8 --mbs 10 --on 8xH200 --overload 1.0,1.5,2.0 --checklist",
    fit_nam56r_virtual: "fit nam56r --pp 2 --vpp 2 --mbs 4 --gbs 64 --with mtp --on 8xH200",
    fit_deepseek_v3: "fit deepseek-v3 --engine any --pp 16 --ep 64 --gbs 15360 --schedule dualpipe --recompute selective:mla_up_proj+moe_act+layernorm --on 256x8xH100",
    fit_assumed_engine: "fit llama3-8b --pp 4 --schedule dualpipe --microbatches 16 --on 8xH200",
    fit_llama_fsdp2: "fit llama3-8b --engine fsdp2 --recompute full --on 8xH200",
    fit_serve_nam56r: "fit nam56r --serve --tp 2 --batch 64 --context 32768 --on 8xH200",
    launch_nam56r_nemo_native: "launch nam56r --ep 4 --etp 1 --mode nemo_native --on 8xH200 --explain",
    launch_nam56r_author_dp: "launch nam56r --mode author_dp --ep 8 --with mla --on 2x8xH200 --scheduler slurm",
    launch_nam56r_torchtitan: "launch nam56r --engine torchtitan --on 8xH200",
    launch_nam56r_maxtext: "launch nam56r --engine maxtext --on 8xH200",
    launch_deepseek_v3: "launch deepseek-v3 --tp 2 --pp 16 --ep 32 --etp 1 --gbs 4096 --recompute full --on 64x8xH200 --with mtp --explain",
    launch_llama_torchtitan: "launch llama3-8b --engine torchtitan --tp 2 --recompute full --on 8xH200",
    launch_llama_deepspeed: "launch llama3-8b --engine deepspeed --zero 3 --offload-optimizer 1 --on 8xH200 --scheduler jobset",
    launch_llama_nanotron: "launch llama3-8b --engine nanotron --tp 2 --recompute full --on 8xH200 --override-memory",
    lanes_tpu: "lanes --for nam56r --on 16xTPUv6e",
    launch_llama_tpu: "launch llama3-8b --on 2x16xTPU-v6e --scheduler jobset --override-memory --explain",
    plan_tpu: "plan llama3-8b --on 8xTPU-v6e",
    hardware_tpu: "hardware TPU-v6e",
    launch_mixtral_maxtext: "launch mixtral-8x7b --engine maxtext --ep 2 --on 2x8xH200 --scheduler rayjob --override-memory",
    launch_does_not_fit: "launch llama3-70b --on 8xH200",
    launch_mixed_hosts: "launch llama3-8b --lane offload --engine megatron --on 8xH200",
    options_all: "options",
    options_megatron: "options megatron",
    options_torchtitan: "options torchtitan",
    options_maxtext: "options maxtext",
    lanes_all: "lanes",
    lanes_nam56r: "lanes --for nam56r --on 8xH200 --goal throughput",
    fidelity_megatron: "fidelity ../../data/truth/megatron_h200.jsonl",
}
