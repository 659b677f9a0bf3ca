//! Replays of built-in recipes: what Megatron has is replayed, what it has not is named.

use layout::{LayoutRequest, StagePlan, check};
use ledger::megatron::{Job, MegatronOptions, explain};
use recipe::Recipe;
use replay::Replay;
use replay::{Line, Unmodelled};

fn explained(recipe: &Recipe, request: &LayoutRequest, rank: u64) -> Result<Replay, Unmodelled> {
    explained_over(recipe, request, rank, 3)
}

fn explained_over(recipe: &Recipe, request: &LayoutRequest, rank: u64, steps: u32) -> Result<Replay, Unmodelled> {
    let checked = check(recipe, request);
    let layout = checked.layout.unwrap();
    let stages = StagePlan::new(&checked.recipe, &layout, None).unwrap();
    let options = MegatronOptions { steps, ..MegatronOptions::of(&checked.recipe) };
    explain(&Job { recipe: &checked.recipe, layout: &layout, stages: &stages, rank, options: &options })
}

fn builtin(name: &str) -> Recipe {
    recipe::builtin::find(name).unwrap()
}

fn degrees(tp: u64, pp: u64, ep: u64, world: u64) -> LayoutRequest {
    let some = |n| Some(n);
    LayoutRequest { tp: some(tp), pp: some(pp), ep: some(ep), world: some(world), ..LayoutRequest::default() }
}

#[test]
fn recipes_that_megatron_has_are_replayed() {
    let runs = [
        ("llama3-8b", degrees(2, 1, 1, 8)),
        ("llama3-70b", degrees(8, 4, 1, 32)),
        ("mixtral-8x7b", degrees(1, 4, 8, 32)),
        ("qwen3-30b-a3b", degrees(1, 2, 8, 16)),
        ("deepseek-v2-lite", degrees(1, 1, 8, 8)),
        ("nemotron-h-8b", degrees(2, 1, 1, 8)),
        ("nemotron-3-nano-30b-a3b", degrees(1, 2, 8, 16)),
    ];
    for (name, request) in runs {
        let replay = explained(&builtin(name), &request, 0).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(replay.line(Line::TpParams) > 0 && replay.line(Line::Activations) > 0, "{name}");
        assert_eq!(replay.by_line().iter().sum::<u64>(), replay.allocated_peak(), "{name}");
        assert_eq!(replay.phases.len(), 4 + 2 * 3, "{name}");
    }
}

#[test]
fn steps_leak_nothing_under_any_recompute_policy() {
    let policies =
        ["none", "full", "selective:core_attn+mlp", "selective:layernorm+mla_up_proj+moe_act", "selective:moe"];
    for name in ["llama3-8b", "deepseek-v2-lite", "nemotron-3-nano-30b-a3b"] {
        for policy in policies {
            let recompute = Some(layout::Recompute::parse(policy).unwrap());
            for (pp, rank) in [(1, 0), (2, 15)] {
                let request = LayoutRequest { recompute: recompute.clone(), ..degrees(1, pp, 1, 16) };
                // Bytes may differ by what a reused block is larger; what is held may not.
                let kept = |steps| {
                    let replay = explained_over(&builtin(name), &request, rank, steps).unwrap();
                    let retained = replay.retained.into_iter().map(|h| (h.origin, h.name, h.count));
                    retained.collect::<std::collections::BTreeSet<_>>()
                };
                assert_eq!(kept(1), kept(3), "{name} {policy} pp {pp}");
            }
        }
    }
}

#[test]
fn parameters_agree_with_ownership() {
    for (name, request) in [("qwen3-30b-a3b", degrees(2, 2, 4, 16)), ("deepseek-v2-lite", degrees(2, 1, 4, 8))] {
        let recipe = builtin(name);
        let layout = check(&recipe, &request).layout.unwrap();
        let table = layout::OwnershipTable::new(&recipe, &layout).unwrap();
        let mesh = layout::Mesh::new(&layout, layout::Order::Megatron, true).unwrap();
        let rank = layout.world - 1;
        let replay = explained(&recipe, &request, rank).unwrap();
        assert_eq!(replay.params, table.rank_params(&layout, &mesh, rank), "{name}");
    }
}

#[test]
fn what_megatron_has_not_is_named() {
    let zero = Some(layout::ZeroStage::Three);
    let mode = Some(recipe::Mode::AuthorDp);
    let request = LayoutRequest { zero, mode, ..degrees(1, 1, 1, 8) };
    let refusal = explained(&builtin("nam56r"), &request, 0).unwrap_err();
    assert_eq!(refusal.what, "zero 3 under Megatron-Core");
    assert!(refusal.why.contains("does not support Megatron-FSDP"), "{}", refusal.why);
    let schedule = Some(layout::Schedule::ZbH1);
    let request = LayoutRequest { zero, schedule, ..degrees(1, 2, 1, 8) };
    assert!(explained(&builtin("llama3-8b"), &request, 0).is_err());
}
