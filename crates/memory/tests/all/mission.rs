//! Properties of the lines that the mission states: which axis owns which line, and that nothing
//! is lost or counted twice.

use case::asked::{EngineChoice, PrecisionChoice};
use case::options::Scaling;
use case::{Case, Options, Terms};
use hardware::Cluster;
use layout::{Engine, LayoutRequest, Mesh, Order, Recompute};
use memory::fit::{
    Breaks, Entry, Fit, HEADROOM, Margin, Overload, RankClass, Verdict, at_overloads, checklist, levers, review,
};
use recipe::precision::OptimizerPolicy;
use recipe::{Mixer, Recipe};
use replay::Line;
use units::Bytes;

fn recipe(name: &str) -> Recipe {
    let mut recipe = recipe::builtin::find(name).unwrap();
    recipe.optimizer = OptimizerPolicy::default();
    recipe
}

fn request(tp: u64, pp: u64, ep: u64) -> LayoutRequest {
    LayoutRequest {
        tp: Some(tp),
        pp: Some(pp),
        ep: Some(ep),
        etp: (ep > 1).then_some(1),
        world: Some(32),
        sequence: Some(4096),
        microbatches: Some(4),
        ..LayoutRequest::default()
    }
}

fn case_of(recipe: &Recipe, request: &LayoutRequest) -> Case {
    let cluster = Cluster::parse("4x8xH200").unwrap();
    let request = LayoutRequest { engine: Some(Engine::Megatron), ..request.clone() };
    let case = Case::laid_out(recipe.clone(), &request, Some(cluster), Terms::SPLIT);
    case.unwrap_or_else(|findings| panic!("{findings:?}"))
}

/// Prices a request and hands the result to `then`.
fn priced<T>(recipe: &Recipe, request: &LayoutRequest, then: impl FnOnce(&Case, &Fit) -> T) -> T {
    let case = case_of(recipe, request);
    let fit = Fit::price(&case, HEADROOM).unwrap();
    then(&case, &fit)
}

fn lines(recipe: &Recipe, request: &LayoutRequest) -> RankClass {
    priced(recipe, request, |_, fit| fit.classes[0].clone())
}

const PARAMS: [Line; 3] = [Line::ReplicatedParams, Line::TpParams, Line::ExpertParams];

/// A2: the tensor axis divides what it owns.
#[test]
fn more_tp_never_raises_a_tp_line() {
    let recipe = recipe("nemotron-h-8b");
    let held: Vec<u64> =
        [1, 2, 4, 8].map(|tp| lines(&recipe, &request(tp, 1, 1)).line(Entry::Ledger(Line::TpParams))).to_vec();
    // A line is the axis's that divides it at any degree, at one rank too.
    assert!(held.windows(2).all(|w| w[1] < w[0]), "{held:?}");
}

/// A2, A4: the expert axis owns banks and nothing else.
#[test]
fn ep_never_changes_a_line_it_does_not_own() {
    let recipe = recipe("nemotron-3-nano-30b-a3b");
    let [one, four] = [1, 4].map(|ep| lines(&recipe, &request(1, 1, ep)));
    for line in [Line::ReplicatedParams, Line::TpParams] {
        assert_eq!(one.line(Entry::Ledger(line)), four.line(Entry::Ledger(line)), "{line}");
    }
    let [whole, quarter] = [&one, &four].map(|class| class.line(Entry::Ledger(Line::ExpertParams)) as f64);
    assert!((whole / quarter / 4.0 - 1.0).abs() < 0.01, "{whole} {quarter}");
}

/// A4: sequence parallelism is activations on the tensor axis.
#[test]
fn sp_never_changes_a_parameter_and_shrinks_activations() {
    let recipe = recipe("llama3-8b");
    let [off, on] = [false, true].map(|sp| lines(&recipe, &LayoutRequest { sp: Some(sp), ..request(4, 1, 1) }));
    for line in PARAMS {
        assert_eq!(off.line(Entry::Ledger(line)), on.line(Entry::Ledger(line)), "{line}");
    }
    let activations = Entry::Ledger(Line::Activations);
    assert!(on.line(activations) < off.line(activations));
}

/// A11: no line is credited to an axis that does not own it.
#[test]
fn ranks_hold_the_model_once_a_replica() {
    for (name, tp, pp, ep) in [("llama3-8b", 2, 2, 1), ("nemotron-3-nano-30b-a3b", 2, 2, 4), ("mixtral-8x7b", 1, 4, 8)]
    {
        let recipe = recipe(name);
        priced(&recipe, &request(tp, pp, ep), |request, fit| {
            let table = &request.table;
            let mesh = Mesh::new(&request.layout, Order::Megatron, request.recipe.uses(Mixer::Moe)).unwrap();
            let owned: u64 =
                (0..request.layout.world).map(|rank| table.rank_params(&request.layout, &mesh, rank)).sum();
            let replayed: u64 = fit.classes.iter().map(|class| class.params * class.num_ranks).sum();
            assert_eq!(replayed, owned, "{name}");
            for class in &fit.classes {
                let bytes: u64 = PARAMS.iter().map(|line| class.line(Entry::Ledger(*line))).sum();
                let counted = 2 * class.params;
                assert!(
                    bytes >= counted && bytes - counted <= counted / 500 + (8 << 20),
                    "{name}: {bytes} for {counted}"
                );
            }
        });
    }
}

/// A1: separate lines, and nothing between them.
#[test]
fn lines_sum_to_the_total() {
    priced(&recipe("qwen3-30b-a3b"), &request(1, 2, 8), |_, fit| {
        assert_eq!(fit.classes.len(), 2, "one a stage");
        for class in &fit.classes {
            assert_eq!(class.lines.iter().map(|a| a.bytes).sum::<u64>(), class.total());
        }
    });
}

/// A5: routing has a line of its own, and a bound: the least hundredth that does not fit, on whichever stage.
#[test]
fn overload_raises_memory_and_breaks_where_it_says() {
    let breaks_at = |request: LayoutRequest| {
        priced(&recipe("qwen3-30b-a3b"), &request, |case, fit| {
            let headroom = |factor| at_overloads(case, &[factor]).unwrap()[0].headroom;
            let at = at_overloads(case, &[1.0, 1.5, 2.0]).unwrap();
            assert!(at.windows(2).all(|w| w[1].total > w[0].total), "{at:?}");
            let overload = Overload::of(case, fit, u64::MAX).unwrap();
            assert_eq!(overload.most, 8.0);
            match overload.breaks {
                Breaks::At(factor) => assert!(headroom(factor - 0.01) >= 0 && headroom(factor) < 0, "{overload:?}"),
                Breaks::Never => assert!(headroom(overload.most) >= 0, "{overload:?}"),
                _ => panic!("{overload:?}"),
            }
            for (factor, verdict) in overload.breaks_at().map_or(Vec::new(), |factor| {
                vec![(1.0, Verdict::Fits), (factor - 0.01, Verdict::Fits), (factor, Verdict::Tight)]
            }) {
                let margin = Margin { headroom: Bytes(0), overload: factor };
                let fit = Fit::price(case, margin).unwrap();
                assert_eq!(
                    (fit.verdict, fit.overloaded.is_some()),
                    (verdict, factor > 1.0),
                    "{factor} of {overload:?}"
                );
                assert_eq!(fit.tightest().headroom < 0, verdict == Verdict::Tight);
            }
            overload.breaks_at()
        })
    };
    let of = |pp, micro_batch, tokens| LayoutRequest {
        micro_batch: Some(micro_batch),
        sequence: Some(tokens),
        microbatches: Some(8),
        ..request(1, pp, 8)
    };
    assert_eq!(breaks_at(of(1, 1, 1024)), None);
    assert!(breaks_at(of(1, 2, 4096)).is_some_and(|factor| factor > 1.0));
    assert!(breaks_at(of(4, 4, 4096)).is_some_and(|factor| factor > 1.0));
    assert!(breaks_at(of(2, 3, 4096)).is_some_and(|factor| factor > 1.0));
}

/// Where no tokens move, or nobody replays where they go, that is what is said.
#[test]
fn routing_that_changes_nothing_or_is_not_replayed_is_said() {
    let of = |name: &str, request: LayoutRequest| {
        priced(&recipe(name), &request, |case, fit| Overload::of(case, fit, u64::MAX))
    };
    assert_eq!(of("llama3-8b", request(1, 1, 1)), None);
    let here = of("qwen3-30b-a3b", LayoutRequest { recompute: Some(Recompute::Full), ..request(2, 1, 1) }).unwrap();
    assert_eq!((here.most, here.operations), (1.0, 0));
    let case = case_of(&recipe("qwen3-30b-a3b"), &request(1, 1, 8));
    let fit = Fit::price(&case, HEADROOM).unwrap();
    assert_eq!(Overload::of(&case, &fit, 0).unwrap().breaks, Breaks::Untried);
    let fsdp2 = case.with(|asked| asked.layout.engine = Some(EngineChoice::One(Engine::Fsdp2))).unwrap();
    let fit = Fit::price(&fsdp2, HEADROOM).unwrap();
    let overload = Overload::of(&fsdp2, &fit, u64::MAX).unwrap();
    assert!(matches!(overload.breaks, Breaks::Unmodelled(_)), "{overload:?}");
}

/// A9: a change is reviewed line by line.
#[test]
fn levers_are_priced_and_a_review_names_what_grew() {
    let recipe = recipe("llama3-8b");
    let typed = request(2, 1, 1);
    priced(&recipe, &typed, |now, fit| {
        let found = levers(now, fit, u64::MAX, &|_| None).found;
        let full = found.iter().find(|l| l.change == "--recompute full").unwrap();
        assert!(full.saves_bytes > 0);
        assert!(found.windows(2).all(|w| w[0].saves_bytes >= w[1].saves_bytes));
        let bigger = LayoutRequest { micro_batch: Some(2), ..typed.clone() };
        priced(&recipe, &bigger, |_, after| {
            let review = review(fit, after);
            let grown = review.changes.iter().find(|c| c.entry == Entry::Ledger(Line::Activations)).unwrap();
            assert!(grown.delta() > 0);
            assert!(!review.changes.iter().any(|c| matches!(c.entry, Entry::Ledger(Line::TpParams))));
            assert_eq!(review.delta, after.worst().total() as i64 - fit.worst().total() as i64);
        });
    });
}

/// A12: the production checklist, with evidence.
#[test]
fn the_checklist_has_evidence_for_every_item() {
    priced(&recipe("qwen3-30b-a3b"), &request(1, 1, 8), |request, fit| {
        let items = checklist(request, fit);
        assert_eq!(items.len(), 7);
        assert!(items.iter().all(|item| !item.evidence.is_empty()));
        assert!(items.iter().find(|i| i.what.starts_with("dispatch")).unwrap().holds);
    });
}

/// A6: the tail is modelled, and the datasheet is not the budget.
#[test]
fn a_device_is_never_spent_to_its_datasheet() {
    priced(&recipe("llama3-8b"), &request(1, 1, 1), |request, fit| {
        let worst = fit.worst();
        assert!((1 << 30..8 << 30).contains(&worst.outside), "context and communicators are real");
        assert_eq!(worst.headroom, request.on().device.visible_bytes() as i64 - worst.total() as i64);
        assert!(worst.reserved_peak >= worst.allocated_peak);
    });
}

/// A3: state follows each tensor's optimizer, never one multiplier.
#[test]
fn muon_and_adamw_are_priced_apart() {
    let with = |policy: OptimizerPolicy| {
        let mut recipe = recipe::builtin::find("nemotron-h-8b").unwrap();
        recipe.optimizer = policy;
        lines(&recipe, &request(2, 1, 1))
    };
    let (adam, muon) = (with(OptimizerPolicy::default()), with(OptimizerPolicy::muon()));
    let of = |class: &RankClass, line| class.line(Entry::Ledger(line));
    assert_eq!(of(&adam, Line::MatrixOptimizer), 0);
    assert!(of(&muon, Line::MatrixOptimizer) > of(&muon, Line::OtherOptimizer));
    let state = |class| of(class, Line::MatrixOptimizer) + of(class, Line::OtherOptimizer);
    assert!(state(&muon) < state(&adam), "one moment is less than two");
}

/// A8: every line says what it scales with and what leaves it alone.
#[test]
fn every_line_explains_itself() {
    priced(&recipe("qwen3-30b-a3b"), &request(1, 1, 8), |_, fit| {
        assert!(fit.worst().lines.len() >= 8, "{:?}", fit.worst().lines);
        for amount in &fit.worst().lines {
            assert!(!amount.scaling.words.is_empty(), "{:?}", amount.entry);
        }
    });
}

/// A10: formats of weights, gradients and products are priced separately.
#[test]
fn formats_move_their_own_lines() {
    let case = case_of(&recipe("llama3-8b"), &request(2, 1, 1));
    let price = |change: fn(&mut Options)| Fit::price(&case.with_options(change), HEADROOM).unwrap().worst().clone();
    let plain = price(|_| {});
    let thin = price(|o| o.state.gradients = recipe::Dtype::Bf16);
    let fp8 = price(|o| *o = o.in_precision(PrecisionChoice::Scaled(Scaling::Tensorwise)));
    let of = |class: &RankClass, line| class.line(Entry::Ledger(line));
    assert!(of(&thin, Line::Gradients) * 10 < of(&plain, Line::Gradients) * 7);
    assert_eq!(of(&thin, Line::TpParams), of(&plain, Line::TpParams));
    assert!(of(&fp8, Line::Activations) < of(&plain, Line::Activations));
    assert!(of(&fp8, Line::Workspaces) > of(&plain, Line::Workspaces), "cached fp8 weights have a line");
}

/// Offload: AdamW only, whole tensors largest first, monotone, and the least that fits is a lever.
#[test]
fn offload_moves_whole_tensors_and_says_the_least_that_fits() {
    let recipe = recipe("llama3-8b");
    let typed = LayoutRequest { micro_batch: Some(3), ..request(1, 1, 1) };
    let adam = Entry::Ledger(Line::OtherOptimizer);
    priced(&recipe, &typed, |now, fit| {
        let held = |optimizer: f64, activations: f64| {
            let moved = now.with_options(|options| {
                (options.offload, options.offload_activations) = (optimizer, activations);
            });
            Fit::price(&moved, HEADROOM).unwrap().worst().clone()
        };
        let states: Vec<u64> = [0.0, 0.1, 0.5, 1.0].map(|share| held(share, 0.0).line(adam)).to_vec();
        assert!(states.windows(2).all(|w| w[1] < w[0]), "{states:?}");
        assert_eq!(states[3], 0);
        let half = held(0.0, 0.5);
        assert!(half.total() < fit.worst().total() && half.offload.link_seconds > 0.0);
        assert_eq!(half.lines.iter().map(|a| a.bytes).sum::<u64>(), half.total());
        let needed = Bytes(fit.worst().headroom as u64 + (1 << 30));
        let found = levers(now, &Fit::price(now, needed).unwrap(), u64::MAX, &|_| None).found;
        let least = found.iter().find(|l| l.costs.starts_with("the least")).unwrap();
        assert!(least.headroom_bytes >= needed.0 as i64, "{least:?}");
    });
}
