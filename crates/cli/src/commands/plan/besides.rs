//! What the engine can be told besides: on the best layout, and where another layout then beats it.

use super::text::seconds;
use super::{Aim, Solved, Wanted, with_solution};
use crate::args::PlanArgs;
use crate::table::{Table, heading, wrap};
use case::offers::offers;
use case::options_of;
use layout::{Engine, Layout, Recompute};
use search::{Besides, Choice};
use serde_json::{Value, json};
use units::{Bytes, change};

/// The best layout of a search with graphs, where it beats the best without.
pub struct Again {
    args: String,
    seconds: f64,
    /// Of the best one's time a sequence, less one.
    slower: f64,
}

/// Searches once more with graphs, and the loss in one kernel: a host that starts less leaves other layouts their speed.
pub fn again(args: &PlanArgs, wanted: &Wanted, solved: &Solved, best: &Choice) -> Option<Again> {
    if wanted.pinned.engine != Some(Engine::Megatron) || !wanted.asked.state.engine_args.is_empty() {
        return None;
    }
    let plain = Layout { recompute: Recompute::None, ..best.case.layout.clone() };
    let offers = offers(&best.case.recipe, &plain, &best.case.options, best.case.cluster.as_ref()).into_iter();
    let words: Vec<String> = offers.filter(|offer| offer.of_any_layout).map(|offer| offer.args).collect();
    let words = words.join(" ");
    let mut asked = wanted.asked.clone();
    asked.state.engine_args.push(words.clone());
    let (options, _) = options_of(&asked, wanted.pinned.engine, &wanted.recipe, Some(&wanted.cluster)).ok()?;
    let other = Wanted { asked, options, ..wanted.clone() };
    let least = solved.besides(best).last().map_or(best.step.seconds, |one| one.seconds);
    let apart = solved.answer.modes.first().map_or(0.0, |mode| mode.apart.share);
    let batch = best.case.layout.global_batch;
    let aim = Aim::fleet(least * (1.0 - apart) / batch as f64);
    let found = with_solution(args, &other, aim, |solved| {
        Ok(solved.answer.best().map(|best| (best.step.seconds, best.case.layout.global_batch)))
    });
    let (seconds, other_batch) = found.ok()??;
    // Of one batch, or it would be another question.
    let is_better = other_batch == batch && seconds < least * (1.0 - apart);
    is_better.then(|| Again { args: words, seconds, slower: seconds / best.step.seconds - 1.0 })
}

/// Everything, in words.
pub fn text(solved: &Solved, best: &Choice, again: Option<&Again>) -> String {
    let all = solved.besides(best);
    if all.is_empty() && again.is_none() {
        return String::new();
    }
    let mut text = heading(&format!("What {} can be told besides, each on top of the last", best.case.engine()));
    if !all.is_empty() {
        let mut table = Table::new(&["besides", "step", "slower", "headroom"]).right(&[1, 2, 3]);
        for one in all {
            let needs = one.offer.needs.map_or(String::new(), |library| format!(" (needs {library})"));
            table.row([
                format!("{}{needs}", one.offer.what),
                seconds(one.seconds),
                change(one.seconds / best.step.seconds - 1.0),
                Bytes(one.headroom.max(0) as u64).to_string(),
            ]);
        }
        let args: Vec<&str> = all.iter().map(|one| one.offer.args.as_str()).collect();
        text += &table.render();
        text += &wrap(&format!("--engine-args '{}'", args.join(" ")), "  ", 100);
    }
    if let Some(again) = again {
        let found = format!("{} ({})", seconds(again.seconds), change(again.slower));
        let words = format!("`plan` finds another layout of {found} with --engine-args '{}'", again.args);
        text += &wrap(&words, "  ", 100);
    }
    text
}

/// The same as data.
pub fn json(solved: &Solved, best: &Choice) -> Vec<Value> {
    solved.besides(best).iter().map(one).collect()
}

fn one(one: &Besides) -> Value {
    let Besides { offer, seconds, headroom } = one;
    json!({
        "what": offer.what, "engine_args": offer.args, "needs": offer.needs, "seconds": seconds,
        "headroom_bytes": headroom,
    })
}

/// A layout that another search found.
pub fn again_json(again: Option<&Again>) -> Option<Value> {
    let Again { args, seconds, slower } = again?;
    Some(json!({ "engine_args": args, "seconds": seconds, "slower": slower }))
}
