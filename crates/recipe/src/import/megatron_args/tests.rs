//! Argument lists as people write them, and what becomes of them.

use super::*;
use crate::kinds::Activation;
use crate::kinds::attention::{AttentionKind, Window};
use crate::megatron;

const NEMOTRON: &str = "torchrun pretrain_hybrid.py --hybrid-layer-pattern 'M-M*|M-*-/*-/*-' --hidden-size 256 \
    --num-attention-heads 8 --group-query-attention --num-query-groups 2 --kv-channels 32 --ffn-hidden-size 512 \
    --squared-relu --disable-bias-linear --normalization RMSNorm --position-embedding-type none \
    --untie-embeddings-and-output-weights --vocab-size 1024 --seq-length 4096 --mamba-num-heads 8 \
    --mamba-head-dim 64 --mamba-state-dim 64 --mamba-num-groups 2 --pipeline-model-parallel-size 2 \
    --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --lr 1e-4";

/// Eight layers with biases off, RMSNorm and rotary positions.
const PLAIN: &str = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --vocab-size 1000 \
    --disable-bias-linear --normalization RMSNorm --position-embedding-type rope";

/// Latent attention on top of it.
const LATENT: &str = "--multi-latent-attention --q-lora-rank 32 --qk-layernorm";

/// The same with Megatron's defaults: biases, LayerNorm.
const BIASED: &str = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --vocab-size 1000 \
    --position-embedding-type rope";

fn read_with(base: &str, more: &str) -> Imported {
    import(&format!("{base} {more}"), "x").unwrap_or_else(|findings| panic!("{more}: {findings:#?}"))
}

/// The names of refused flags, and all their messages.
fn refusal(base: &str, more: &str) -> (Vec<String>, String) {
    let findings = import(&format!("{base} {more}"), "x").expect_err(more);
    (findings.iter().map(|f| f.object.clone()).collect(), findings.into_iter().map(|f| f.message + "\n").collect())
}

fn layout_of(base: &str, more: &str) -> Vec<String> {
    let flags = read_with(base, more).layout;
    flags.iter().map(|(k, v)| format!("--{k} {v}").trim_end().to_string()).collect()
}

/// Elements of the tensors whose path ends so, in all layers.
fn elements(recipe: &Recipe, suffix: &str) -> u64 {
    recipe.tensors().iter().filter(|t| t.path.ends_with(suffix)).map(|t| t.elements()).sum()
}

#[test]
fn a_hybrid_argument_list_is_read_whole() {
    let imported = import(NEMOTRON, "small").unwrap();
    assert_eq!(imported.recipe.depth(), 8);
    assert_eq!(imported.recipe.features.mtp().unwrap().depth, 2);
    assert_eq!(imported.recipe.mlp.as_ref().unwrap().activation, Activation::Relu2);
    assert!(imported.layout.contains(&("boundaries", "4".to_string())));
    assert_eq!(imported.beside, [("--lr".to_string(), vec!["1e-4".to_string()])]);
    let written = megatron::write(&imported.recipe, None, &[4, 4]).unwrap();
    assert_eq!(written.text, "M-M*|M-*-/*-/*-");
}

#[test]
fn mistyped_and_missing_flags_are_all_named() {
    let findings = import("--hiden-size 256 --num-layers 2", "x").unwrap_err();
    assert_eq!(findings[0].hint.as_deref(), Some("did you mean `--hidden-size`?"));
    for flag in ["--hidden-size", "--seq-length", "--vocab-size"] {
        assert!(findings.iter().any(|f| f.message.contains(&format!("has no `{flag}`"))), "{flag}");
    }
}

#[test]
fn a_flag_without_its_value_is_named() {
    let findings = import("--hidden-size --num-layers 2", "x").unwrap_err();
    assert!(findings.iter().any(|f| f.message == "`--hidden-size` has no value"), "{findings:?}");
}

#[test]
fn windows_are_read_with_the_layers_that_have_none() {
    let window = |base, more| read_with(base, more).recipe.attention.unwrap().window;
    let sliding = |full: &[u64]| Some(Window::sliding(64, full.to_vec()));
    assert_eq!(window(PLAIN, "--window-size 63,0"), sliding(&[]));
    assert_eq!(window(PLAIN, "--window-size '(63,0)' --window-attn-skip-freq 4"), sliding(&[3, 7]));
    assert_eq!(window(PLAIN, "--window-size 63,0 --window-attn-skip-freq '([0]*2+[1]*6)'"), sliding(&[0, 1]));
    // Every layer sees everything, and so it does where no size stands.
    assert_eq!(window(PLAIN, "--window-size 63,0 --window-attn-skip-freq 1"), None);
    assert_eq!(window(PLAIN, "--window-attn-skip-freq 4"), None);
    // Symbols are layers: attention stands at the fourth and the seventh, and heads count from one again.
    assert_eq!(window(NEMOTRON, "--window-size 63,0 --window-attn-skip-freq 4"), sliding(&[0]));
    for (base, more, flag) in [
        (PLAIN, "--window-size 63", "--window-size"),
        (PLAIN, "--window-size 63,5", "--window-size"),
        (PLAIN, "--window-size 9223372036854775807,0", "--window-size"),
        (PLAIN, "--window-size 63,0 --window-attn-skip-freq '[1]*7'", "--window-attn-skip-freq"),
        (NEMOTRON, "--window-size 63,0 --window-attn-skip-freq '([0]+[1]*7)'", "--window-attn-skip-freq"),
    ] {
        assert_eq!(refusal(base, more).0, [flag], "{more}");
    }
}

#[test]
fn every_refused_flag_is_refused_by_name() {
    let options = flags::options();
    for (flag, _) in refused::MODEL.iter().chain(refused::LAYOUT) {
        let option = &options[flag];
        let value = match (option["nargs"].as_u64(), option["choices"][0].as_str()) {
            (Some(0), _) => "",
            (_, Some(choice)) => choice,
            _ => "1",
        };
        let (named, messages) = refusal(PLAIN, &format!("{flag} {value}"));
        assert_eq!(named, [*flag], "{messages}");
        assert!(messages.contains("has no recipe: ") || messages.contains("has no layout flag: "), "{messages}");
    }
}

#[test]
fn values_that_cannot_be_said_are_refused() {
    for (more, flag) in [
        ("--rotary-base abc", "--rotary-base"),
        ("--rotary-base 0", "--rotary-base"),
        ("--normalization rmsnorm", "--normalization"),
        ("--num-experts 8 --moe-router-topk 99", "--moe-router-topk"),
        ("--num-experts 1", "--moe-router-topk"),
        ("--num-experts 8 --moe-router-score-function sqrtsoftplus", "--moe-router-score-function"),
        ("--num-experts 8 --moe-router-dtype fp64", "--moe-router-dtype"),
        ("--num-experts 8 --moe-aux-loss-coeff -1", "--moe-aux-loss-coeff"),
        ("--num-experts 8 --moe-router-load-balancing-type quantile_balancing", "--moe-router-load-balancing-type"),
        ("--optimizer lion", "--optimizer"),
        ("--position-embedding-type mrope", "--position-embedding-type"),
        ("--position-embedding-type learned_absolute", "--max-position-embeddings"),
        ("--moe-layer-freq [1,0]", "--moe-layer-freq"),
        ("--spec my.module layers", "--spec"),
    ] {
        let (named, messages) = refusal(PLAIN, more);
        assert_eq!(named, [flag], "{messages}");
    }
    assert!(refusal(PLAIN, "--num-experts 8 --moe-router-topk 99").1.contains("among only 8 experts"));
}

#[test]
fn gated_delta_nets_stand_where_megatron_puts_them() {
    let variant = "--experimental-attention-variant gated_delta_net";
    let pattern = |more: &str| read_with(PLAIN, &format!("{variant} {more}")).recipe.pattern.to_string();
    assert_eq!(pattern("--linear-attention-freq 4"), "(GF)x3 (AF)");
    assert_eq!(pattern("--linear-attention-freq '([0]+[1])*4'"), "(AF)(GF)");
    assert_eq!(pattern("--linear-attention-freq 1"), "(AF)");
    let mixed = "--linear-attention-freq 2 --num-experts 4 --moe-layer-freq 2";
    assert_eq!(pattern(mixed), "(GE)(AF)");
    let imported = read_with(PLAIN, &format!("{variant} --linear-attention-freq 4 --linear-num-value-heads 16"));
    assert_eq!(imported.recipe.gated_delta.unwrap().value_heads, 16);
    assert!(imported.beside.is_empty());
}

#[test]
fn gated_delta_nets_that_cannot_be_built_are_refused() {
    let variant = "--experimental-attention-variant gated_delta_net";
    assert_eq!(refusal(PLAIN, variant).0, ["--linear-attention-freq"]);
    assert_eq!(refusal(PLAIN, "--linear-attention-freq 4").0, ["--linear-attention-freq"]);
    assert_eq!(refusal(BIASED, &format!("{variant} --linear-attention-freq 4")).0, ["--normalization"]);
    let predicted = format!("{variant} --linear-attention-freq 4 --mtp-num-layers 1");
    assert_eq!(refusal(PLAIN, &predicted).0, ["--mtp-num-layers"]);
    let uneven = format!("{variant} --linear-attention-freq 4 --linear-num-key-heads 5");
    assert_eq!(refusal(PLAIN, &uneven).0, ["--linear-num-value-heads"]);
    assert_eq!(refusal(NEMOTRON, variant).0, ["--experimental-attention-variant"]);
}

#[test]
fn sparse_attention_stands_on_every_layer_or_is_refused() {
    let variant = "--experimental-attention-variant dsa --dsa-indexer-n-heads 4 --dsa-indexer-head-dim 16 \
        --dsa-indexer-topk 32";
    let recipe = read_with(PLAIN, &format!("{LATENT} {variant}")).recipe;
    assert!((0..8).all(|layer| recipe.features.dsa().unwrap().covers(layer)));
    assert_eq!(elements(&recipe, "indexer.wq.weight"), 8 * 4 * 16 * 32);
    assert_eq!(refusal(PLAIN, variant).0, ["--experimental-attention-variant"]);
    let shared = format!("{LATENT} {variant} --dsa-indexer-topk-freq 4 --dsa-indexer-skip-topk-offset 2");
    let recipe = read_with(PLAIN, &shared).recipe;
    assert_eq!(recipe.features.dsa().unwrap().reuse, [2, 3, 4, 6, 7]);
    assert_eq!(elements(&recipe, "indexer.wq.weight"), 3 * 4 * 16 * 32);
    let none = format!("{LATENT} {variant} --dsa-indexer-topk-freq 0");
    assert_eq!(refusal(PLAIN, &none).0, ["--dsa-indexer-topk-freq"]);
    let bare = format!("{LATENT} --experimental-attention-variant dsa");
    let wanted = ["--dsa-indexer-n-heads", "--dsa-indexer-head-dim", "--dsa-indexer-topk"];
    assert_eq!(refusal(PLAIN, &bare).0, wanted);
}

#[test]
fn latent_attention_that_a_recipe_cannot_say_is_refused() {
    let recipe = read_with(PLAIN, LATENT).recipe;
    let Some(AttentionKind::Mla(mla)) = recipe.attention.map(|a| a.kind) else { panic!("not latent") };
    assert_eq!((mla.q_rank, mla.kv_rank, mla.latent_norm), (Some(32), 32, true));
    assert_eq!(refusal(BIASED, "--multi-latent-attention").0, ["--disable-bias-linear"]);
    assert_eq!(refusal(PLAIN, "--multi-latent-attention --qk-layernorm").0, ["--qk-layernorm"]);
    assert_eq!(refusal(NEMOTRON, "--multi-latent-attention").0, ["--multi-latent-attention"]);
}

#[test]
fn biases_are_where_megatron_builds_them() {
    let experts = "--num-experts 4 --moe-ffn-hidden-size 32 --moe-latent-size 16 --qk-layernorm";
    let recipe = read_with(BIASED, experts).recipe;
    assert_eq!(elements(&recipe, "router.bias"), 8 * 4);
    assert_eq!(elements(&recipe, "experts.fc1.bias"), 8 * 4 * 32);
    assert_eq!(elements(&recipe, "experts.fc2.bias"), 8 * 4 * 16);
    assert_eq!(elements(&recipe, "latent_in.bias"), 8 * 16);
    assert_eq!(elements(&recipe, "latent_out.bias"), 8 * 64);
    assert_eq!(elements(&recipe, "q_norm.bias") + elements(&recipe, "k_norm.bias"), 8 * 2 * 16);
    assert_eq!(elements(&recipe, "qkv.bias"), 8 * 3 * 64);
    let without = read_with(PLAIN, experts).recipe;
    assert!(without.tensors().iter().all(|t| !t.path.ends_with("bias")));
    let shared = "--num-experts 4 --moe-shared-expert-intermediate-size 32";
    assert_eq!(refusal(BIASED, shared).0, ["--disable-bias-linear"]);
}

#[test]
fn layout_flags_say_what_the_list_says() {
    let usual = ["--zero 0", "--vocab-multiple 128"];
    assert_eq!(layout_of(PLAIN, ""), usual);
    let degrees = "--tensor-model-parallel-size 2 --context-parallel-size 2 --expert-model-parallel-size 4 \
        --num-experts 8 --use-distributed-optimizer --make-vocab-size-divisible-by 64";
    let flags = ["--tp 2", "--cp 2", "--ep 4", "--no-sp", "--zero 1", "--vocab-multiple 64"];
    assert_eq!(layout_of(PLAIN, degrees), flags);
    assert_eq!(layout_of(PLAIN, "--padded-vocab-size 1024 --make-vocab-size-divisible-by 64"), ["--zero 0"]);
    let odd = "--padded-vocab-size 1001 --tensor-model-parallel-size 2";
    assert_eq!(refusal(PLAIN, odd).0, ["--padded-vocab-size"]);
    let launched = format!("torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {PLAIN}");
    assert_eq!(layout_of(&launched, ""), ["--world 16", "--zero 0", "--vocab-multiple 128"]);
}

#[test]
fn sharding_strategies_are_zero_stages() {
    let zero = |more: &str| layout_of(PLAIN, more).into_iter().find(|f| f.starts_with("--zero")).unwrap();
    for (strategy, stage) in [("no_shard", 0), ("optim", 1), ("optim_grads", 2), ("optim_grads_params", 3)] {
        let more = format!("--use-megatron-fsdp --data-parallel-sharding-strategy {strategy}");
        assert_eq!(zero(&more), format!("--zero {stage}"));
    }
    assert_eq!(zero("--use-megatron-fsdp"), "--zero 3");
    assert_eq!(zero("--data-parallel-sharding-strategy optim_grads"), "--zero 0");
    assert_eq!(zero("--use-torch-fsdp2"), "--zero 3");
    assert_eq!(zero("--optimizer dist_muon"), "--zero 1");
    let piped = "--use-torch-fsdp2 --pipeline-model-parallel-size 2";
    assert_eq!(refusal(PLAIN, piped).0, ["--use-torch-fsdp2"]);
    assert_eq!(refusal(PLAIN, "--use-megatron-fsdp --optimizer muon").0, ["--use-megatron-fsdp"]);
}

#[test]
fn uneven_stages_become_boundaries() {
    let cuts = |more: &str| {
        let flags = layout_of(PLAIN, more);
        flags.into_iter().filter(|f| f.starts_with("--vpp") || f.starts_with("--boundaries")).collect::<Vec<_>>()
    };
    let pp = |n: u64| format!("--pipeline-model-parallel-size {n}");
    let (first, last) = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers");
    assert_eq!(cuts(&pp(4)), Vec::<String>::new());
    assert_eq!(cuts(&format!("{} {first} 1 {last} 3", pp(4))), ["--boundaries 1,3,5"]);
    assert_eq!(cuts(&format!("{} {last} 2", pp(3))), ["--boundaries 3,6"]);
    assert_eq!(cuts(&format!("{} {first} 2", pp(2))), ["--boundaries 2"]);
    assert_eq!(cuts(&format!("{} --num-layers-per-virtual-pipeline-stage 2", pp(2))), ["--vpp 2"]);
    assert_eq!(cuts(&format!("{} --num-virtual-stages-per-pipeline-rank 4", pp(2))), ["--vpp 4"]);
    // Two chunks a stage: [1, 3] twice.
    let virtual_uneven = format!("{} {first} 2 --num-virtual-stages-per-pipeline-rank 2", pp(2));
    assert_eq!(cuts(&virtual_uneven), ["--vpp 2", "--boundaries 1,4,5"]);
    let edges = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split";
    assert_eq!(cuts(&format!("{} {edges}", pp(5))), ["--boundaries 1,3,5,7"]);
    for more in [
        pp(3),
        format!("{} {first} 8", pp(2)),
        format!("{} {first} 1 {last} 2", pp(4)),
        format!("{} {first} 2 {edges}", pp(2)),
        format!("{} --num-layers-per-virtual-pipeline-stage 3", pp(2)),
        format!("{} --num-virtual-stages-per-pipeline-rank 3", pp(2)),
        "--num-virtual-stages-per-pipeline-rank 2".to_string(),
    ] {
        assert_eq!(refusal(PLAIN, &more).0.len(), 1, "{more}");
    }
    assert_eq!(refusal(NEMOTRON, &format!("{first} 2")).0, [first]);
    let (named, _) = refusal(NEMOTRON, "--pipeline-model-parallel-size 3");
    assert_eq!(named, ["--pipeline-model-parallel-size"]);
}

#[test]
fn recompute_policies_are_translated_or_refused() {
    let policy = |more: &str| layout_of(PLAIN, more).into_iter().find(|f| f.starts_with("--recompute"));
    assert_eq!(policy(""), None);
    assert_eq!(policy("--recompute-activations").unwrap(), "--recompute selective:core_attn");
    let modules = "--recompute-granularity selective --recompute-modules mlp moe_act";
    assert_eq!(policy(modules).unwrap(), "--recompute selective:mlp+moe_act");
    let full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1";
    assert_eq!(policy(full).unwrap(), "--recompute full");
    let block = "--recompute-granularity full --recompute-method block --recompute-num-layers 2";
    assert_eq!(refusal(PLAIN, block).0, ["--recompute-method"]);
    let unknown = "--recompute-granularity selective --recompute-modules attn";
    assert_eq!(refusal(PLAIN, unknown).0, ["--recompute-modules"]);
}

#[test]
fn prediction_heads_and_learned_positions_exclude_each_other() {
    let learned = "--position-embedding-type learned_absolute --max-position-embeddings 128";
    assert!(matches!(read_with(PLAIN, learned).recipe.positions, Positions::Learned { count: 128 }));
    assert_eq!(refusal(PLAIN, &format!("{learned} --mtp-num-layers 1")).0, ["--position-embedding-type"]);
    assert_eq!(read_with(PLAIN, "--mtp-num-layers 2").recipe.features.mtp().unwrap().depth, 2);
}
