//! Engines that price a model which the one that was asked about refuses.

use super::{Aim, Wanted};
use crate::args::PlanArgs;
use crate::outcome::Refusal;
use case::asked::EngineChoice;
use case::machines::engines_on;
use case::options_of;
use diag::{Blame, Finding};
use layout::Engine;
use search::{NO_LEDGER, has_price};

/// A refusal of the engine, followed by those that do price the model.
pub fn named(args: &PlanArgs, wanted: &Wanted, mut refusal: Refusal) -> Refusal {
    let is_the_engine = |finding: &Finding| finding.rule == NO_LEDGER && finding.blame == Blame::Engine;
    if refusal.findings.iter().any(is_the_engine) {
        refusal.findings.extend(note(args, wanted));
    }
    refusal
}

/// Which other engines price what was asked, if any does.
pub fn note(args: &PlanArgs, wanted: &Wanted) -> Option<Finding> {
    let others = engines_on(wanted.cluster.device.vendor).into_iter();
    let can: Vec<Engine> = others
        .filter(|engine| Some(*engine) != wanted.pinned.engine)
        .filter(|engine| prices(args, wanted, *engine))
        .collect();
    let first = can.first()?;
    let names: Vec<String> = can.iter().map(|engine| format!("`{engine}`")).collect();
    let message = match names.as_slice() {
        [most @ .., last] if !most.is_empty() => {
            format!("{} and {last} have layouts with a price for this model", most.join(", "))
        }
        _ => format!("{} has layouts with a price for this model", names.concat()),
    };
    let mut same = args.clone();
    same.search.engines = Vec::new();
    same.layout.engine = Some(EngineChoice::One(*first));
    let hint = format!("`shardwright plan {}`", diag::quote::typed_line(same.words()));
    Some(Finding::note("plan/other-engines", Blame::Engine, "engine", message).hint(hint))
}

/// Whether the same job has a price on another engine.
fn prices(args: &PlanArgs, wanted: &Wanted, engine: Engine) -> bool {
    let mut asked = wanted.asked.clone();
    asked.layout.engine = Some(EngineChoice::One(engine));
    let mut pinned = asked.layout.request();
    pinned.world = None;
    let Ok((options, _)) = options_of(&asked, pinned.engine, &wanted.recipe, Some(&wanted.cluster)) else {
        return false;
    };
    let limit = args.work.of_an_answer();
    has_price(search::Question {
        asked: &asked,
        pinned: &pinned,
        options,
        ..wanted.question(args, Aim::fleet(f64::INFINITY), &limit)
    })
}
