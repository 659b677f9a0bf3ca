//! Recipe → Megatron's arguments → `import`: the same recipe, or the launch was refused by name.

use crate::common;
use case::Seams;
use launch::schedulers::{Scheduler, files};
use layout::{Engine, LayoutRequest};
use recipe::import::megatron_args;
use recipe::kinds::attention::AttentionKind;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::moe::{BalanceOver, GroupScore, ScoreFunction};
use recipe::{Mixer, Pattern, Positions, Recipe, Rope, Scaling, Yarn};

/// What an argument list can say of a recipe: everything but its name and source, modes, features that are off,
/// blocks that no layer has, number formats, and tiles of a kernel.
fn sayable(recipe: &Recipe) -> Recipe {
    let mut view = recipe.clone();
    view.attention = recipe.attention().filter(|_| recipe.uses(Mixer::Attention));
    view.moe.take_if(|_| !recipe.uses(Mixer::Moe));
    view.mamba.take_if(|_| !recipe.uses(Mixer::Mamba));
    view.gated_delta.take_if(|_| !recipe.uses(Mixer::GatedDelta));
    view.mlp.take_if(|_| !recipe.uses(Mixer::Mlp));
    if let Some(Mamba::Two(mamba)) = &mut view.mamba {
        mamba.chunk = 128;
    }
    view.features.mla = None;
    view.features.mtp.take_if(|mtp| !mtp.on);
    view.features.dsa.take_if(|dsa| !dsa.on);
    (view.features.ngram_hash, view.features.structure) = (None, None);
    view.pattern = Pattern::describe(&view.layers);
    (view.name, view.source, view.modes, view.notes) = ("".into(), "".into(), Vec::new(), Vec::new());
    (view.precision, view.recurrent) = (Default::default(), None);
    view
}

/// Reads a launch back; `None` where it was refused, or where a patch of one's own stands.
fn back(recipe: &Recipe, request: &LayoutRequest, name: &str) -> Option<()> {
    let case = common::Case::new(recipe, request, Seams::Refuse).ok()?;
    let emission = match case.emit() {
        Ok(emission) => emission,
        Err(findings) => {
            assert!(findings.iter().all(|f| f.rule.contains('/') && !f.object.is_empty()), "{name}: {findings:?}");
            return None;
        }
    };
    let has_layout = emission.arguments.iter().any(|a| a.flag == "--pipeline-model-parallel-layout");
    if has_layout || emission.seams.iter().any(|seam| !seam.gives_up) {
        return None;
    }
    let script = files(Scheduler::Torchrun, &case.job(), &emission).expect("files");
    let script = script.iter().find(|f| f.path == "launch.sh").expect("a script");
    let imported = megatron_args::import(&script.contents, "back").unwrap_or_else(|f| panic!("{name}: {f:#?}"));
    assert_eq!(sayable(&imported.recipe).to_toml(), sayable(&case.recipe).to_toml(), "{name}");
    Some(())
}

fn request() -> LayoutRequest {
    LayoutRequest { world: Some(8), tp: Some(1), engine: Some(Engine::Megatron), ..LayoutRequest::default() }
}

#[test]
fn every_built_in_recipe_comes_back() {
    let mut read = 0;
    for (name, recipe) in common::recipes() {
        for mode in common::modes(&recipe) {
            let tp = mode.map_or(1, recipe::Mode::tensor_parallel);
            let request = LayoutRequest { mode, tp: Some(tp), ..request() };
            read += usize::from(back(&recipe, &request, &name).is_some());
        }
    }
    assert!(read >= 12, "{read}");
}

/// Numbers from a seed: the same on every machine.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// One field changed to something an engine may or may not be able to say.
fn change(recipe: &mut Recipe, draw: &mut Draw) {
    let figure = draw.one(&[1e-3, 0.02, 0.5, 2.5, 1.0 / 3.0]);
    let rope = match &mut recipe.positions {
        Positions::Rope(rope) => rope,
        _ => &mut Rope::plain(1.0),
    };
    match draw.below(20) {
        0 => recipe.norm_eps = draw.one(&[1e-6, 1e-5, 1e-12]),
        1 => recipe.init_std = draw.one(&[None, Some(0.006), Some(0.02)]),
        2 => recipe.dropout = draw.one(&[0.0, 0.1, 0.25]),
        3 => rope.fraction = draw.one(&[1.0, 0.5, 0.25]),
        4 => rope.theta = draw.one(&[10_000.0, 1e6, 123_456.0, 0.5]),
        5 => {
            rope.scaling = draw.one(&[
                None,
                Some(Scaling::Linear { factor: 4.0 }),
                Some(Scaling::Linear { factor: 1.5 }),
                Some(Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192 }),
                Some(Scaling::Llama3 { factor: 8.0, low: 2.0, high: 4.0, original: 4096 }),
                Some(Scaling::Yarn(Yarn::usual(40.0, 4096))),
                Some(Scaling::Yarn(Yarn { mscale: Some(0.7), mscale_all_dim: Some(0.8), ..Yarn::usual(40.0, 4096) })),
                Some(Scaling::Yarn(Yarn { beta_fast: 16.0, ..Yarn::usual(40.0, 4096) })),
            ]);
        }
        6 => recipe.multipliers.residual = figure,
        7 => recipe.tied = !recipe.tied,
        8 => recipe.sequence = draw.one(&[1024, 4096]),
        _ => change_blocks(recipe, draw, figure),
    }
}

fn change_blocks(recipe: &mut Recipe, draw: &mut Draw, figure: f64) {
    let is_on = draw.below(2) == 1;
    if let Some(attention) = recipe.attention.as_mut().filter(|a| matches!(a.kind, AttentionKind::Gqa { .. })) {
        match draw.below(8) {
            0 => attention.dropout = draw.one(&[0.0, 0.1]),
            1 => attention.qkv_bias = is_on,
            2 => attention.output_gate = is_on,
            3 => attention.sinks = is_on,
            _ => {}
        }
    }
    let Some(moe) = &mut recipe.moe else { return };
    let router = &mut moe.router;
    match draw.below(12) {
        0 => router.aux_loss = draw.one(&[None, Some(figure)]),
        1 if router.aux_loss.is_some() => router.aux_loss_over = draw.one(&[BalanceOver::Batch, BalanceOver::Sequence]),
        2 => router.z_loss = draw.one(&[None, Some(figure)]),
        3 => router.normalize = is_on,
        4 => router.scaling = draw.one(&[1.0, figure]),
        5 => (router.groups, router.group_top_k, router.group_score) = (4, 2, GroupScore::TopTwo),
        6 => (router.groups, router.group_top_k, router.group_score) = (4, 2, GroupScore::Max),
        7 => router.score = draw.one(&[ScoreFunction::Softmax, ScoreFunction::Sigmoid]),
        8 => router.expert_bias = is_on,
        9 if router.expert_bias => router.bias_update_rate = draw.one(&[None, Some(figure)]),
        10 => moe.top_k = draw.one(&[1, 2, 4]),
        11 => moe.capacity_factor = draw.one(&[None, Some(1.25)]),
        _ => {}
    }
    if !moe.router.expert_bias {
        moe.router.bias_update_rate = None;
    }
    if moe.router.aux_loss.is_none() {
        moe.router.aux_loss_over = BalanceOver::Batch;
    }
}

#[test]
fn three_hundred_drawn_recipes_come_back_or_are_refused() {
    let names: Vec<&str> = recipe::builtin::RECIPES.iter().map(|(name, _)| *name).collect();
    let mut draw = Draw(7);
    let (mut tried, mut read) = (0, 0);
    while tried < 300 {
        let mut recipe = common::recipe(draw.one(&names));
        for _ in 0..1 + draw.below(5) {
            change(&mut recipe, &mut draw);
        }
        let name = format!("draw {tried}: {}", recipe.name.raw());
        let Ok(recipe) = recipe.validated() else { continue };
        tried += 1;
        let mode = recipe.modes.first().copied();
        let tp = mode.map_or(1, recipe::Mode::tensor_parallel);
        read += usize::from(back(&recipe, &LayoutRequest { mode, tp: Some(tp), ..request() }, &name).is_some());
    }
    assert!(read > 100, "{read} of {tried} came back");
}
