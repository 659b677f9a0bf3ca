//! A search says what it will take before it takes it: an axis with too many values is trimmed by name, a
//! search that is still too long is refused, and short replays stop at the limit.

use crate::common;
use diag::Finding;
use hardware::Cluster;
use layout::{Engine, LayoutRequest};
use recipe::Recipe;
use search::{
    Effort, Found, Left, Question, Replays, Scope, Space, answer, lay_out, may_fit, nearest, pricers, search,
};
use units::Bytes;
use work::{Asked, Limit};

fn deep(depth: usize) -> Recipe {
    let text = format!(
        "name = \"deep\"\npattern = \"(AF)\"\ndepth = {depth}\nhidden = 1024\nvocab = 8192\nsequence = 1024\n\
         [attention]\nheads = 16\nkv_heads = 8\nhead_dim = 64\n[mlp]\nffn = 4096\n"
    );
    Recipe::parse(&text).unwrap_or_else(|e| panic!("{e:?}"))
}

fn up_to(operations: u64) -> Limit {
    Limit { operations, ..Limit::none() }
}

fn pinned(engine: Engine) -> LayoutRequest {
    LayoutRequest { engine: Some(engine), global_batch: Some(16), cp: Some(1), ..LayoutRequest::default() }
}

fn rules(findings: &[Finding]) -> Vec<(&str, &str)> {
    findings.iter().map(|finding| (finding.rule, finding.object.as_str())).collect()
}

#[test]
fn of_very_many_chunks_powers_of_two_are_searched() {
    let (recipe, cluster) = (deep(300), Cluster::parse("2xH200").unwrap());
    let pinned = LayoutRequest { micro_batch: Some(1), tp: Some(1), pp: Some(2), ..pinned(Engine::Megatron) };
    let space = common::space(common::question(&recipe, &cluster, &pinned, Bytes(0)));
    assert_eq!(rules(&space.trimmed), [("plan/trimmed", "vpp")]);
    let chunks: Vec<u64> = space.modes[0].orders[&2].iter().map(|order| order.vpp).filter(|vpp| *vpp > 62).collect();
    assert_eq!(chunks, [63, 64, 128]);
    let shallow = deep(100);
    let space = common::space(common::question(&shallow, &cluster, &pinned, Bytes(0)));
    assert!(space.trimmed.is_empty());
}

#[test]
fn a_search_beyond_its_limit_is_trimmed_and_then_refused() {
    let recipe = recipe::builtin::find("deepseek-v3").unwrap();
    let cluster = Cluster::parse("1024x8xH200").unwrap();
    let pinned = LayoutRequest { engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let refused = |limit: &Limit| {
        let question = Question { limit, ..common::question(&recipe, &cluster, &pinned, Bytes(0)) };
        lay_out(question, Effort::Bounded).err().expect("this is more than the limit allows")
    };
    let findings = refused(&up_to(1_000_000));
    assert_eq!(rules(&findings), [("work/operations", "operations")]);
    let hint = findings[0].hint.as_deref().unwrap();
    assert!(hint.contains("--pp") && hint.contains("--work-limit"), "{hint}");
    assert!(findings[0].message.starts_with("searching deepseek-v3 over 8,192 devices takes about"), "{findings:?}");
    let findings = refused(&Limit { bytes: 1 << 10, ..Limit::none() });
    assert_eq!(rules(&findings), [("work/bytes", "memory")]);
}

#[test]
fn tensor_parallelism_is_kept_to_a_node_where_all_of_it_is_too_much() {
    let recipe = recipe::builtin::find("deepseek-v3").unwrap();
    let cluster = Cluster::parse("1024x8xH200").unwrap();
    let pinned = LayoutRequest { engine: Some(Engine::Megatron), vpp: Some(1), ..LayoutRequest::default() };
    let question = common::question(&recipe, &cluster, &pinned, Bytes(0));
    let most_tp = |space: &Space| space.modes[0].keys.iter().map(|key| key.tp).max();
    let all = Space::new(question).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!((most_tp(&all), rules(&all.trimmed)), (Some(8192), vec![]));
    let limit = up_to(50_000_000);
    let some = Space::new(Question { limit: &limit, ..question }).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!((most_tp(&some), rules(&some.trimmed)), (Some(8), vec![("plan/trimmed", "tp")]));
}

fn of_fsdp2(limit: &Limit, headroom: u64) -> Found {
    let recipe = recipe::builtin::find("llama3-8b").unwrap();
    let cluster = Cluster::parse("8xH200").unwrap();
    let pinned = LayoutRequest { sequence: Some(2048), vpp: Some(1), ..pinned(Engine::Fsdp2) };
    let question = common::question(&recipe, &cluster, &pinned, Bytes(headroom << 30));
    let space = common::space(Question { limit, ..question });
    search(&space, &pricers(&space), (Scope::all(3), Effort::Bounded), &mut Left::of(&space), &|_, _| true)
}

fn seen(found: &Found) -> u64 {
    let tally = &found.tally;
    tally.priced + tally.bounded + tally.unseen + tally.unpriced.values().sum::<u64>()
}

/// Layouts of engines without cheap sums are priced one by one, the most promising first: bounds leave most
/// of them out although they are few enough for one batch of keys.
#[test]
fn replays_are_saved_by_bounds() {
    let found = of_fsdp2(&Limit::none(), 4);
    assert_eq!(seen(&found), found.counts.legal);
    assert!(found.best[0].top.len() == 3 && found.tally.unseen == 0);
    assert!(found.tally.bounded > found.tally.priced, "{:?}", found.tally);
}

/// Hardly anything fits, most of it not for its state, so that neither bounds nor counts leave it out: the limit
/// does.
#[test]
fn replays_stop_at_the_limit() {
    let found = of_fsdp2(&up_to(250_000_000), 116);
    assert_eq!(seen(&found), found.counts.legal);
    assert!(found.tally.priced > 0 && found.tally.unseen > 0, "{:?}", found.tally);
}

/// Where state alone is more than a device has, that is counted: a few short replays are for the layout that
/// is shown, however many do not fit.
#[test]
fn what_state_rules_out_is_not_replayed() {
    let recipe = recipe::builtin::find("deepseek-v3").unwrap();
    let cluster = Cluster::parse("2x8xH100").unwrap();
    for engine in [Engine::Fsdp2, Engine::Torchtitan] {
        let pinned = LayoutRequest { engine: Some(engine), ..LayoutRequest::default() };
        let limit = up_to(10_000_000_000);
        let question = Question { limit: &limit, ..common::question(&recipe, &cluster, &pinned, Bytes(0)) };
        assert!(!may_fit(question), "{engine}");
        let space = common::space(question);
        let (pricers, mut left) = (pricers(&space), Left::of(&space));
        let mut found = search(&space, &pricers, (Scope::all(3), Effort::Bounded), &mut left, &|_, _| true);
        let nearest = nearest(&space, &pricers, &mut found, &mut left);
        assert_eq!((found.tally.unseen, found.tally.fit), (0, 0), "{:?}", found.tally);
        assert!(found.tally.priced > 1000 && nearest.is_some(), "{:?}", found.tally);
        let probes: u64 = space.modes.iter().map(|mode| mode.estimator.probes()).sum();
        assert!(probes < 600, "{probes} short replays");
    }
}

/// What the sums let pass and replays do not is refuted stage by stage: replayed whole, it took all of an answer's limit
/// before anything had passed, and a narrower question found what this one did not.
#[test]
fn something_is_found_before_the_limit() {
    let recipe = recipe::builtin::find("qwen3-235b-a22b").unwrap();
    let cluster = Cluster::parse("64xA100").unwrap();
    let pinned = LayoutRequest {
        engine: Some(Engine::Fsdp2),
        global_batch: Some(1024),
        sequence: Some(1024),
        ..LayoutRequest::default()
    };
    let limit = Limit::of_an_answer(Asked::default(), None);
    let question = common::question(&recipe, &cluster, &pinned, Bytes(6 << 30));
    let space = common::space(Question { limit: &limit, ..question });
    let (pricers, mut left) = (pricers(&space), Left::of(&space));
    let mut found = search(&space, &pricers, (Scope::all(1), Effort::Bounded), &mut left, &|_, _| true);
    let answered = answer(&space, &pricers, &mut found, &mut left, Replays::Best);
    assert!(answered.best().is_some(), "{:?}", found.tally);
}

/// Replays take of the same limit: what is not left is not begun, and what it may have been faster by is said.
#[test]
fn a_replay_beyond_what_is_left_is_not_begun() {
    let recipe = recipe::builtin::find("llama3-8b").unwrap();
    let cluster = Cluster::parse("8xH200").unwrap();
    let pinned = LayoutRequest { sequence: Some(2048), ..pinned(Engine::Fsdp2) };
    let answered = |operations: Option<u64>| {
        let space = common::space(common::question(&recipe, &cluster, &pinned, Bytes(4 << 30)));
        let pricers = pricers(&space);
        let mut left = Left { operations: operations.unwrap_or(u64::MAX) };
        let mut found = search(&space, &pricers, (Scope::all(3), Effort::Bounded), &mut left, &|_, _| true);
        let answered = answer(&space, &pricers, &mut found, &mut left, Replays::Around);
        let proof = answered.modes[0].fastest.as_ref().map(|_| answered.modes[0].unproved);
        let why: Vec<String> = found.verdicts.refuted(&space, 0).map(|(_, refused)| refused.why.clone()).collect();
        (proof, u64::MAX - left.operations, why)
    };
    let (proof, took, _) = answered(None);
    assert!(proof == Some(0.0) && took > 0);
    let (proof, _, why) = answered(Some(1000));
    assert_eq!(proof, None);
    assert!(!why.is_empty() && why.iter().all(|why| why.ends_with("are left of --work-limit")), "{why:?}");
}
