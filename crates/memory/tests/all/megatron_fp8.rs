//! Fp8 recipes of the Megatron ledger: what they save, and what weights kept in fp8 save besides.

use layout::{Layout, LayoutRequest, StagePlan, ZeroStage, check};
use ledger::megatron::{Fp8Recipe, Job, MegatronOptions, Routing, explain};
use recipe::Recipe;
use replay::Replay;
use replay::{Line, Unmodelled};
use std::collections::BTreeSet;

const RECIPES: [Fp8Recipe; 5] =
    [Fp8Recipe::Delayed, Fp8Recipe::Tensorwise, Fp8Recipe::Blockwise, Fp8Recipe::Mxfp8, Fp8Recipe::Nvfp4];
const WEIGHTS: [Line; 3] = [Line::TpParams, Line::ReplicatedParams, Line::ExpertParams];
const OPTIMIZERS: [Line; 2] = [Line::OtherOptimizer, Line::MatrixOptimizer];

struct Run {
    recipe: Recipe,
    layout: Layout,
}

impl Run {
    fn new(name: &str, request: LayoutRequest) -> Run {
        let checked = check(&recipe::builtin::find(name).unwrap(), &request);
        let layout = checked.layout.unwrap_or_else(|| panic!("{name}: {:#?}", checked.findings));
        Run { recipe: checked.recipe, layout }
    }

    fn explain(&self, fp8: Option<Fp8Recipe>, fp8_param_gather: bool, steps: u32) -> Result<Replay, Unmodelled> {
        let stages = StagePlan::new(&self.recipe, &self.layout, None).unwrap();
        let options = MegatronOptions {
            fp8,
            fp8_param_gather,
            steps,
            routing: Routing::Balanced,
            ..MegatronOptions::of(&self.recipe)
        };
        explain(&Job { recipe: &self.recipe, layout: &self.layout, stages: &stages, rank: 0, options: &options })
    }
}

fn degrees(tp: u64, ep: u64, world: u64) -> LayoutRequest {
    let zero = Some(ZeroStage::One);
    LayoutRequest {
        tp: Some(tp),
        sp: Some(tp > 1),
        pp: Some(1),
        ep: Some(ep),
        world: Some(world),
        zero,
        ..LayoutRequest::default()
    }
}

fn runs() -> Vec<Run> {
    vec![
        Run::new("llama3-8b", degrees(1, 1, 1)),
        Run::new("llama3-8b", degrees(2, 1, 2)),
        Run::new("llama3-8b", degrees(2, 1, 8)),
        Run::new("qwen3-30b-a3b", degrees(1, 8, 8)),
    ]
}

/// Bytes on some lines, at the highest point of the steps.
fn on(replay: &Replay, lines: &[Line]) -> u64 {
    replay.holders.iter().filter(|holder| lines.contains(&holder.line)).map(|holder| holder.bytes).sum()
}

/// What experts save in bf16 is the dispatched tokens, which stand on the routing line.
#[test]
fn narrower_formats_save_fewer_activations() {
    for run in runs() {
        let saved = |fp8| on(&run.explain(fp8, false, 2).unwrap(), &[Line::Activations, Line::RoutingScratch]);
        let (plain, mxfp8, nvfp4) = (saved(None), saved(Some(Fp8Recipe::Mxfp8)), saved(Some(Fp8Recipe::Nvfp4)));
        assert!(nvfp4 < mxfp8 && mxfp8 < plain, "{}: {nvfp4} {mxfp8} {plain}", run.layout.flags());
    }
}

/// The most, over the line, that the optimizer's may differ: two buffers are cut into other shards
/// than one, and a reused block may be larger than asked for.
const SLACK: f64 = 0.002;

#[test]
fn weights_kept_in_fp8_move_their_own_lines_only() {
    for run in runs() {
        for fp8 in RECIPES {
            let (plain, kept) = (run.explain(Some(fp8), false, 2).unwrap(), run.explain(Some(fp8), true, 2).unwrap());
            let name = format!("{} {fp8:?}", run.layout.flags());
            assert_eq!(plain.params, kept.params);
            assert!(on(&kept, &WEIGHTS) < on(&plain, &WEIGHTS), "{name}");
            assert!(on(&kept, &[Line::Workspaces]) < on(&plain, &[Line::Workspaces]), "{name}");
            assert_eq!(on(&kept, &[Line::Gradients]), on(&plain, &[Line::Gradients]), "{name}");
            let (before, after) = (on(&plain, &OPTIMIZERS), on(&kept, &OPTIMIZERS));
            assert!(before.abs_diff(after) as f64 <= SLACK * before as f64, "{name}: {before} {after}");
        }
    }
}

#[test]
fn steps_leak_nothing() {
    for run in runs() {
        for (fp8, gathers) in RECIPES.into_iter().flat_map(|fp8| [(fp8, false), (fp8, true)]) {
            let kept = |steps| {
                let retained = run.explain(Some(fp8), gathers, steps).unwrap().retained;
                retained.into_iter().map(|h| (h.origin, h.name, h.count)).collect::<BTreeSet<_>>()
            };
            assert_eq!(kept(1), kept(3), "{} {fp8:?} {gathers}", run.layout.flags());
        }
    }
}

#[test]
fn weights_are_kept_in_fp8_only_where_megatron_does() {
    let run = Run::new("llama3-8b", degrees(1, 1, 1));
    assert!(run.explain(None, true, 1).is_err(), "without fp8 products");
    let whole = Run::new("llama3-8b", LayoutRequest { zero: Some(ZeroStage::Zero), ..degrees(1, 1, 2) });
    assert!(whole.explain(Some(Fp8Recipe::Mxfp8), true, 1).is_err(), "without the distributed optimizer");
}
