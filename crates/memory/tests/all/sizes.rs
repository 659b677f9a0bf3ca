//! Sizes at their limits: refused by name, or counted right. Overflow checks are on in tests, so that a
//! product that wraps around ends them.

use super::sized::{self, Draws, ENGINES, case, request, text};
use case::Case;
use layout::size::{MOST_BYTES, Sizes};
use layout::{Engine, LayoutRequest};
use ledger::{Ledger, RankJob};
use memory::fit::{Fit, HEADROOM, Verdict};
use recipe::Recipe;

/// Draws of each test; `SIZES_DRAWS` and `SIZES_SEED` explore further.
fn draws(usual: u64) -> impl Iterator<Item = u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seed, count) = (read("SIZES_SEED").unwrap_or(0), read("SIZES_DRAWS").unwrap_or(usual));
    (0..count).map(move |draw| seed * 1_000_000 + draw)
}

/// Whether a replay of it is short: long walks over experts, or over a sequence chunk by chunk, are bounded
/// elsewhere.
fn is_short(case: &Case) -> bool {
    let recipe = &case.recipe;
    let walks = recipe.mamba.is_some() || recipe.recurrent.is_some() || recipe.gated_delta.is_some();
    let chunks = if walks && case.engine() == Engine::Fsdp2 { case.layout.sequence / 64 } else { 1 };
    let experts = recipe.moe.as_ref().map_or(1, |moe| moe.experts);
    chunks.max(experts).saturating_mul(recipe.depth() as u64 * case.layout.microbatches) < 2000
}

/// Says what was drawn when something below panics.
struct Drawn<'a>(&'a str, &'a LayoutRequest, u64);

impl Drop for Drawn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("draw {}:\n{}\n{:?}", self.2, self.0, self.1);
        }
    }
}

#[test]
fn at_the_limits_a_job_is_refused_or_counted() {
    let (mut counted, mut refused) = (0, 0);
    for draw in draws(300) {
        let mut draws = Draws::new(draw);
        let changes = 1 + draws.below(3);
        let text = text(&mut draws, changes);
        let Ok(recipe) = Recipe::parse(&text) else { continue };
        for engine in ENGINES {
            let request = request(&mut draws, &recipe, engine, 4);
            let _drawn = Drawn(&text, &request, draw);
            let checked = layout::check(&recipe, &request);
            refused += u64::from(checked.findings.iter().any(|f| f.rule == "layout/bytes"));
            let Some(case) = case(&recipe, &request).filter(is_short) else { continue };
            let skew = if engine == Engine::Megatron { draws.of(&[1.0, 1.0, 1.5]) } else { 1.0 };
            let is_expandable = engine == Engine::Megatron && draws.below(4) == 0;
            let case = case.with_options(|told| (told.overload, told.expandable_segments) = (skew, is_expandable));
            let Ok(fit) = Fit::price(&case, HEADROOM) else { continue };
            counted += 1;
            let visible = case.on().device.visible_bytes();
            let bound = Sizes::of(&case.recipe).under(&case.layout, skew).bytes();
            assert!(bound <= MOST_BYTES);
            for class in &fit.classes {
                let held = u128::from(class.total());
                assert!(2 * held < bound, "{engine} holds {held} of at most {bound}");
                assert!(class.total() <= visible || fit.verdict == Verdict::DoesNotFit);
            }
        }
    }
    assert!(counted > 50 && refused > 50, "{counted} counted, {refused} refused");
}

/// The most bytes asked for on each stage.
fn requested(recipe: &Recipe, request: &LayoutRequest) -> Option<Vec<u64>> {
    let case = case(recipe, request).filter(is_short)?;
    let ledger = Ledger::of_case(&case).ok()?;
    let (pp, world) = (case.layout.pp.get(), case.layout.world);
    let of_stage = |stage: u64| {
        let rank = stage * (world / pp);
        let job = RankJob { recipe: &case.recipe, layout: &case.layout, stages: &case.stages, rank };
        ledger.replay(&job).ok().map(|replay| replay.requested_peak())
    };
    (0..pp).map(of_stage).collect()
}

/// What tensors ask for grows with each of these sizes, on every rank and under every ledger. What the
/// allocator hands out and reserves need not, by up to a mebibyte a block: a block whose remainder is
/// smaller is not split and counts whole.
#[test]
fn memory_grows_with_capacity_microbatch_and_sequence() {
    let mut compared = [0; 3];
    for draw in draws(400) {
        let mut draws = Draws::new(draw ^ 0x5eed);
        let changes = draws.below(2);
        let mut text = text(&mut draws, changes);
        // Two ledgers of six have a capacity factor, and few of the models.
        let has_capacity = draw % 4 == 0;
        while has_capacity && !text.contains("capacity_factor") {
            text = sized::text(&mut draws, changes);
        }
        let Ok(recipe) = Recipe::parse(&text) else { continue };
        let engine = if has_capacity { draws.of(&[Engine::Megatron, Engine::Shardwright]) } else { draws.of(&ENGINES) };
        let request = request(&mut draws, &recipe, engine, 1000);
        let _drawn = Drawn(&text, &request, draw);
        let Some(before) = requested(&recipe, &request) else { continue };
        let mut grown: [Option<(Recipe, LayoutRequest)>; 3] = Default::default();
        let mut roomier = recipe.clone();
        if let Some(moe) = roomier.moe.as_mut().filter(|moe| moe.capacity_factor.is_some()) {
            let (more, most) = (1.0 + draws.below(100) as f64 / 50.0, moe.experts as f64 / moe.top_k as f64);
            moe.capacity_factor = moe.capacity_factor.map(|factor| (factor * more).min(most));
            grown[0] = Some((roomier, request.clone()));
        }
        let micro_batch = request.micro_batch.unwrap_or(1) + 1 + draws.below(3);
        grown[1] = Some((recipe.clone(), LayoutRequest { micro_batch: Some(micro_batch), ..request.clone() }));
        let sequence = request.sequence.unwrap_or(recipe.sequence) + 64 * (1 + draws.below(16));
        grown[2] = Some((recipe.clone(), LayoutRequest { sequence: Some(sequence), ..request.clone() }));
        for (at, grown) in grown.into_iter().enumerate() {
            let Some((recipe, request)) = grown else { continue };
            let Some(after) = requested(&recipe, &request) else { continue };
            compared[at] += 1;
            let grows = after.iter().zip(&before).all(|(after, before)| after >= before);
            assert!(grows, "{engine}: {after:?} below {before:?} with {request:?}");
        }
    }
    assert!(compared.iter().all(|count| *count > 20), "{compared:?}");
}
