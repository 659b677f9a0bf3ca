//! What would do where nothing fits: other engines, state in fewer bits, a shorter sequence, more devices, and these
//! together. Each is searched like any question, and shown only where it fits.

use super::text::seconds;
use super::{Aim, Solved, Wanted, with_solution};
use crate::args::PlanArgs;
use crate::table::{Table, heading};
use case::asked::EngineChoice;
use case::machines::{engines_on, usual_engines};
use layout::Engine;
use search::{Batch, Space};
use serde_json::{Value, json};
use units::Bytes;

/// A question near the one that was asked, which has an answer.
pub struct Way {
    what: String,
    /// As it is typed.
    command: String,
    seconds: f64,
    headroom: i64,
}

/// State in fewer bits, as FSDP2 is told: of models trained whole, and of those with a frozen base.
const FEWER_BITS: [&str; 3] =
    ["optimizer=adamw8bit", "optimizer=adamw8bit loss=liger", "main=bf16 optimizer=adamw8bit loss=liger"];
const FEWER_BITS_OF_A_BASE: [&str; 2] = ["base=nf4-double", "base=nf4-double optimizer=adamw8bit loss=liger"];

/// The shortest sequence that is offered.
const LEAST_SEQUENCE: u64 = 1024;

/// How many times as many devices are tried.
const FLEETS: [u64; 6] = [2, 4, 8, 16, 32, 64];

/// Devices up to which engines, bits and sequences are tried together.
const FEW: u64 = 64;

/// The first way of each kind that does.
pub fn ways(args: &PlanArgs, wanted: &Wanted, solved: &Solved) -> Vec<Way> {
    let question = &solved.space.question;
    let Some(missing) = solved.nearest.as_ref().map(|nearest| nearest.missing) else { return Vec::new() };
    let (visible, world) = (question.cluster.device.visible_bytes() as i64, solved.space.world);
    let here = wanted.pinned.engine;
    let (mut found, mut engines) = (Vec::new(), usual_engines(&wanted.recipe, Some(&wanted.cluster)).0);
    engines.extend(engines_on(wanted.cluster.device.vendor));
    let mut others: Vec<Engine> = Vec::new();
    for engine in engines.into_iter().filter(|engine| Some(*engine) != here) {
        if !others.contains(&engine) {
            others.push(engine);
        }
    }
    // Where even many times the device would not do, only more devices will.
    if world <= FEW && missing < 8 * visible {
        found.extend(others.iter().find_map(|engine| take(format!("engine {engine}"), of_engine(args, *engine))));
        found.extend(fewer_bits(args, wanted));
        let all: Vec<Option<Engine>> = std::iter::once(None).chain(others.iter().copied().map(Some)).collect();
        let halves = (1..).map(|power| solved.space.sequence >> power).take_while(|seq| *seq >= LEAST_SEQUENCE);
        found.extend(halves.take(3).find_map(|seq| {
            all.iter().find_map(|engine| {
                let mut shorter = engine.map_or_else(|| args.clone(), |engine| of_engine(args, engine));
                (shorter.layout.seq, shorter.search.sequences) = (Some(seq), Vec::new());
                let under = engine.map_or(String::new(), |engine| format!(" under {engine}"));
                take(format!("sequences of {seq}{under}"), shorter)
            })
        }));
    }
    found.extend(larger(args, solved.space).find_map(|(what, args)| take(what, args)));
    found
}

/// The same question of another engine.
fn of_engine(args: &PlanArgs, engine: Engine) -> PlanArgs {
    let mut args = args.clone();
    args.search.engines = Vec::new();
    args.layout.engine = Some(EngineChoice::One(engine));
    args.state.engine_args = Vec::new();
    args
}

fn fewer_bits(args: &PlanArgs, wanted: &Wanted) -> Option<Way> {
    let words: &[&str] = if wanted.recipe.adapters().is_some() { &FEWER_BITS_OF_A_BASE } else { &FEWER_BITS };
    words.iter().find_map(|words| {
        let mut args = of_engine(args, Engine::Fsdp2);
        args.state.engine_args = vec![words.to_string()];
        take(format!("state in fewer bits ({words})"), args)
    })
}

/// The same on more devices of the kind.
fn larger<'a>(args: &'a PlanArgs, space: &Space) -> impl Iterator<Item = (String, PlanArgs)> + use<'a> {
    let world = space.world;
    let batch = match space.batch {
        Batch::Global(global) => Some(global),
        Batch::Count(_) => None,
    };
    let device = args.on.rsplit_once('x').filter(|(count, _)| count.chars().all(|c| c.is_ascii_digit() || c == 'x'));
    FLEETS.iter().filter_map(move |times| {
        let mut args = args.clone();
        args.on = format!("{}x{}", world * times, device?.1);
        args.layout.world = None;
        // The same step, or it would be another question.
        args.layout.gbs = batch;
        Some((format!("{} devices", world * times), args))
    })
}

/// The way, where something fits and starts as it is written.
fn take(what: String, args: PlanArgs) -> Option<Way> {
    let wanted = Wanted::new(&args, &args.on, args.search.sequences.first().copied()).ok()?;
    if !wanted.may_fit(&args, Aim::alone()) {
        return None;
    }
    let command = format!("shardwright plan {}", diag::quote::typed_line(args.words()));
    with_solution(&args, &wanted, Aim::alone(), |solved| {
        let answer = solved.answer.modes.first();
        let starts = answer.is_some_and(|answer| solved.space.modes[answer.mode].brought().next().is_none());
        Ok(solved.answer.best().filter(|_| starts).map(|best| Way {
            what,
            command,
            seconds: best.step.seconds,
            headroom: best.fit.tightest().headroom,
        }))
    })
    .ok()?
}

pub fn text(ways: &[Way]) -> String {
    if ways.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["with", "step", "headroom"]).right(&[1, 2]);
    for way in ways {
        table.row([way.what.clone(), seconds(way.seconds), Bytes(way.headroom.max(0) as u64).to_string()]);
    }
    let commands: String = ways.iter().map(|way| format!("  {}\n", way.command)).collect();
    heading("What would fit") + &table.render() + &commands
}

pub fn json(ways: &[Way]) -> Value {
    let way = |way: &Way| json!({ "what": way.what, "command": way.command, "seconds": way.seconds, "headroom_bytes": way.headroom });
    ways.iter().map(way).collect()
}
