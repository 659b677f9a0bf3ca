//! Why a layout is not the best: illegal by which rule, too large on which stage and line, or
//! slower in which part.

use super::json::layout_of;
use super::text::{flags_of, seconds};
use super::{Asked, Solved};
use crate::args::ExplainArgs;
use crate::commands::fit::unmodelled;
use crate::outcome::Refusal;
use crate::table::{Table, heading, wrap};
use clap::Parser;
use cost::{Prices, Step};
use diag::{Blame, Finding, Severity};
use layout::{Checked, Layout, LayoutRequest, StagePlan, check};
use memory::fit::{Fit, FitRequest, OffloadRequest, Verdict};
use recipe::Mode;
use search::Batch;
use serde_json::{Value, json};
use units::Bytes;

/// The words and the JSON of an explanation.
type Explained = (String, Value);

/// Explains the layout typed behind `--explain`.
pub fn explain(asked: &Asked, solved: &Solved, typed: &str) -> Result<Explained, Refusal> {
    let (request, share) = request(asked, solved, typed)?;
    let checked = check(&asked.recipe, &request);
    let title = heading(&format!("Why not {typed}"));
    let legal = checked.layout.clone().filter(|_| checked.is_legal());
    let Some(layout) = legal else { return Ok(illegal(&title, &checked)) };
    let stages = StagePlan::new(&checked.recipe, &layout, None)?;
    let ledger = (solved.space.question.ledger)(&checked.recipe, &layout).and_then(|ledger| ledger.on_host(share));
    let ledger = ledger.map_err(|e| unmodelled(&e))?;
    let fit_request = FitRequest {
        recipe: &checked.recipe,
        layout: &layout,
        stages: &stages,
        device: &asked.cluster.device,
        ledger: &ledger,
        offload: OffloadRequest::of(&ledger, share, 0.0),
        headroom: solved.space.question.headroom,
    };
    let fit = Fit::price(&fit_request).map_err(|e| unmodelled(&e))?;
    let options = cost::Options { offload: share, ..solved.space.question.options };
    let step = Prices::new(&checked.recipe, &layout, &asked.cluster, &options).and_then(|p| p.step(&layout, &stages));
    let step = step.map_err(|e| Finding::error("plan/unpriced", Blame::Engine, e.what.clone(), e.to_string()))?;
    let mut text = title + &wrap(&flags_of(&layout, share), "  ", 100);
    let mut value = json!({ "layout": layout_of(&layout, share), "legal": true, "verdict": fit.verdict,
        "headroom_bytes": fit.worst().headroom, "seconds": step.seconds });
    if fit.verdict != Verdict::Fits {
        let (words, line) = too_large(&fit, solved.space.question.headroom);
        text += &words;
        value["line"] = json!(line);
        value["stage"] = json!(fit.worst().stage);
    }
    if let Some(best) = &solved.answer.best {
        let (words, parts) = slower([&best.layout, &layout], [&best.step, &step]);
        text += &words;
        value["slower"] = parts;
    }
    Ok((text, value))
}

/// The layout as typed, with what the question fixes.
fn request(asked: &Asked, solved: &Solved, typed: &str) -> Result<(LayoutRequest, f64), Refusal> {
    let words = typed.split_whitespace();
    let parsed = ExplainArgs::try_parse_from(words).map_err(|error| {
        let message = error.render().to_string().lines().next().unwrap_or("").trim_start_matches("error: ").to_string();
        Finding::error("plan/explain", Blame::Usage, "explain", message).hint("give layout flags, as \"--tp 8 --pp 4\"")
    })?;
    let mut request = parsed.layout.request();
    request.world = Some(solved.space.world);
    request.sequence = request.sequence.or(Some(solved.space.sequence));
    request.engine = request.engine.or(asked.pinned.engine);
    request.vocab_multiple = request.vocab_multiple.or(asked.pinned.vocab_multiple);
    if request.microbatches.is_none() && request.global_batch.is_none() {
        match solved.space.batch {
            Batch::Global(global) => request.global_batch = Some(global),
            Batch::Count(count) => request.microbatches = Some(count),
        }
    }
    if request.mode.is_none() {
        let usual = if request.tp == Some(1) { Mode::AuthorDp } else { Mode::NemoNative };
        request.mode = asked.pinned.mode.or(asked.recipe.modes.contains(&usual).then_some(usual));
    }
    Ok((request, parsed.offload_optimizer.clamp(0.0, 1.0)))
}

fn illegal(title: &str, checked: &Checked) -> Explained {
    let errors: Vec<&Finding> = checked.findings.iter().filter(|f| f.severity == Severity::Error).collect();
    let words: String = errors
        .iter()
        .map(|f| {
            let hint = f.hint.as_ref().map_or(String::new(), |hint| format!(" ({hint})"));
            wrap(&format!("illegal: {} [{}]{hint}", f.message, f.rule), "  ", 100)
        })
        .collect();
    (title.to_string() + &words, json!({ "legal": false, "findings": errors }))
}

fn too_large(fit: &Fit, wanted: Bytes) -> (String, &'static str) {
    let worst = fit.worst();
    let largest = worst.lines.iter().max_by_key(|amount| amount.bytes);
    let (line, bytes) = largest.map_or(("", 0), |amount| (amount.entry.name(), amount.bytes));
    let missing = Bytes((wanted.0 as i64 - worst.headroom).unsigned_abs());
    let words = format!(
        "does not fit: stage {} misses {missing} of the headroom asked for; its largest line is {line} with {}",
        worst.stage,
        Bytes(bytes)
    );
    (wrap(&words, "  ", 100), line)
}

/// Parts of the step against the best one's, a sequence each, those that grow most first.
fn slower(layouts: [&Layout; 2], steps: [&Step; 2]) -> (String, Value) {
    let each = |i: usize| steps[i].seconds / layouts[i].global_batch as f64;
    let share = each(1) / each(0) - 1.0;
    let of = |i: usize, name: &str| -> f64 {
        let part = steps[i].parts.iter().find(|part| part.name == name);
        part.map_or(0.0, |part| part.seconds / layouts[i].global_batch as f64)
    };
    let mut names: Vec<&'static str> = steps.iter().flat_map(|step| step.parts.iter().map(|part| part.name)).collect();
    names.sort_unstable();
    names.dedup();
    let mut grown: Vec<(&str, f64, f64)> = names.into_iter().map(|name| (name, of(0, name), of(1, name))).collect();
    grown.sort_by(|a, b| (b.2 - b.1).total_cmp(&(a.2 - a.1)).then(a.0.cmp(b.0)));
    let batch = layouts[0].global_batch as f64;
    let mut table = Table::new(&["part", "best", "this one", "more"]).right(&[1, 2, 3]);
    for (name, before, after) in
        grown.iter().filter(|(_, before, after)| (after - before).abs() > 1e-3 * each(0)).take(5)
    {
        let sign = if after >= before { "+" } else { "-" };
        let more = format!("{sign}{}", seconds((after - before).abs() * batch));
        table.row([name.to_string(), seconds(before * batch), seconds(after * batch), more]);
    }
    let word = if share >= 0.0 { "slower" } else { "faster" };
    let head = format!(
        "  {:.1}% {word} than the best: {} against {}\n",
        100.0 * share.abs(),
        seconds(each(1) * batch),
        seconds(each(0) * batch)
    );
    let parts: Vec<Value> = grown
        .iter()
        .map(|(name, before, after)| json!({ "part": name, "best": before * batch, "this": after * batch }))
        .collect();
    (head + &table.render(), json!({ "share": share, "parts": parts }))
}
