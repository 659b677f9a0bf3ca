//! Options of the engine that the search leaves off, and what each would buy.

use super::Solved;
use super::text::seconds;
use crate::table::{Table, heading, wrap};
use search::{Besides, Choice};
use serde_json::{Value, json};
use units::{Bytes, change};

pub fn text(solved: &Solved, best: &Choice) -> String {
    let all = solved.besides(best);
    if all.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["option", "needs", "step", "change", "headroom"]).right(&[2, 3, 4]);
    for one in all {
        table.row([
            one.offer.what.to_string(),
            one.offer.needs.unwrap_or("-").to_string(),
            seconds(one.seconds),
            change(one.seconds / best.step.seconds - 1.0),
            Bytes(one.headroom.max(0) as u64).to_string(),
        ]);
    }
    let args: Vec<&str> = all.iter().map(|one| one.offer.args.as_str()).collect();
    let beside = best.case.beside_figures();
    heading(&format!("Not searched, since each needs a package: each row adds to those above{beside}"))
        + &table.render()
        + &wrap(&format!("--engine-args '{}'", args.join(" ")), "  ", 100)
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
