//! Adapters, balancing and prefetch in the ledger of the emitted FSDP2 program, against ranks measured on an
//! H200 (`data/truth/fsdp2_adapters_h200.jsonl`, taken with `tools/measure_launch.py` when the ledger stood).

use case::Options;
use case::options::Prefetch;
use layout::{Engine, Layout, LayoutRequest, Recompute, StagePlan, ZeroStage, check};
use ledger::fsdp2::{Fsdp2Options, Job, replay};
use ledger::{Ledger, RankJob};
use recipe::Recipe;
use replay::{PhaseKind, Replay};
use serde_json::Value;

const DENSE: &str = "name = \"dense\"\npattern = \"(AF)\"\ndepth = 4\nhidden = 2048\nvocab = 32000\nsequence = 2048\n\n\
    [attention]\nheads = 16\nkv_heads = 8\nhead_dim = 128\n\n[mlp]\nffn = 8192\n";
const ADAPTERS: &str = "\n[adapters]\nrank = 16\ntargets = [\"attention.qkv\", \"attention.out\"]\n";
const EXPERTS: &str = "name = \"experts\"\npattern = \"(AE)\"\ndepth = 4\nhidden = 1024\nvocab = 32000\nsequence = 2048\n\n\
    [attention]\nheads = 8\nkv_heads = 8\nhead_dim = 128\n\n[moe]\nexperts = 64\ntop_k = 4\nffn = 512\n\n[moe.router]\nscore = \"sigmoid\"\n";

fn layout(recipe: &Recipe, engine: Engine, world: u64) -> Layout {
    let request = LayoutRequest {
        world: Some(world),
        zero: Some(if engine == Engine::Fsdp2 { ZeroStage::Three } else { ZeroStage::One }),
        micro_batch: Some(1),
        microbatches: Some(1),
        engine: Some(engine),
        ..LayoutRequest::default()
    };
    check(recipe, &request).layout.unwrap()
}

fn replayed(text: &str, world: u64, change: impl Fn(&mut Fsdp2Options)) -> Replay {
    let recipe = Recipe::parse(text).unwrap();
    let layout = layout(&recipe, Engine::Fsdp2, world);
    let stages = StagePlan::new(&recipe, &layout, None).unwrap();
    let mut options = Fsdp2Options::emitted(&layout);
    change(&mut options);
    replay(&Job { recipe: &recipe, layout: &layout, stages: &stages, rank: 0, options: &options }).unwrap()
}

/// Errors in percent of a measured row: allocated after backward, after the step, and at the peak.
fn errors(row: &Value) -> [f64; 3] {
    let said = &row["layout"];
    let recipe = Recipe::parse(row["recipe"].as_str().unwrap()).unwrap();
    let request = LayoutRequest {
        world: said["world"].as_u64(),
        zero: Some(ZeroStage::Three),
        micro_batch: said["mbs"].as_u64(),
        microbatches: said["microbatches"].as_u64(),
        recompute: Some(Recompute::parse(said["recompute"].as_str().unwrap()).unwrap()),
        engine: Some(Engine::Fsdp2),
        ..LayoutRequest::default()
    };
    let layout = check(&recipe, &request).layout.unwrap();
    let stages = StagePlan::new(&recipe, &layout, None).unwrap();
    let prefetch = Prefetch { forward: said["forward_prefetch"].as_u64().unwrap(), ..Prefetch::DEFAULT };
    let options = Options { prefetch, ..Options::of(Some(Engine::Fsdp2), &recipe) };
    let ledger = Ledger::of(&recipe, &layout, &options).unwrap();
    let replay = ledger.replay(&RankJob { recipe: &recipe, layout: &layout, stages: &stages, rank: 0 }).unwrap();
    let end = |phase| replay.phase(phase).unwrap().allocated;
    let measured = |phase: &str, key: &str| row[phase][key].as_u64().unwrap();
    let peak = ["fwdbwd2", "opt2"].map(|phase| measured(phase, "peak")).into_iter().max().unwrap();
    let pairs = [
        (end(PhaseKind::Passes(2)), measured("fwdbwd2", "alloc")),
        (end(PhaseKind::Update(2)), measured("opt2", "alloc")),
        (replay.allocated_peak(), peak),
    ];
    let e = pairs.map(|(predicted, truth)| 100.0 * (predicted as f64 / truth as f64 - 1.0));
    println!(
        "{:18} after backward {:6.2}% after the step {:6.2}% peak {:6.2}%",
        row["name"].as_str().unwrap(),
        e[0],
        e[1],
        e[2]
    );
    e
}

#[test]
fn measured_ranks_hold_what_is_predicted() {
    let rows = include_str!("../../../../data/truth/fsdp2_adapters_h200.jsonl").lines();
    let rows: Vec<Value> = rows.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 11);
    let worst: Vec<f64> = rows.iter().flat_map(errors).map(f64::abs).collect();
    assert!(worst.iter().all(|error| *error < 1.5), "{worst:?}");
}

fn trained(text: &str) -> (u64, u64) {
    let counts = Recipe::parse(text).unwrap().counts();
    (counts.trained, counts.all.total - counts.trained)
}

/// Two cuBLAS workspaces, and every tensor rounded up.
const BESIDE: u64 = 66 << 20;

#[test]
fn frozen_weights_have_neither_gradients_nor_state() {
    let text = format!("{DENSE}{ADAPTERS}");
    let replay = replayed(&text, 1, |_| {});
    let (adapters, base) = trained(&text);
    assert_eq!(replay.params, adapters + base);
    // Shards in fp32; of adapters two moments besides, and before the step their gradients.
    let stepped = replay.phase(PhaseKind::Update(2)).unwrap().allocated;
    let expected = 4 * base + 12 * adapters;
    assert!((expected..expected + BESIDE).contains(&stepped), "{stepped} is not {expected}");
    let backward = replay.phase(PhaseKind::Passes(2)).unwrap().allocated;
    let expected = expected + 4 * adapters;
    assert!((expected..expected + BESIDE).contains(&backward), "{backward} is not {expected}");
}

#[test]
fn replicas_share_out_the_base_and_hold_adapters_whole() {
    let text = format!("{DENSE}{ADAPTERS}");
    let (adapters, base) = trained(&text);
    let stepped = replayed(&text, 8, |_| {}).phase(PhaseKind::Update(2)).unwrap().allocated;
    let expected = 4 * base / 8 + 12 * adapters;
    assert!((expected..expected + BESIDE).contains(&stepped), "{stepped} is not {expected}");
}

/// The highest point of a later step's forward passes.
fn forward(replay: &Replay) -> u64 {
    replay.phase(PhaseKind::Passes(2)).unwrap().by_part[0]
}

#[test]
fn inputs_of_frozen_projections_are_not_kept() {
    let text = format!("{DENSE}{ADAPTERS}");
    let (adapters, base) = trained(&text);
    // Beyond weights and moments.
    let whole = forward(&replayed(DENSE, 1, |_| {})) - 12 * base;
    let frozen = forward(&replayed(&text, 1, |_| {})) - 4 * base - 12 * adapters;
    // The feed-forward blocks keep no input of either projection; attention keeps its own for its adapters.
    let inputs = 4 * 2048 * (2048 + 8192) * 2;
    assert!(whole >= frozen + inputs * 3 / 4, "{whole} is not {inputs} above {frozen}");
}

#[test]
fn other_ledgers_refuse_adapters_by_name() {
    let recipe = Recipe::parse(&format!("{DENSE}{ADAPTERS}")).unwrap();
    for engine in [Engine::Megatron, Engine::Torchtitan, Engine::Deepspeed, Engine::Nanotron, Engine::Shardwright] {
        let layout = layout(&recipe, engine, 1);
        let refused = Ledger::of(&recipe, &layout, &Options::of(Some(engine), &recipe)).unwrap_err();
        assert_eq!(refused.what, "adapters", "{engine}");
    }
}

#[test]
fn a_group_gathered_ahead_is_one_more_alive() {
    let gathered = |prefetch: Prefetch| {
        let recipe = Recipe::parse(DENSE).unwrap();
        let layout = layout(&recipe, Engine::Fsdp2, 8);
        let stages = StagePlan::new(&recipe, &layout, None).unwrap();
        let options = Options { prefetch, ..Options::of(Some(Engine::Fsdp2), &recipe) };
        let ledger = Ledger::of(&recipe, &layout, &options).unwrap();
        let replay = ledger.replay(&RankJob { recipe: &recipe, layout: &layout, stages: &stages, rank: 0 }).unwrap();
        // Of a step's passes, forward by itself.
        replay.phase(PhaseKind::Passes(2)).unwrap().by_part[0]
    };
    let (none, one) = (gathered(Prefetch::DEFAULT), gathered(Prefetch { forward: 1, ..Prefetch::DEFAULT }));
    let layer = 2 * (2048 * 128 * (16 + 2 * 8) + 2048 * 2048 + 3 * 2048 * 8192);
    assert!(one >= none + layer * 9 / 10, "{one} is not a layer of {layer} above {none}");
}

#[test]
fn what_the_z_loss_keeps_is_replayed() {
    let highest = |more: &str| forward(&replayed(&format!("{EXPERTS}{more}"), 1, |_| {}));
    let plain = highest("");
    // Logits of every layer; a balancing loss keeps sums alone, and a bias its counts.
    let logits = 4 * 2048 * 64 * 4;
    assert!(highest("z_loss = 0.001\n") >= plain + logits * 3 / 4);
    assert!(highest("aux_loss = 0.01\nexpert_bias = true\n") > plain);
}
