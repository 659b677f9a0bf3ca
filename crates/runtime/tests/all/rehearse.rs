//! Rehearsals of built-in recipes: parity, bytes moved and held to the byte, and faults that every
//! rank learns of by name.

use layout::{Engine, LayoutRequest, Recompute, Schedule, ZeroStage};
use recipe::kinds::mamba::Mamba;
use recipe::{Feature, Mixer, builtin};
use runtime::rehearse::{Ask, Inject, Number, Outcome, Ranks, Rehearsal, Source, prepare, rehearse};
use runtime::report::{Line, MemoryLine, PhaseLine};
use runtime::shrink::Dims;
use runtime::stats::{Norm, Of};
use std::time::{Duration, Instant};

fn some() -> LayoutRequest {
    LayoutRequest::default()
}

fn ask<'a>(recipe: &'a recipe::Recipe, request: &'a LayoutRequest) -> Ask<'a> {
    Ask {
        recipe,
        request,
        dims: Dims::parse("hidden=16,vocab=32,seq=16").unwrap(),
        steps: 2,
        number: Number::F64,
        seed: 1,
        source: Source::Synthetic,
        inject: None,
        deadline: Duration::from_secs(60),
        ranks: Ranks::Threads,
        load: None,
        save: None,
        stats: false,
        limit: work::Limit::none(),
    }
}

fn outcome(ask: &Ask) -> Outcome {
    let prepared = prepare(ask).unwrap_or_else(|f| panic!("{f:#?}"));
    rehearse(ask, &prepared, &|_| {}).unwrap_or_else(|f| panic!("{f:#?}"))
}

fn ran(ask: &Ask) -> Rehearsal {
    match outcome(ask) {
        Outcome::Ran(rehearsal) => *rehearsal,
        Outcome::Ended(endings, _) => panic!("{endings:#?}"),
        Outcome::Elsewhere => unreachable!("threads report here"),
    }
}

/// Everything a rehearsal holds equal is equal.
fn holds(name: &str, features: &[Feature], request: &LayoutRequest) {
    let recipe = builtin::find(name).unwrap().with_features(features, &[]).unwrap();
    let rehearsal = ran(&ask(&recipe, request));
    let what = format!("{name} {request:?}");
    assert!(rehearsal.parity.passes(), "{what}: {:#?}", &rehearsal.parity.gradients[..3]);
    let sizes = [rehearsal.traffic.len(), rehearsal.memory.len(), rehearsal.phases.len()];
    assert!(sizes.iter().all(|n| *n > 0), "{what}: nothing to compare: {sizes:?}");
    for moves in &rehearsal.traffic {
        assert_eq!(moves.predicted_bytes, moves.moved_bytes, "{what}: bytes on {}", moves.axis);
    }
    for MemoryLine { rank, line, predicted_bytes, held_bytes, .. } in &rehearsal.memory {
        assert_eq!(predicted_bytes, held_bytes, "{what}: {line} of rank {rank}");
    }
    for PhaseLine { rank, phase, lines, .. } in &rehearsal.phases {
        let is_exact = lines.iter().all(|(_, predicted, held)| predicted == held);
        assert!(is_exact, "{what}: {phase} of rank {rank}: {lines:?}");
    }
}

#[test]
fn what_is_predicted_is_what_happens() {
    holds("llama3-8b", &[], &LayoutRequest { tp: Some(2), sp: Some(false), dp: Some(2), ..some() });
    holds("llama3-8b", &[], &LayoutRequest { tp: Some(2), cp: Some(2), zero: Some(ZeroStage::Three), ..some() });
    holds("nam56r", &[], &LayoutRequest { tp: Some(2), pp: Some(2), ep: Some(2), cp: Some(2), ..some() });
    holds("nemotron-h-8b", &[], &LayoutRequest { tp: Some(2), cp: Some(2), zero: Some(ZeroStage::Two), ..some() });
    holds("mixtral-8x7b", &[], &LayoutRequest { tp: Some(2), ep: Some(2), dp: Some(2), ..some() });
    holds("gpt3-175b", &[], &LayoutRequest { pp: Some(2), vpp: Some(2), zero: Some(ZeroStage::Two), ..some() });
}

#[test]
fn latents_prediction_heads_and_shards_too() {
    let three = Some(ZeroStage::Three);
    holds("deepseek-v2-lite", &[], &LayoutRequest { tp: Some(2), ep: Some(2), dp: Some(2), zero: three, ..some() });
    holds("nam56r", &[Feature::Mtp], &LayoutRequest { tp: Some(2), pp: Some(2), etp: Some(2), ..some() });
    let sides = [Feature::NgramHash, Feature::Structure, Feature::Mtp];
    holds("nam56r", &sides, &LayoutRequest { tp: Some(2), pp: Some(2), zero: three, ..some() });
    holds("nam56r", &[Feature::Dsa], &LayoutRequest { tp: Some(2), cp: Some(2), ..some() });
    holds("nam56r", &[Feature::Mtp, Feature::Mla], &LayoutRequest { dp: Some(2), ep: Some(2), zero: three, ..some() });
}

#[test]
fn every_order_and_recompute_too() {
    for (schedule, vpp) in [
        (Schedule::GPipe, 1),
        (Schedule::OneF1b, 1),
        (Schedule::Interleaved, 2),
        (Schedule::ZbH1, 1),
        (Schedule::DualPipe, 1),
        (Schedule::DualPipeV, 2),
    ] {
        for zero in [ZeroStage::One, ZeroStage::Three] {
            let request = LayoutRequest {
                pp: Some(2),
                vpp: Some(vpp),
                dp: Some(2),
                microbatches: Some(4),
                schedule: Some(schedule),
                zero: Some(zero),
                ..some()
            };
            holds("llama3-8b", &[], &request);
        }
    }
    let request = LayoutRequest { tp: Some(2), ep: Some(2), recompute: Some(Recompute::Full), ..some() };
    holds("nam56r", &[], &request);
}

/// A rehearsal keeps depth and borders enough that state really runs up, and says of context cuts
/// what `check` says.
#[test]
fn state_runs_up_the_depth_and_over_cuts_in_time() {
    let mut recipe = builtin::find("nam56r").unwrap();
    recipe.recurrent.as_mut().unwrap().depth_carry = Some(64);
    let request = LayoutRequest { cp: Some(2), pp: Some(2), vpp: Some(2), engine: Some(Engine::Shardwright), ..some() };
    let ours = ask(&recipe, &request);
    let prepared = prepare(&ours).unwrap();
    assert!(prepared.notes.is_empty() && prepared.recipe.count(Mixer::Recurrent) == 2);
    assert!(prepared.recipe.recurrent.as_ref().unwrap().depth_carry.unwrap() < prepared.layout.sequence);
    let ran = ran(&ours);
    assert!(ran.parity.passes(), "{:?}", ran.parity.gradients[0]);
    assert!(ran.traffic.iter().all(|t| t.predicted_bytes == t.moved_bytes), "{:?}", ran.traffic);
    let nobody = LayoutRequest { engine: None, ..request.clone() };
    assert_eq!(prepare(&ask(&recipe, &nobody)).unwrap().notes.len(), 2);
    let megatron = LayoutRequest { engine: Some(Engine::Megatron), ..request.clone() };
    let refused = prepare(&ask(&recipe, &megatron)).err().unwrap();
    assert!(refused.iter().any(|f| f.rule == "cp/recurrence"), "{refused:#?}");
}

#[test]
fn a_fault_ends_every_rank_by_name_within_the_deadline() {
    let recipe = builtin::find("nam56r").unwrap();
    let request = LayoutRequest { tp: Some(2), pp: Some(2), ep: Some(2), ..some() };
    let faults = [
        ("die:3@1", "comm/died", "rank 3 died"),
        ("dtype:1@1", "comm/disagree", "f32"),
        ("drop:2@0", "comm/deadline", "rank 2"),
    ];
    for (fault, rule, words) in faults {
        let mut ask = ask(&recipe, &request);
        (ask.inject, ask.deadline) = (Inject::parse(fault).ok(), Duration::from_secs(2));
        let since = Instant::now();
        let Outcome::Ended(endings, _) = outcome(&ask) else { panic!("{fault} went unnoticed") };
        let ranks: usize = endings.iter().map(|e| e.ranks.len()).sum();
        assert_eq!(ranks, 8, "{fault}: {endings:#?}");
        let is_named = |e: &runtime::rehearse::Ending| {
            let text = format!("{} {}", e.finding.message, e.finding.hint.as_deref().unwrap_or(""));
            e.finding.rule == rule && text.contains(words)
        };
        assert!(endings.iter().all(is_named), "{fault}: {endings:#?}");
        assert!(since.elapsed() < Duration::from_secs(10), "{fault}: {:?}", since.elapsed());
    }
}

#[test]
fn routers_made_wrong_err_alike_on_every_rank() {
    let recipe = builtin::find("nam56r").unwrap();
    let request = LayoutRequest { tp: Some(2), ep: Some(2), dp: Some(2), ..some() };
    let mut ask = ask(&recipe, &request);
    ask.inject = Inject::parse("zero-expert:3").ok();
    let idle = ran(&ask);
    assert!(idle.parity.passes());
    assert!(!idle.load.is_empty(), "a layer with experts has a load");
    assert!(idle.load.iter().all(|l| l.tokens[3] == 0 && l.tokens[0] > 0), "{:?}", idle.load);
    ask.inject = Inject::parse("skew:2").ok();
    let skewed = ran(&ask);
    assert!(skewed.parity.passes());
    assert_eq!(skewed.load.len(), idle.load.len());
    for load in &skewed.load {
        let mean = load.tokens.iter().sum::<u64>() as f64 / load.tokens.len() as f64;
        assert_eq!(load.tokens[0] as f64, 2.0 * mean, "{load:?}");
    }
    // The rank of the hot expert holds more than balanced routing would have it hold.
    let over = |r: usize| {
        skewed.memory.iter().any(|l| l.rank == r && l.line == Line::Saved && l.held_bytes > l.balanced_bytes)
    };
    assert!((0..4).any(over));
}

#[test]
fn what_cannot_be_rehearsed_is_refused_by_name() {
    let recipe = builtin::find("nam56r").unwrap();
    let refused = |request: LayoutRequest, inject: &str| {
        let mut ask = ask(&recipe, &request);
        ask.inject = Inject::parse(inject).ok();
        let prepared = match prepare(&ask) {
            Err(findings) => return findings[0].clone(),
            Ok(prepared) => prepared,
        };
        match rehearse(&ask, &prepared, &|_| {}) {
            Err(findings) => findings[0].clone(),
            Ok(_) => panic!("{request:?} {inject} ran"),
        }
    };
    let many = refused(LayoutRequest { dp: Some(128), ..some() }, "");
    assert_eq!(many.rule, "rehearse/ranks");
    assert!(many.hint.unwrap().contains("--dp 2"));
    assert_eq!(refused(some(), "die:1@0").rule, "rehearse/inject");
    assert_eq!(refused(some(), "drop:0@0").rule, "rehearse/inject");
    assert_eq!(refused(some(), "skew:9").rule, "rehearse/inject");
    assert_eq!(refused(LayoutRequest { tp: Some(3), ..some() }, "").rule, "tp/heads");
    let mut several = builtin::find("nam56r").unwrap();
    let Some(Mamba::Three(mamba)) = &mut several.mamba else { panic!("Mamba-3 is the flagship's") };
    mamba.mimo_rank = 4;
    let request = some();
    let ask = ask(&several, &request);
    let found = rehearse(&ask, &prepare(&ask).unwrap(), &|_| {}).err().unwrap();
    assert_eq!(found[0].rule, "runtime/mimo");
}

/// A request from `tp=2 sp zero=1`.
fn typed(words: &str) -> LayoutRequest {
    let mut out = some();
    for word in words.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or((word, "1"));
        let degree = value.parse().ok();
        match key {
            "tp" => out.tp = degree,
            "sp" => out.sp = Some(true),
            "cp" => out.cp = degree,
            "pp" => out.pp = degree,
            "ep" => out.ep = degree,
            "etp" => out.etp = degree,
            "dp" => out.dp = degree,
            "zero" => out.zero = ZeroStage::from_name(value),
            _ => panic!("{word}"),
        }
    }
    out
}

/// Norms of a split run beside those of one rank: the largest relative difference by kind, and the first path of each
/// kind that is off.
fn norms_apart(ask: &Ask) -> Vec<(Of, f64, Option<String>)> {
    let (one, many) = ran(ask).norms;
    assert_eq!(one.len(), many.len());
    assert!(one.iter().all(|norm| norm.nonfinite == 0));
    [Of::Activation, Of::ActivationGradient, Of::Gradient]
        .map(|of| {
            let off = |(a, b): (&Norm, &Norm)| (a.norm - b.norm).abs() / a.norm.abs().max(1e-9);
            let pairs = || one.iter().zip(&many).filter(|(a, _)| a.watched.of == of);
            assert!(pairs().count() > 0 && pairs().all(|(a, b)| (a.step, &a.watched) == (b.step, &b.watched)));
            let first = pairs().find(|pair| off(*pair) > 1e-6).map(|(a, _)| a.watched.path.clone());
            (of, pairs().map(off).fold(0.0, f64::max), first)
        })
        .to_vec()
}

#[test]
fn norms_do_not_depend_on_the_layout() {
    let layouts = [
        ("nam56r", "tp=2 ep=2 etp=1"),
        ("nam56r", "tp=2 pp=2"),
        ("nam56r", "cp=2 zero=2"),
        ("mixtral-8x7b", "tp=2 dp=2 etp=2 zero=1"),
        ("llama3-8b", "tp=2 dp=2 pp=2"),
        ("llama3-8b", "dp=4 zero=3"),
    ];
    for (name, words) in layouts {
        let recipe = recipe::builtin::find(name).unwrap();
        let request = typed(words);
        let mut ask = ask(&recipe, &request);
        ask.dims = Dims::parse("hidden=16,vocab=32,seq=16,depth=6").unwrap();
        ask.stats = true;
        for (of, worst, path) in norms_apart(&ask) {
            assert!(worst < 1e-6, "{name} {words}: {of:?} of {path:?} is off by {worst:e}");
        }
    }
}

#[test]
fn a_missing_exchange_shows_in_the_norms_of_what_it_feeds() {
    // The layout, the fault, and whether activations are off, or gradients alone.
    let faults = [
        ("llama3-8b", "tp=2 sp", "unsummed:tp", None),
        ("llama3-8b", "dp=2", "unsummed:dp", None),
        ("llama3-8b", "tp=2 sp", "unheard:sp", Some("embedding")),
        ("mixtral-8x7b", "ep=2", "unheard:ep", Some("layers.0.moe")),
        ("llama3-8b", "cp=2", "unheard:cp", Some("layers.0.attention")),
        ("llama3-8b", "pp=2", "unheard:pp", Some("layers.1")),
    ];
    for (name, words, fault, first) in faults {
        let recipe = recipe::builtin::find(name).unwrap();
        let request = typed(words);
        let mut ask = ask(&recipe, &request);
        ask.dims = Dims::parse("hidden=16,vocab=32,seq=16,depth=2").unwrap();
        (ask.steps, ask.stats, ask.inject) = (1, true, Inject::parse(fault).ok());
        let apart = norms_apart(&ask);
        let path = apart[0].2.as_deref();
        match first {
            Some(first) => assert!(path.is_some_and(|path| path.starts_with(first)), "{fault}: {apart:?}"),
            None => assert!(path.is_none() && apart[2].2.is_some(), "{fault}: {apart:?}"),
        }
    }
}
