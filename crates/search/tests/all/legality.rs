//! Legality by table is what `layout::check` says, rule for rule, on random points of random
//! spaces.

use crate::common;
use diag::Severity;
use hardware::Cluster;
use layout::{Engine, LayoutRequest, check};
use proptest::prelude::*;
use search::{Effort, Order, Point, Space, lay_out};
use std::collections::BTreeSet;
use units::Bytes;

const RECIPES: &[&str] = &[
    "nam56r",
    "llama3-8b",
    "gpt3-175b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "mixtral-8x7b",
    "nemotron-3-nano-30b-a3b",
    "nemotron-h-8b",
];

const ENGINES: &[Option<Engine>] = &[
    None,
    Some(Engine::Megatron),
    Some(Engine::Fsdp2),
    Some(Engine::Torchtitan),
    Some(Engine::Deepspeed),
    Some(Engine::Nanotron),
    Some(Engine::Maxtext),
    Some(Engine::XlaSpmd),
    Some(Engine::Shardwright),
];

/// The rules that refuse a point, as the tables say.
fn by_table(space: &Space, point: &Point, dp: u64) -> BTreeSet<&'static str> {
    let rules = &space.modes[point.mode].rules;
    let microbatches = space.microbatches(&point.key, dp);
    let mask = rules.mesh(&point.key, point.pp, dp)
        | rules.order(point.pp, point.order, microbatches)
        | rules.state(point.pp, point.key.ep, point.zero)
        | rules.recompute(point.recompute);
    rules.names(mask).collect()
}

/// The same as `layout::check` says of the whole layout.
fn by_check(space: &Space, point: &Point) -> BTreeSet<&'static str> {
    let realm = &space.modes[point.mode];
    let pinned = space.question.pinned;
    let request = LayoutRequest {
        world: Some(space.world),
        tp: Some(point.key.tp),
        cp: Some(point.key.cp),
        pp: Some(point.pp),
        vpp: Some(point.order.vpp),
        ep: Some(point.key.ep),
        etp: Some(point.key.etp),
        zero: Some(point.zero),
        micro_batch: Some(point.key.micro_batch),
        global_batch: match space.batch {
            search::Batch::Global(global) => Some(global),
            search::Batch::Count(_) => None,
        },
        sequence: Some(space.sequence),
        schedule: Some(point.order.schedule),
        recompute: Some(realm.recompute[point.recompute].clone()),
        mode: realm.mode,
        ..pinned.clone()
    };
    let checked = check(space.question.recipe, &request);
    checked.findings.iter().filter(|f| f.severity == Severity::Error).map(|f| f.rule).collect()
}

/// Picks an item by a number that may be anything.
fn pick<T>(list: &[T], seed: u64) -> &T {
    &list[(seed % list.len() as u64) as usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tables_say_what_the_rules_say(
        recipe in prop::sample::select(RECIPES),
        engine in prop::sample::select(ENGINES),
        devices in prop::sample::select(&[8u64, 16, 24, 64][..]),
        batch in prop::option::of(prop::sample::select(&[12u64, 64, 100, 256][..])),
        zero in prop::option::of(prop::sample::select(layout::ZeroStage::ALL)),
        microbatches in prop::option::weighted(0.2, 1u64..9),
        seeds in prop::collection::vec(any::<[u64; 5]>(), 40),
    ) {
        let recipe = recipe::builtin::find(recipe).unwrap();
        let cluster = Cluster::parse(&format!("{devices}xH200")).unwrap();
        let zero = zero.map(|(_, zero)| zero);
        let pinned = LayoutRequest { engine, global_batch: batch, microbatches, zero, ..LayoutRequest::default() };
        let space = match lay_out(common::question(&recipe, &cluster, &pinned, Bytes(0)), Effort::Bounded) {
            Ok(space) => space,
            Err(refused) => {
                // An engine whose ledger or modes do not run the recipe has no space at all.
                prop_assert!(refused.iter().all(|finding| finding.rule == "plan/ledger"), "{:?}", refused);
                return Ok(());
            }
        };
        let mut compared = 0;
        for [a, b, c, d, e] in seeds {
            let index = (a % space.modes.len() as u64) as usize;
            let realm = &space.modes[index];
            let key = *pick(&realm.keys, b);
            let pps: Vec<u64> = realm.orders.keys().copied().filter(|pp| space.replicas(&key, *pp).is_some()).collect();
            let Some(&pp) = pps.get((c % pps.len().max(1) as u64) as usize) else { continue };
            let order: Order = *pick(&realm.orders[&pp], d);
            let point = Point {
                mode: index,
                key,
                pp,
                order,
                shape: 0,
                zero: *pick(&space.zero, e),
                recompute: (e % realm.recompute.len() as u64) as usize,
                offload: search::Offload::Device,
            };
            let dp = space.replicas(&key, pp).unwrap();
            prop_assert_eq!(by_table(&space, &point, dp), by_check(&space, &point), "{:?}", point);
            compared += 1;
        }
        prop_assert!(compared >= 20, "{compared} of 40 points are on this cluster");
    }
}
