//! Adapters, balancing and prefetch in the ledger of the emitted FSDP2 program.

use case::Options;
use case::options::Prefetch;
use layout::{Engine, Layout, LayoutRequest, StagePlan, ZeroStage, check};
use ledger::fsdp2::{Fsdp2Options, Job, replay};
use ledger::{Ledger, RankJob};
use recipe::Recipe;
use replay::{PhaseKind, Replay};

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

#[test]
fn inputs_of_frozen_projections_are_not_kept() {
    let whole = replayed(DENSE, 1, |_| {});
    let text = format!("{DENSE}{ADAPTERS}");
    let (peak, all) = (replayed(&text, 1, |_| {}).allocated_peak(), whole.allocated_peak());
    let (adapters, base) = trained(&text);
    // Beyond gradients and moments: the feed-forward blocks keep no input of either projection.
    let saved = all - (peak - 16 * adapters) - 12 * base;
    let inputs = 4 * 2048 * (2048 + 8192) * 2;
    assert!(saved > inputs, "{saved} is not above {inputs}");
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
fn balancing_is_replayed() {
    let peak = |more: &str| replayed(&format!("{EXPERTS}{more}"), 1, |_| {}).allocated_peak();
    let plain = peak("");
    // Scores as shares are kept, and for the z loss logits too.
    let scores = 4 * 2048 * 64 * 4;
    assert!(peak("aux_loss = 0.01\n") >= plain + scores / 2);
    assert!(peak("z_loss = 0.001\n") >= plain + scores / 2);
    assert!(peak("expert_bias = true\n") > plain);
}
