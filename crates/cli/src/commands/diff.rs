//! `diff`: which lines grow between two recipes or layouts.

use super::case_of;
use super::fit::price;
use crate::args::DiffArgs;
use crate::outcome::{Outcome, Refusal, Report};
use crate::table::{Table, heading};
use case::{Asked, Case, Difference, Terms};
use diag::{Blame, Finding, quote};
use memory::fit::{Fit, HEADROOM, Review, review};
use recipe::import::megatron_args::shell_words;
use serde_json::json;
use units::Bytes;

pub fn run(args: &DiffArgs) -> Outcome {
    let (before, after) = (side(&args.before, &args.on)?, side(&args.after, &args.on)?);
    let limit = args.work.of_an_answer();
    let price = |case: &Case| price(case, HEADROOM, &limit, 2);
    let (old, new) = (price(&before)?, price(&after)?);
    let found = review(&old, &new);
    let mut text = format!(
        "\x1b[1mbefore\x1b[0m  {}\n\x1b[1mafter\x1b[0m   {}\n",
        quote::terminal(&args.before),
        quote::terminal(&args.after)
    );
    let differences = before.differences(&after);
    text += &jobs_text(&differences);
    text += &changes_text(&found);
    text += &summary(&old, &new, &found);
    let change = |c: &memory::fit::Change| json!({ "line": c.entry.name(), "before_bytes": c.before, "after_bytes": c.after, "delta_bytes": c.delta() });
    let json = json!({
        "before": args.before, "after": args.after,
        "differs_in": differences.iter().map(|d| json!({ "part": d.part.name(), "key": d.key, "old": d.old, "new": d.new })).collect::<Vec<_>>(), "changes": found.changes.iter().map(change).collect::<Vec<_>>(),
        "delta_bytes": found.delta, "peak_before": found.peaks[0], "peak_after": found.peaks[1],
        "peak_moves": found.peaks[0] != found.peaks[1], "tail_dominates": found.tail_dominates,
        "verdict_before": old.verdict, "verdict_after": new.verdict,
    });
    Ok(Report::new(text, json))
}

/// One side: a recipe with flags, as a shell would split it.
fn side(words: &str, on: &str) -> Result<Case, Refusal> {
    let mut asked = Asked::parse(&shell_words(words)).map_err(|message| {
        Finding::error("diff/side", Blame::Usage, words, message).hint("quote a side: \"nam56r --ep 4 --etp 1\"")
    })?;
    asked.on.get_or_insert(on.to_string());
    case_of(asked, Terms::RUN)
}

/// In what the two jobs differ; what only follows from it is in the lines.
fn jobs_text(differences: &[Difference]) -> String {
    let mut table = Table::new(&["part", "what", "before", "after"]);
    for difference in differences {
        let [old, new] = [&difference.old, &difference.new].map(|value| super::shorten(value, 30));
        table.row([difference.part.name(), &difference.key, &old, &new]);
    }
    heading("In what the jobs differ") + &table.render()
}

fn changes_text(review: &Review) -> String {
    let mut table =
        Table::new(&["line", "before", "after", "grows by", "scales with"]).right(&[1, 2, 3]).spare(&[&[4]]);
    for change in &review.changes {
        table.row([
            change.entry.name(),
            &Bytes(change.before).to_string(),
            &Bytes(change.after).to_string(),
            &signed(change.delta()),
            &change.scaling.words,
        ]);
    }
    heading("Lines of the worst rank that differ") + &table.render()
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}

fn summary(old: &Fit, new: &Fit, review: &Review) -> String {
    let [(old_phase, old_block), (new_phase, new_block)] = &review.peaks;
    let moves = if review.peaks[0] == review.peaks[1] {
        format!("the peak stays in {new_block} during {new_phase}")
    } else {
        format!("the peak moves from {old_block} during {old_phase} to {new_block} during {new_phase}")
    };
    let tail = if review.tail_dominates { "; the runtime tail is now larger than any line of the model" } else { "" };
    format!(
        "\n{} in all; {moves}{tail}\nbefore: {}, after: {}\n",
        signed(review.delta),
        old.verdict.name(),
        new.verdict.name()
    )
}
