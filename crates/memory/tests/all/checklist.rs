//! A12: every item of the checklist can fail.

use case::{Case, Terms};
use hardware::Cluster;
use layout::{Engine, LayoutRequest, Recompute, request::RecomputeModule};
use memory::fit::{Entry, Fit, HEADROOM, Item, checklist};
use recipe::Mode;
use replay::Line;
use units::Bytes;

fn case(name: &str, on: &str, request: LayoutRequest) -> Case {
    let recipe = recipe::builtin::find(name).unwrap();
    let cluster = Cluster::parse(on).unwrap();
    Case::laid_out(recipe, &request, Some(cluster), Terms::RUN).unwrap_or_else(|findings| panic!("{findings:?}"))
}

fn experts(engine: Engine) -> Case {
    case(
        "nam56r",
        "8xH200",
        LayoutRequest {
            ep: Some(8),
            etp: Some(1),
            tp: Some(1),
            mode: Some(Mode::AuthorDp),
            engine: Some(engine),
            ..LayoutRequest::default()
        },
    )
}

fn run(case: &Case) -> (Fit, Vec<Item>) {
    let fit = Fit::price(case, HEADROOM).unwrap();
    let items = checklist(case, &fit);
    (fit, items)
}

/// The items that do not hold, by their place on the list.
fn failing(items: &[Item]) -> Vec<usize> {
    (0..items.len()).filter(|at| !items[*at].holds).collect()
}

fn without(mut fit: Fit, line: Line) -> Fit {
    let worst = fit.worst;
    for amount in fit.classes[worst].lines.iter_mut().filter(|amount| amount.entry == Entry::Ledger(line)) {
        amount.bytes = 0;
    }
    fit
}

#[test]
fn a_sound_job_passes() {
    let (_, items) = run(&experts(Engine::Megatron));
    assert_eq!(items.len(), 7);
    assert!(failing(&items).is_empty(), "{items:?}");
}

#[test]
fn parts_that_a_mode_gives_up_are_not_the_real_features() {
    let native =
        LayoutRequest { mode: Some(Mode::NemoNative), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let (_, items) = run(&case("nam56r", "8xH200", native));
    assert_eq!(failing(&items), [0], "{items:?}");
    assert!(items[0].evidence.contains("not the recipe's"), "{}", items[0].evidence);
}

#[test]
fn gradients_are_priced_in_the_format_they_are_accumulated_in() {
    let (_, items) = run(&case(
        "llama3-8b",
        "8xH200",
        LayoutRequest { engine: Some(Engine::Deepspeed), ..LayoutRequest::default() },
    ));
    assert!(!failing(&items).contains(&0) && items[0].evidence.contains("gradients fp32"), "{items:?}");
}

/// Items that guard against a line the estimate lost.
#[test]
fn a_lost_line_is_seen() {
    let job = experts(Engine::Megatron);
    let (fit, _) = run(&job);
    for (line, at) in
        [(Line::ReplicatedParams, 1), (Line::MatrixOptimizer, 2), (Line::OtherOptimizer, 2), (Line::RoutingScratch, 3)]
    {
        assert_eq!(failing(&checklist(&job, &without(fit.clone(), line))), [at], "{line}");
    }
}

/// Our own runtime computes activations inside experts again whatever is asked: naming them saves
/// nothing, and the estimate must not be taken for one that does.
#[test]
fn a_policy_that_saves_nothing_is_seen() {
    let again = Recompute::Selective(vec![RecomputeModule::MoeAct]);
    let job = experts(Engine::Shardwright).with(|asked| asked.layout.recompute = Some(again)).unwrap();
    let (_, items) = run(&job);
    assert_eq!(failing(&items), [4], "{items:?}");
    let full = experts(Engine::Shardwright).with(|asked| asked.layout.recompute = Some(Recompute::Full)).unwrap();
    assert!(failing(&run(&full).1).is_empty());
}

/// 70 billion parameters train nowhere near one device, nor are they served there.
#[test]
fn a_model_that_leaves_no_room_for_a_cache_is_seen() {
    let request = LayoutRequest { engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let (_, items) = run(&case("llama3-70b", "1xH100", request));
    assert_eq!(failing(&items), [5, 6], "{items:?}");
}

#[test]
fn headroom_that_is_not_there_is_seen() {
    let job = experts(Engine::Megatron);
    let fit = Fit::price(&job, Bytes(130 << 30)).unwrap();
    assert_eq!(failing(&checklist(&job, &fit)), [6]);
}
