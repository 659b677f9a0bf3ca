//! Sizes that people insist on, drawn over every recipe, size, value and some layouts: a rehearsal runs and its
//! split is right, or it is refused with findings. Nothing panics, on no rank, and no refusal is without words.

use layout::{LayoutRequest, ZeroStage};
use recipe::builtin;
use runtime::rehearse::{Ask, Number, Outcome, Ranks, Source, prepare, rehearse};
use runtime::shrink::{Dim, Dims};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use work::{Asked, Limit};

/// Small, odd, prime, round, at the limits and beyond.
const VALUES: &[u64] = &[
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    11,
    12,
    16,
    17,
    21,
    24,
    32,
    33,
    48,
    64,
    100,
    128,
    257,
    1024,
    16_384,
    65_536,
    1 << 24,
    1 << 30,
    1 << 32,
    u64::MAX,
];

fn layouts() -> Vec<LayoutRequest> {
    let none = LayoutRequest::default;
    vec![
        none(),
        LayoutRequest { tp: Some(2), ..none() },
        LayoutRequest { cp: Some(2), ..none() },
        LayoutRequest { pp: Some(2), ..none() },
        LayoutRequest { ep: Some(2), dp: Some(2), ..none() },
        LayoutRequest { dp: Some(2), zero: Some(ZeroStage::Three), ..none() },
    ]
}

/// The next of a row of numbers that look random (Knuth's MMIX generator).
fn next(state: &mut u64, of: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % of
}

struct Tried {
    name: &'static str,
    dims: Dims,
    request: LayoutRequest,
}

fn drawn(state: &mut u64) -> Tried {
    let name = builtin::RECIPES[next(state, builtin::RECIPES.len())].0;
    let mut dims = Dims::default();
    for _ in 0..=next(state, 2) {
        let (_, dim) = Dim::ALL[next(state, Dim::ALL.len())];
        // Twice as many small values as others.
        let values = if next(state, 2) == 0 { &VALUES[..12] } else { VALUES };
        let value = values[next(state, values.len())];
        if dims.get(dim).is_none() {
            dims.0.push((dim, value));
        }
    }
    let layouts = layouts();
    let request = layouts[next(state, layouts.len())].clone();
    Tried { name, dims, request }
}

/// Whether it ran; or what is wrong with how it ended.
fn outcome(tried: &Tried, limit: &str) -> Result<bool, String> {
    let recipe = builtin::find(tried.name).unwrap();
    let ask = Ask {
        recipe: &recipe,
        request: &tried.request,
        dims: tried.dims.clone(),
        steps: 1,
        number: Number::F64,
        seed: 1,
        source: Source::Synthetic,
        inject: None,
        deadline: Duration::from_secs(60),
        ranks: Ranks::Threads,
        load: None,
        save: None,
        stats: false,
        limit: Limit::new(Asked::parse(limit).unwrap(), None),
    };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let prepared = prepare(&ask)?;
        rehearse(&ask, &prepared, &|_| {})
    }));
    match ran {
        Err(_) => Err("a panic".to_string()),
        Ok(Err(findings)) if findings.iter().any(|f| f.message.is_empty()) || findings.is_empty() => {
            Err("refused without words".to_string())
        }
        Ok(Err(_)) => Ok(false),
        Ok(Ok(Outcome::Ended(endings, _))) => Err(format!("{endings:?}")),
        Ok(Ok(Outcome::Ran(r))) if r.parity.passes() => Ok(true),
        Ok(Ok(Outcome::Ran(r))) => {
            Err(format!("loss off by {:e}, gradient {:?}", r.parity.loss, r.parity.gradients[0]))
        }
        Ok(Ok(Outcome::Elsewhere)) => Err("elsewhere".to_string()),
    }
}

fn sweep(seed: u64, draws: usize, limit: &str) -> (usize, Vec<String>) {
    let (mut state, mut ran, mut wrong) = (seed, 0, Vec::new());
    for _ in 0..draws {
        let tried = drawn(&mut state);
        match outcome(&tried, limit) {
            Ok(did) => ran += usize::from(did),
            Err(why) => wrong.push(format!("{} {:?} {:?}: {why}", tried.name, tried.dims.0, short(&tried.request))),
        }
    }
    (ran, wrong)
}

fn short(request: &LayoutRequest) -> Vec<(&'static str, u64)> {
    let degrees = [("tp", request.tp), ("cp", request.cp), ("pp", request.pp), ("ep", request.ep), ("dp", request.dp)];
    degrees.into_iter().filter_map(|(name, degree)| Some((name, degree?))).collect()
}

#[test]
fn sizes_that_are_insisted_on_run_or_are_refused() {
    let (ran, wrong) = sweep(13, 60, "256MiB,200ms");
    assert!(ran >= 10, "{ran} ran");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `SHARDWRIGHT_DRAWS=20000 cargo test -p shardwright-runtime --test all dims -- --ignored`
#[test]
#[ignore = "as long as one likes"]
fn many_sizes_run_or_are_refused() {
    let draws = std::env::var("SHARDWRIGHT_DRAWS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let (ran, wrong) = sweep(std::process::id().into(), draws, "256MiB,500ms");
    println!("{ran} of {draws} ran");
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}

/// What issue reports named, each by itself: the companion that follows, or the words of the refusal.
#[test]
fn companions_follow_and_refusals_name_values() {
    let small = |name: &str, dims: &str| {
        let recipe = builtin::find(name).unwrap();
        runtime::shrink::shrink(&recipe, &LayoutRequest::default(), &Dims::parse(dims).unwrap())
    };
    let heads = |name: &str, dims: &str| {
        let attention = small(name, dims).unwrap_or_else(|f| panic!("{dims}: {f:#?}")).recipe.attention.unwrap();
        match attention.kind {
            recipe::kinds::attention::AttentionKind::Gqa { kv_heads, .. } => (attention.heads, kv_heads),
            recipe::kinds::attention::AttentionKind::Mla(_) => (attention.heads, 0),
        }
    };
    assert_eq!(heads("turing-530b", "kv_heads=4"), (4, 4));
    assert_eq!(heads("nam56r", "heads=7"), (7, 1));
    assert_eq!(heads("nam56r", "heads=3"), (3, 1));
    assert_eq!(heads("nam56r", "kv_heads=3"), (21, 3));
    let experts = |dims: &str| small("nam56r", dims).unwrap().recipe.moe.map(|m| (m.experts, m.top_k)).unwrap();
    assert_eq!(experts("experts=3"), (3, 3));
    assert_eq!(experts("top_k=9"), (16, 9));
    let refused = |dims: &str| {
        let findings = small("nam56r", dims).unwrap_err();
        (findings[0].rule, findings[0].hint.clone().unwrap_or_default())
    };
    assert_eq!(refused("heads=3,kv_heads=2"), ("attention/kv-heads", "kv_heads may be 1, 3".to_string()));
    assert_eq!(refused("top_k=17").0, "moe/top-k");
    assert_eq!(refused("experts=4,top_k=9"), ("moe/top-k", "top_k may be 1 to 4".to_string()));
    assert_eq!(refused("state=1").0, "mamba/angles");
    assert_eq!(refused("depth=16385").0, "recipe/limit");
    assert_eq!(refused("heads=18446744073709551615").0, "recipe/limit");
    assert!(Dims::parse("heads=1,heads=2").unwrap_err().contains("said twice"));
}

/// What is far too large is refused by its predicted size, at once, with a value that would do.
#[test]
fn what_is_too_large_is_refused_before_it_is_allocated() {
    let recipe = builtin::find("nam56r-mini").unwrap();
    let request = LayoutRequest::default();
    let since = std::time::Instant::now();
    for dims in ["hidden=16777216", "vocab=1073741824", "depth=16384", "seq=4294967296", "ffn=16777216,hidden=65536"] {
        let ask = Ask {
            recipe: &recipe,
            request: &request,
            dims: Dims::parse(dims).unwrap(),
            steps: 1,
            number: Number::F64,
            seed: 1,
            source: Source::Synthetic,
            inject: None,
            deadline: Duration::from_secs(60),
            ranks: Ranks::Threads,
            load: None,
            save: None,
            stats: false,
            limit: Limit::new(Asked::default(), Some(8 << 30)),
        };
        let refused = prepare(&ask).map(|_| ()).unwrap_err();
        assert!(refused.iter().all(|f| ["work/bytes", "work/operations"].contains(&f.rule)), "{dims}: {refused:?}");
        let hint = refused[0].hint.clone().unwrap_or_default();
        assert!(hint.contains("--work-limit "), "{hint}");
        // A value that would do does.
        let value = hint.split("--dims ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let Some(value) = value.filter(|_| !dims.contains(',')) else { continue };
        let less = Ask { dims: Dims::parse(value).unwrap(), limit: Limit::new(Asked::default(), Some(8 << 30)), ..ask };
        assert!(prepare(&less).is_ok(), "{dims}: {hint}");
    }
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
}
