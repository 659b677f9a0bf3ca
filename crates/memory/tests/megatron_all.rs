//! Every built-in recipe is replayed, in the modes and with the features it has: parameters and
//! static lines are counted by hand, steps leak nothing, and more tokens never hold less.

use layout::{Layout, LayoutRequest, Mesh, Order, OwnershipTable, StagePlan, check};
use memory::Line;
use memory::ledger::Replay;
use memory::ledger::megatron::{Job, MegatronOptions, explain, replay};
use recipe::{Feature, Mixer, Mode, Optimizer, Recipe, Surface};
use std::collections::BTreeSet;

fn builtin(name: &str) -> Recipe {
    recipe::builtin::find(name).unwrap()
}

fn degrees(tp: u64, pp: u64, ep: u64, world: u64) -> LayoutRequest {
    LayoutRequest { tp: Some(tp), pp: Some(pp), ep: Some(ep), world: Some(world), ..LayoutRequest::default() }
}

fn in_mode(mode: Mode, request: LayoutRequest) -> LayoutRequest {
    LayoutRequest { mode: Some(mode), ..request }
}

/// A recipe as a layout runs it: with its mode's mixers.
struct Run {
    name: String,
    recipe: Recipe,
    layout: Layout,
}

impl Run {
    fn new(name: &str, recipe: &Recipe, request: &LayoutRequest) -> Run {
        let checked = check(recipe, request);
        let layout = checked.layout.unwrap_or_else(|| panic!("{name}: {:#?}", checked.findings));
        Run { name: format!("{name} {}", layout.flags()), recipe: checked.recipe, layout }
    }

    fn replay(&self, rank: u64, steps: u32) -> Replay {
        let stages = StagePlan::new(&self.recipe, &self.layout, None).unwrap();
        let options = MegatronOptions { steps, ..MegatronOptions::of(&self.recipe) };
        let job = Job { recipe: &self.recipe, layout: &self.layout, stages: &stages, rank, options: &options };
        explain(&job).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

/// Every built-in recipe at least once.
fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    let mut add = |name: &str, features: &[Feature], request: LayoutRequest| {
        let recipe = builtin(name).with_features(features, &[]).unwrap();
        runs.push(Run::new(name, &recipe, &request));
    };
    let sp = |request: LayoutRequest| LayoutRequest { sp: Some(true), ..request };
    for name in ["nam56r", "nam56r-mini"] {
        for features in [&[][..], &[Feature::Mtp]] {
            add(name, features, in_mode(Mode::NemoNative, sp(degrees(2, 1, 1, 8))));
            add(name, features, in_mode(Mode::AuthorDp, degrees(1, 1, 1, 8)));
            add(name, features, in_mode(Mode::AuthorDp, degrees(1, 2, 8, 16)));
        }
        let all = [Feature::Mla, Feature::Dsa, Feature::Mtp, Feature::NgramHash, Feature::Structure];
        add(name, &all, in_mode(Mode::AuthorDp, degrees(1, 1, 1, 8)));
    }
    add("llama3-8b", &[], sp(degrees(2, 1, 1, 8)));
    add("llama3-70b", &[], sp(degrees(8, 4, 1, 32)));
    add("llama3-405b", &[], sp(degrees(8, 18, 1, 144)));
    add("mixtral-8x7b", &[], degrees(1, 4, 8, 32));
    add("qwen3-30b-a3b", &[], degrees(1, 2, 8, 16));
    add("qwen3-235b-a22b", &[], degrees(1, 8, 16, 128));
    add("deepseek-v2-lite", &[], degrees(1, 1, 8, 8));
    add("deepseek-v3", &[], degrees(1, 16, 8, 128));
    add("deepseek-v3", &[Feature::Mtp], degrees(1, 16, 8, 128));
    add("nemotron-h-8b", &[], sp(degrees(2, 1, 1, 8)));
    add("nemotron-3-nano-30b-a3b", &[], degrees(1, 2, 8, 16));
    add("gpt3-175b", &[], sp(degrees(8, 8, 1, 64)));
    add("gpt3-175b", &[], degrees(8, 1, 1, 8));
    add("turing-530b", &[], sp(degrees(8, 35, 1, 280)));
    runs
}

#[test]
fn every_built_in_recipe_is_replayed_and_its_parameters_are_those_it_owns() {
    let runs = runs();
    for (name, _) in recipe::builtin::RECIPES {
        assert!(runs.iter().any(|run| run.name.starts_with(name)), "{name}");
    }
    for run in &runs {
        let table = OwnershipTable::new(&run.recipe, &run.layout).unwrap();
        let mesh = Mesh::new(&run.layout, Order::Megatron, run.recipe.uses(Mixer::Moe)).unwrap();
        for rank in [0, run.layout.world - 1] {
            let replay = run.replay(rank, 2);
            assert_eq!(replay.params, table.rank_params(&run.layout, &mesh, rank), "{} rank {rank}", run.name);
            assert_eq!(replay.by_line().iter().sum::<u64>(), replay.allocated_peak(), "{}", run.name);
        }
    }
}

#[test]
fn steps_leak_nothing() {
    for run in runs() {
        let kept = |steps| {
            let retained = run.replay(run.layout.world - 1, steps).retained;
            retained.into_iter().map(|h| (h.stand, h.name, h.count)).collect::<BTreeSet<_>>()
        };
        assert_eq!(kept(1), kept(3), "{}", run.name);
    }
}
