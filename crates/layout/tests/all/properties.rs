//! Properties over random recipes and layouts: every element of every tensor is owned exactly as
//! its rule says, and legality is neither lax nor arbitrary.

use layout::mesh::{Coordinates, Kind};
use layout::ownership::{OwnershipTable, Row, copies_of_unit};
use layout::request::{Balance, Engine, LayoutRequest, Schedule, ZeroStage};
use layout::rules::How;
use layout::{Axis, Layout, Mesh, Order, check};
use proptest::prelude::*;
use recipe::kinds::attention::AttentionKind;
use recipe::kinds::gated_delta::GatedDelta;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba1::Mamba1;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::side::OwnerStage;
use recipe::pattern::Block;
use recipe::{Feature, Layer, Mixer, Recipe};
use std::collections::HashMap;

/// `PROPTEST_RNG_SEED` and `PROPTEST_CASES` explore further.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if usual.cases == 256 { 400 } else { usual.cases };
    ProptestConfig { cases, max_shrink_iters: 2000, ..usual }
}

/// Built-in recipes with their sizes drawn anew, features on or off.
fn recipes() -> impl Strategy<Value = Recipe> {
    let names =
        ["nam56r-mini", "llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "nemotron-3-nano-30b-a3b", "gpt3-175b"];
    let sizes = (1u64..24, 1u64..9, 1u64..17, 1u64..200, 1usize..30);
    (prop::sample::select(names.to_vec()), sizes, any::<[bool; 6]>()).prop_map(|(name, sizes, flips)| {
        let mut recipe = recipe::builtin::find(name).unwrap();
        let (heads, groups, experts, vocab, depth) = sizes;
        resize(&mut recipe, heads, groups, experts, flips[5]);
        recipe.vocab = vocab;
        recipe.tied ^= flips[0];
        recipe.layers = recipe.pattern.tile(depth);
        let features = [Feature::Mla, Feature::Mtp, Feature::NgramHash, Feature::Structure];
        if let Some(side) = &mut recipe.features.structure {
            side.value.stage = if flips[0] { OwnerStage::Last } else { OwnerStage::First };
        }
        let listed = recipe.features.listed();
        for (feature, on) in features.into_iter().zip(&flips[1..]) {
            if listed.iter().any(|(f, _)| *f == feature) {
                let on = if *on { vec![feature] } else { Vec::new() };
                recipe = recipe.with_features(&on, &[]).unwrap();
            }
        }
        recipe.features.dsa = None;
        vary(&mut recipe, sizes.0, sizes.1);
        recipe
    })
}

/// Kinds that no built-in recipe has: Mamba-1, gated delta nets, output gates, parallel blocks.
fn vary(recipe: &mut Recipe, heads: u64, groups: u64) {
    match heads % 5 {
        0 if recipe.mamba.is_some() => {
            recipe.mamba = Some(Mamba::One(Mamba1 {
                inner: heads * groups,
                heads: 1,
                state: 4,
                dt_rank: 3,
                conv: 4,
                conv_bias: true,
                proj_bias: false,
                inner_norms: true,
            }));
        }
        1 => {
            let delta = GatedDelta { key_heads: groups, value_heads: groups * 2, key_dim: 4, value_dim: 8, conv: 4 };
            recipe.gated_delta = Some(delta);
            recipe.layers.push(Layer::of(&[Mixer::GatedDelta]));
        }
        2 => {
            if let Some(attention) = &mut recipe.attention {
                attention.output_gate = matches!(attention.kind, AttentionKind::Gqa { .. });
            }
        }
        3 if recipe.mamba.is_some() && recipe.attention.is_some() => {
            recipe.layers.push(Layer::of_blocks(vec![Block { mixers: vec![Mixer::Attention, Mixer::Mamba] }]));
        }
        _ => {}
    }
}

/// Head, group and expert counts that divide badly as often as well.
fn resize(recipe: &mut Recipe, heads: u64, groups: u64, experts: u64, plain_mamba: bool) {
    recipe.hidden = 16;
    if let Some(attention) = &mut recipe.attention {
        if let AttentionKind::Gqa { kv_heads, head_dim } = &mut attention.kind {
            (*kv_heads, *head_dim) = (groups, 4);
            attention.heads = groups * heads.div_ceil(4);
        } else {
            attention.heads = heads;
        }
    }
    if let Some(moe) = &mut recipe.moe {
        (moe.experts, moe.top_k, moe.ffn) = (experts, 1, heads * 2);
        if let Some(shared) = &mut moe.shared {
            shared.ffn = groups * 4;
        }
    }
    if recipe.mamba.is_some() {
        let two = Mamba2::new(groups * 2, 4, 8, groups);
        recipe.mamba = match (recipe.mamba.take(), plain_mamba) {
            (Some(Mamba::Three(m)), false) => Some(Mamba::Three(recipe::kinds::mamba3::Mamba3 {
                heads: groups * 2,
                groups,
                head_dim: 4,
                state: 8,
                ..m
            })),
            _ => Some(Mamba::Two(two)),
        };
    }
    if let Some(recurrent) = &mut recipe.recurrent {
        (recurrent.heads, recurrent.qk_heads) = (heads, 1);
        recurrent.state_carry = plain_mamba;
        recurrent.depth_carry = groups.is_multiple_of(3).then_some(heads);
    }
    if let Some(mlp) = &mut recipe.mlp {
        mlp.ffn = groups * heads;
    }
}

fn degree() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![4 => Just(None), 2 => Just(Some(2)), 1 => Just(Some(1)), 1 => (1u64..9).prop_map(Some)]
}

fn requests() -> impl Strategy<Value = LayoutRequest> {
    let degrees = [degree(), degree(), degree(), degree(), degree(), degree()];
    let schedules = prop::option::weighted(0.3, prop::sample::select(Schedule::ALL));
    let batch = (prop::option::of(1u64..5), prop::option::of(1u64..40), prop::option::of(1u64..40));
    let policy = (prop::option::weighted(0.3, 1u64..100), prop::option::weighted(0.3, prop::bool::ANY), any::<bool>());
    let replicas = prop::option::weighted(0.2, 1u64..9);
    (degrees, schedules, batch, policy, prop::sample::select(ZeroStage::ALL), 1u64..600, replicas).prop_map(
        |([tp, cp, pp, vpp, ep, etp], schedule, (mbs, gbs, count), (world, sp, by_params), zero, sequence, dp)| {
            LayoutRequest {
                world,
                dp,
                tp,
                sp,
                cp,
                pp,
                vpp,
                ep,
                etp,
                zero: Some(zero.1),
                micro_batch: mbs,
                global_batch: gbs,
                microbatches: count,
                sequence: Some(sequence),
                schedule: schedule.map(|s| s.1),
                balance: Some(if by_params { Balance::Params } else { Balance::Layers }),
                ..LayoutRequest::default()
            }
        },
    )
}

/// A legal layout near a random request: findings are mended by the values they name.
fn legal(recipe: &Recipe, mut request: LayoutRequest) -> Option<(Layout, LayoutRequest)> {
    for _ in 0..24 {
        let checked = check(recipe, &request);
        if checked.is_legal() {
            return Some((checked.layout?, request));
        }
        let finding = checked.findings.first()?;
        let fix = finding.fix.as_ref()?;
        set(&mut request, fix.key, *fix.values.first()?);
    }
    None
}

fn set(request: &mut LayoutRequest, key: &str, value: u64) {
    match key {
        "tp" => request.tp = Some(value),
        "cp" => request.cp = Some(value),
        "pp" => request.pp = Some(value),
        "vpp" => request.vpp = Some(value),
        "ep" => request.ep = Some(value),
        "etp" => request.etp = Some(value),
        "dp" => request.dp = Some(value),
        "world" => request.world = Some(value),
        "seq" => request.sequence = Some(value),
        "gbs" => request.global_batch = Some(value),
        "microbatches" => request.microbatches = Some(value),
        "sp" => request.sp = Some(value == 1),
        other => panic!("no key `{other}`"),
    }
}

/// Every index of every dimension, over all coordinates of the cutting axes, is held as often as
/// the rule says, and no unit is split between two ranks.
fn covers_exactly(row: &Row, layout: &Layout, mesh: &Mesh) {
    for (dim, d) in row.tensor.dims.iter().enumerate() {
        let cut = row.cuts.iter().find(|c| c.dim == dim);
        let degree = cut.map_or(1, |c| layout.degree(c.axis).get());
        let mut held: HashMap<u64, u64> = HashMap::new();
        let mut seen_at = Vec::new();
        for rank in 0..mesh.world() {
            let at = mesh.coordinates(rank);
            let place = cut.map_or(0, |c| at.on(c.axis));
            if seen_at.contains(&place) {
                continue;
            }
            seen_at.push(place);
            let part = row.part(layout, &at);
            assert_eq!(part.elements(), row.part_elements(layout), "{} is uneven", row.tensor.path);
            for range in &part.dims[dim] {
                range.clone().for_each(|i| *held.entry(i).or_default() += 1);
            }
            if cut.is_some_and(|c| c.how == How::Units) {
                whole_units(row, dim, &part.dims[dim]);
            }
        }
        assert_eq!(seen_at.len() as u64, degree, "{} dim {dim}", row.tensor.path);
        let mut start = 0;
        for segment in &d.0 {
            let copies = match cut.map(|c| c.how) {
                Some(How::Units) => copies_of_unit(segment, degree),
                _ => 1,
            };
            for i in start..start + segment.len() {
                assert_eq!(held.get(&i), Some(&copies), "{} dim {dim} index {i}", row.tensor.path);
            }
            start += segment.len();
        }
        assert_eq!(held.len() as u64, d.len(), "{} dim {dim} holds more than there is", row.tensor.path);
    }
}

fn whole_units(row: &Row, dim: usize, ranges: &[std::ops::Range<u64>]) {
    let mut start = 0;
    for segment in &row.tensor.dims[dim].0 {
        // A range may run over several segments: what it holds of each must be whole.
        let end = start + segment.len();
        for range in ranges.iter().filter(|r| r.start < end && r.end > start) {
            let (from, to) = (range.start.max(start) - start, range.end.min(end) - start);
            assert!(from % segment.size == 0 && to % segment.size == 0, "{} cuts a {}", row.tensor.path, segment.unit);
        }
        start += segment.len();
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_element_is_owned_as_its_rule_says(recipe in recipes(), request in requests()) {
        let Some((layout, _)) = legal(&recipe, request) else { return Ok(()) };
        let table = OwnershipTable::new(&recipe, &layout);
        prop_assert!(table.is_ok(), "legal, yet: {:?}", table.err());
        let table = table.unwrap();
        let mesh = Mesh::new(&layout, Order::Megatron, recipe.uses(Mixer::Moe)).unwrap();
        for row in &table.rows {
            covers_exactly(row, &layout, &mesh);
        }
    }

    #[test]
    fn the_world_holds_every_tensor_once_a_replica(recipe in recipes(), request in requests()) {
        let Some((layout, _)) = legal(&recipe, request) else { return Ok(()) };
        let table = OwnershipTable::new(&recipe, &layout).unwrap();
        let mesh = Mesh::new(&layout, Order::Megatron, recipe.uses(Mixer::Moe)).unwrap();
        let held: u64 = (0..layout.world).map(|rank| table.rank_params(&layout, &mesh, rank)).sum();
        let expected: u64 = table.rows.iter().map(|row| copies_over_world(row, &table, &layout)).sum();
        prop_assert_eq!(held, expected);
    }

    #[test]
    fn stages_hold_every_layer_once(recipe in recipes(), request in requests()) {
        let Some((layout, _)) = legal(&recipe, request) else { return Ok(()) };
        let plan = layout::StagePlan::new(&recipe, &layout, None).unwrap();
        let layers: Vec<usize> = plan.chunks.iter().flat_map(|c| c.layers.clone()).collect();
        prop_assert_eq!(layers, (0..recipe.depth()).collect::<Vec<_>>());
        let times = if layout.schedule == Schedule::DualPipe { 2 } else { 1 };
        let mut held = vec![0; plan.chunks.len()];
        plan.by_stage.iter().flatten().for_each(|c| held[*c] += 1);
        prop_assert!(held.iter().all(|n| *n == times), "{:?}", plan.by_stage);
        prop_assert!(plan.chunks.iter().all(|c| !c.layers.is_empty()));
    }

    #[test]
    fn a_refusal_names_a_value_that_removes_it(recipe in recipes(), request in requests()) {
        let checked = check(&recipe, &request);
        for finding in checked.findings.iter().filter(|f| f.severity == diag::Severity::Error) {
            let fix = finding.fix.as_ref();
            prop_assert!(fix.is_some_and(|f| !f.values.is_empty()), "{finding:?} names no value");
            let fix = fix.unwrap();
            for value in &fix.values {
                let mut mended = request.clone();
                set(&mut mended, fix.key, *value);
                let still = check(&recipe, &mended).findings.into_iter().find(|f| {
                    f.severity == diag::Severity::Error && f.rule == finding.rule && f.object == finding.object
                });
                prop_assert!(still.is_none(), "{}={} does not remove {:?}, {:?}", fix.key, value, finding, still);
            }
        }
    }

    #[test]
    fn an_engine_only_adds_findings(recipe in recipes(), request in requests(), engine in prop::sample::select(Engine::ALL)) {
        let named = LayoutRequest { engine: Some(engine.1), ..request.clone() };
        let (plain, with_engine) = (check(&recipe, &request), check(&recipe, &named));
        // Our own engine's mixers carry state in time; ZeRO and padding follow the engine; every other
        // general refusal stays.
        let is_carried = |rule: &str| {
            engine.1 == Engine::Shardwright && ["cp/recurrence", "cp/mamba-heads", "cp/mamba-groups"].contains(&rule)
        };
        let refusals = plain.findings.iter().filter(|f| f.severity == diag::Severity::Error);
        for finding in refusals.filter(|f| !is_carried(f.rule)) {
            prop_assert!(with_engine.findings.iter().any(|f| f.rule == finding.rule), "{} lost {:?}", engine.0, finding);
        }
        if with_engine.is_legal() {
            prop_assert!(OwnershipTable::new(&recipe, &with_engine.layout.unwrap()).is_ok());
        }
    }

    #[test]
    fn ranks_and_coordinates_are_inverse(recipe in recipes(), request in requests(), seed in any::<u64>()) {
        let Some((layout, _)) = legal(&recipe, request) else { return Ok(()) };
        let mesh = Mesh::new(&layout, Order::Megatron, recipe.uses(Mixer::Moe)).unwrap();
        let rank = seed % layout.world;
        let at: Coordinates = mesh.coordinates(rank);
        prop_assert_eq!(mesh.rank(Kind::Dense, &at), rank);
        if recipe.uses(Mixer::Moe) {
            prop_assert_eq!(mesh.rank(Kind::Expert, &at), rank);
        }
        for axis in Axis::ALL {
            let group = mesh.group(axis, rank);
            prop_assert!(group.ranks().any(|r| r == rank));
            prop_assert!(mesh.groups(axis).any(|g| g == group));
        }
    }
}

/// Elements of a row over the whole world: parts on every rank of its mesh, stages and copies.
fn copies_over_world(row: &Row, table: &OwnershipTable, layout: &Layout) -> u64 {
    let stages = 0..layout.pp.get() as usize;
    let stage_copies: u64 = stages.map(|s| table.copies_on_stage(row, s)).sum();
    let per_stage_ranks = layout.world / layout.pp.get();
    // Shared units are held more than once inside the cut; everything else exactly once.
    let cut: u64 = row.cuts.iter().map(|c| layout.degree(c.axis).get()).product();
    let whole: u64 = row
        .tensor
        .dims
        .iter()
        .enumerate()
        .map(|(dim, d)| match row.cuts.iter().find(|c| c.dim == dim) {
            Some(c) if c.how == How::Units => {
                let degree = layout.degree(c.axis).get();
                d.0.iter().map(|s| s.len() * copies_of_unit(s, degree)).sum::<u64>()
            }
            _ => d.len(),
        })
        .product();
    whole * (per_stage_ranks / cut) * stage_copies
}

/// The properties above skip requests that no fix makes legal; most must not be skipped.
#[test]
fn most_random_requests_can_be_made_legal() {
    use proptest::strategy::{Strategy, ValueTree};
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let pairs = (recipes(), requests());
    let samples = 300;
    let legal = (0..samples).filter(|_| {
        let (recipe, request) = pairs.new_tree(&mut runner).unwrap().current();
        legal(&recipe, request).is_some()
    });
    let legal = legal.count();
    assert!(legal * 10 >= samples * 9, "only {legal} of {samples}");
}

#[test]
fn sequence_parallelism_never_changes_a_parameter() {
    let recipe = recipe::builtin::find("llama3-8b").unwrap();
    let held = |sp| {
        let request = LayoutRequest { tp: Some(4), sp: Some(sp), world: Some(8), ..LayoutRequest::default() };
        let layout = check(&recipe, &request).layout.unwrap();
        let table = OwnershipTable::new(&recipe, &layout).unwrap();
        table.rank_params(&layout, &Mesh::new(&layout, Order::Megatron, false).unwrap(), 0)
    };
    assert_eq!(held(true), held(false));
}
