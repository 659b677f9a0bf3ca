//! Why a layout is not the best: illegal by which rule, too large on which stage and line, or
//! slower in which part.

use super::Solved;
use super::json::layout_of;
use super::text::{flags_of, seconds};
use super::trust::told_apart;
use crate::commands::fit::unmodelled;
use crate::outcome::Refusal;
use crate::table::{Table, heading, wrap};
use case::{Asked, Case, Terms};
use cost::Step;
use diag::{Blame, Finding, Severity};
use layout::Layout;
use memory::fit::{Fit, Verdict};
use recipe::import::megatron_args::shell_words;
use search::Batch;
use serde_json::{Value, json};
use units::Bytes;

/// The words and the JSON of an explanation.
type Explained = (String, Value);

/// Explains the layout typed behind `--explain`.
pub fn explain(solved: &Solved, typed: &str) -> Result<Explained, Refusal> {
    let question = &solved.space.question;
    let title = heading(&format!("Why not {typed}"));
    let asked = asked(solved, typed)?;
    let case = match Case::build(asked, question.recipe.clone(), Some(question.cluster.clone()), Terms::RUN) {
        Ok(case) => case,
        Err(findings) => return Ok(illegal(&title, &findings)),
    };
    let fit = Fit::price(&case, question.margin()).map_err(|e| unmodelled(&e))?;
    let step = cost::step(&case);
    let step = step.map_err(|e| {
        let hint = "ask for another device or engine, or leave out what is named; docs/time.md says what is priced";
        Finding::error("plan/unpriced", Blame::Engine, e.what.clone(), e.to_string()).hint(hint)
    })?;
    let share = case.options.offload;
    let mut text = title + &wrap(&flags_of(&case), "  ", 100);
    let mut value = json!({ "layout": layout_of(&case.layout, share, &flags_of(&case)), "legal": true, "verdict": fit.verdict,
        "headroom_bytes": fit.tightest().headroom, "seconds": step.seconds });
    if fit.verdict != Verdict::Fits {
        let (words, line) = too_large(&fit, question.headroom);
        text += &words;
        value["line"] = json!(line);
        value["stage"] = json!(fit.worst().stage);
    }
    if let Some(best) = solved.answer.best() {
        let (words, parts) = slower([&best.case.layout, &case.layout], [&best.step, &step]);
        text += &words;
        let apart = cost::interval::apart(&cost::Class::of(&case));
        let is_equal = parts["share"].as_f64().is_some_and(|share| share.abs() <= apart.share);
        if is_equal {
            text += &wrap(&format!("equal to it as far as anybody can tell: {}", told_apart(&apart)), "  ", 100);
        }
        value["slower"] = parts;
        value["equal"] = json!(is_equal);
        value["told_apart"] = json!(apart);
    }
    Ok((text, value))
}

/// What was typed, with the question's own batch, engine and state where nothing else was.
fn asked(solved: &Solved, typed: &str) -> Result<Asked, Refusal> {
    let question = &solved.space.question;
    let words: Vec<String> = std::iter::once("recipe".to_string()).chain(shell_words(typed)).collect();
    let given = Asked::parse(&words).map_err(|message| {
        Finding::error("plan/explain", Blame::Usage, "explain", message).hint("give layout flags, as \"--tp 8 --pp 4\"")
    })?;
    let mut asked = question.asked.clone();
    asked.state.offload_optimizer = given.state.offload_optimizer.or(asked.state.offload_optimizer);
    let mut layout = given.layout;
    layout.seq = layout.seq.or(Some(solved.space.sequence));
    layout.engine = layout.engine.or(asked.layout.engine);
    layout.mode = layout.mode.or(asked.layout.mode);
    layout.vocab_multiple = layout.vocab_multiple.or(asked.layout.vocab_multiple);
    if layout.microbatches.is_none() && layout.gbs.is_none() {
        match solved.space.batch {
            Batch::Global(global) => layout.gbs = Some(global),
            Batch::Count(count) => layout.microbatches = Some(count),
        }
    }
    asked.layout = layout;
    Ok(asked)
}

fn illegal(title: &str, findings: &[Finding]) -> Explained {
    let errors: Vec<&Finding> = findings.iter().filter(|f| f.severity == Severity::Error).collect();
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
    let worst = fit.tightest();
    let largest = worst.lines.iter().max_by_key(|amount| amount.bytes);
    let (line, bytes) = largest.map_or(("", 0), |amount| (amount.entry.name(), amount.bytes));
    let missing = Bytes((wanted.0 as i64 - worst.headroom).unsigned_abs());
    let words = format!(
        "does not fit: stage {} misses {missing} of the headroom asked for{}; its largest line is {line} with {}",
        worst.stage,
        if fit.overloaded.is_some() { " under the overload" } else { "" },
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
