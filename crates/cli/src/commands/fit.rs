//! `fit`: memory geometry per rank class, phases, headroom, verdict, levers.

mod phases;
mod pools;
mod routing;

use super::plan::size::{self, Goal};
use super::plan::text::seconds;
use super::plan::trust::{spread, such_runs};
use super::{asked, calibrated_text, case_of, case_text, layout_json, seen, serving, widths};
use crate::args::{FitArgs, YesOrNo};
use crate::outcome::{DOES_NOT_FIT, NO, Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use crate::{bars, pictures};
use case::{Case, Terms};
use cost::{Step, Unpriced};
use diag::{Blame, Finding};
use draw::Picture;
use fleet::words::FleetText;
use hardware::split_pools;
use launch::header::Header;
use layout::{Recompute, Schedule};
use memory::fit::{
    AtOverload, Breaks, Fit, HostUse, Item, Lever, Levers, Overload, Overloaded, RankClass, Verdict, at_overloads,
    checklist, communicators, levers, routing, work,
};
use recipe::Mixer;
use replay::Unmodelled;
use serde_json::{Value, json};
use units::{Bytes, count, longer};
use work::{Limit, Work};

/// A refusal to price, by name.
pub fn unmodelled(reason: &Unmodelled) -> Refusal {
    Finding::error("fit/unmodelled", Blame::Engine, reason.what.clone(), reason.to_string())
        .hint("leave it out, or price another engine with --engine; docs/memory.md says what each ledger replays")
        .into()
}

/// Prices a job, which is done so many times in all, unless that is predicted to take more of this
/// machine than is allowed.
pub fn price(case: &Case, headroom: Bytes, limit: &Limit, times: u64) -> Result<Fit, Refusal> {
    allowed(case, limit, times)?;
    Fit::price(case, headroom).map_err(|e| unmodelled(&e))
}

/// Refuses to price a job so many times where that takes more of this machine than is allowed. What has
/// no price takes nothing.
pub fn allowed(case: &Case, limit: &Limit, times: u64) -> Result<(), Refusal> {
    let predicted = work(case).map_or(Work::default(), |work| work.repeated(times));
    let stages = case.layout.pp.get();
    let what = if stages == 1 { "replaying this job".to_string() } else { format!("replaying its {stages} stages") };
    Ok(limit.check(&what, predicted, less(case))?)
}

/// What makes a replay shorter.
fn less(case: &Case) -> &'static str {
    match case.layout.schedule {
        Schedule::GPipe => "fewer --microbatches, which are all in flight under gpipe",
        _ => "a shorter --seq, fewer --microbatches, or a recipe of less depth",
    }
}

pub fn run(args: &FitArgs) -> Outcome {
    if let FleetText::Any(devices) = FleetText::parse(&args.on)? {
        return size::of_devices(&size::asked_by(args)?, &devices, Goal::Hold);
    }
    if split_pools(&args.on).is_some() {
        return pools::run(args);
    }
    let case = case_of(asked(&args.recipe, &args.layout, &args.state, Some(&args.on)), Terms::RUN)?;
    if args.serving.serve {
        return serving::run(args, &case);
    }
    let visible = case.on().device.visible_bytes();
    let headroom = args.headroom.on(&case.on().device, &case.source);
    let typed = args.headroom.bytes(visible);
    if typed.0 > visible {
        let message = format!("`--headroom` asks for {typed}, and {} shows {}", case.on().device.name, Bytes(visible));
        let hint = "GiB (`8`) or a share of the device (`10%`)";
        return Err(Finding::error("fit/headroom", Blame::Usage, "headroom", message).hint(hint).into());
    }
    if let Some(factor) = args.overload.iter().find(|f| !f.is_finite() || **f <= 0.0) {
        let message = format!("`--overload {factor}` is no factor over the balanced share");
        let hint = "1.0 is a balanced router, 2.0 twice its share: --overload 1.0,1.5,2.0";
        return Err(Finding::error("fit/overload", Blame::Usage, "overload", message).hint(hint).into());
    }
    let limit = args.work.of_an_answer();
    let again = args.overload.len() + usize::from(args.checklist) + usize::from(args.seen.memory_snapshot.is_some());
    let fit = price(&case, headroom, &limit, 1 + again as u64)?;
    let step = cost::step(&case);
    let taken = work(&case).map_or(0, |work| work.repeated(1 + again as u64).operations);
    let mut allowed = limit.operations.saturating_sub(taken);
    let overload = Overload::of(&case, &fit, allowed);
    allowed -= overload.as_ref().map_or(0, |overload| overload.operations);
    let found = match args.levers {
        YesOrNo::Yes => Some(levers(&case, &fit, allowed, &tokens_per_second)),
        YesOrNo::No => None,
    };
    let skew = at_overloads(&case, &args.overload).map_err(|e| unmodelled(&e))?;
    let items = if args.checklist { checklist(&case, &fit) } else { Vec::new() };
    let seen = seen::write(&args.seen, &case, fit.worst().stage, &limit)?;
    let layer = routing(&case, fit.worst().stage);
    let routing_text = if args.routing { routing::text(&case, &fit, layer.as_ref()) } else { String::new() };
    let mut text = verdict_text(&case, &fit);
    text += &overload.as_ref().map_or(String::new(), |overload| wrap(&overload.words(), "", 80));
    text += &host_text(&fit);
    text += &step_text(&case, &step);
    text += &calibrated_text(&case.on().device, &case.source, "");
    text.push('\n');
    let slower = step.as_ref().map_or(String::new(), |step| widths::text(&case, step.seconds));
    text += &slower;
    text += if slower.is_empty() { "" } else { "\n" };
    text += &case_text(&case);
    text.push('\n');
    text += &bars::bars(&fit.classes, visible, 60);
    text += &lines_text(fit.worst());
    text += &classes_text(&fit.classes);
    text += &phases::text(fit.worst());
    text += &routing_text;
    text += &overload_text(&skew, &args.overload);
    text += &found.as_ref().map_or(String::new(), |found| levers_text(&found.found) + &untried_text(&found.untried));
    text += &checklist_text(&items);
    text += &unmodelled_text(&fit);
    text += &seen.paragraph();
    let skew = overload.as_ref().map_or(Value::Null, |overload| overload_json(overload, &skew));
    let mut json = fit_json(&case, &fit, found.as_ref(), skew, &items);
    json["step"] = step_json(&step);
    json["slower_widths"] = widths::json(&case);
    json["header"] = json!(Header::of(&case));
    json["calibration"] = json!(case.on().device.calibration);
    json["routing"] = routing::json(layer.as_ref());
    seen.into_json(&mut json);
    pictures::write(&args.pictures, Picture::Memory, &json)?;
    let report = Report::new(text, json).with_findings(&case.findings);
    Ok(match fit.verdict {
        Verdict::DoesNotFit => report.refused(DOES_NOT_FIT, [does_not_fit(&case, fit.worst().total())]),
        _ if items.iter().any(|item| !item.holds) => report.refused(NO, items.iter().filter_map(unmet)),
        Verdict::Fits | Verdict::Tight => report,
    })
}

/// An item of the checklist that does not hold, for scripts.
fn unmet(item: &Item) -> Option<Finding> {
    let message = format!("{}: {}", item.what, item.evidence);
    let finding = Finding::error("fit/checklist", Blame::Layout, item.what, message);
    (!item.holds).then(|| finding.hint("the checklist says what is missing; docs/memory.md has a section on it"))
}

/// What does not fit, for scripts; the text says it first.
pub fn does_not_fit(case: &Case, total: u64) -> Finding {
    let device = &case.on().device;
    let message = format!(
        "the worst rank holds {} of the {} that {} shows",
        Bytes(total),
        Bytes(device.visible_bytes()),
        device.name
    );
    let recompute = if case.layout.recompute == Recompute::Full { "" } else { ", --recompute full" };
    let hint = format!("more devices{recompute} or more of an axis; `fit` lists what each lever saves");
    Finding::error("fit/does-not-fit", Blame::Layout, "memory", message).hint(hint)
}

/// What the hosts hold, against what they usually have.
pub fn host_text(fit: &Fit) -> String {
    let HostUse { node_bytes, has_bytes, drive_bytes, drives_have } = fit.host;
    if node_bytes == 0 {
        return String::new();
    }
    let drives = match drives_have {
        _ if drive_bytes == 0 => String::new(),
        Some(have) if drive_bytes > have => {
            format!("its drives keep {}, more than the {} they have\n", Bytes(drive_bytes), Bytes(have))
        }
        Some(have) => format!("its drives keep {} of {} that they have\n", Bytes(drive_bytes), Bytes(have)),
        None => format!("its drives keep {}, and nobody says what they have\n", Bytes(drive_bytes)),
    };
    let has = match has_bytes {
        Some(has) if node_bytes > has => format!("more than the {} it usually has", Bytes(has)),
        Some(has) => format!("of {} that it usually has", Bytes(has)),
        None => "and nobody says what it has".to_string(),
    };
    format!("the host of a node keeps {} for its devices, {has}\n", Bytes(node_bytes)) + &drives
}

/// How long a step takes, in one sentence, or why nobody says.
fn step_text(case: &Case, step: &Result<Step, Unpriced>) -> String {
    match step {
        Ok(step) => format!(
            "a step takes {}, {}: {} tokens/s a device, bound by {}{}\n{}{}\n",
            seconds(step.seconds),
            spread(step),
            count(step.tokens_per_second_per_device as u64),
            step.bound,
            case.beside_figures(),
            wrap(&Header::of(case).to_string(), "  ", 80),
            such_runs(step)
        ),
        Err(reason) => format!("no time for a step: {reason}\n"),
    }
}

/// The step, or why there is none.
pub fn step_json(step: &Result<Step, Unpriced>) -> Value {
    match step {
        Ok(step) => json!(step),
        Err(reason) => json!({ "unpriced": reason.to_string() }),
    }
}

fn verdict_colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fits => "\x1b[1;32m",
        Verdict::Tight => "\x1b[1;33m",
        Verdict::DoesNotFit => "\x1b[1;31m",
    }
}

/// The verdict in two sentences.
pub fn verdict_text(case: &Case, fit: &Fit) -> String {
    let (worst, device) = (fit.worst(), &case.on().device);
    let colour = verdict_colour(fit.verdict);
    let left = match u64::try_from(worst.headroom) {
        Ok(left) => format!("{} left", Bytes(left)),
        Err(_) => format!("{} over", Bytes(worst.headroom.unsigned_abs())),
    };
    format!(
        "{colour}{}\x1b[0m on {}: the worst ranks are stage {}'s ({}-{}), holding {} of {} ({left}, {} asked for){}\n\
         the peak stands in {} during {}\n{}",
        fit.verdict.name(),
        device.name,
        worst.stage,
        worst.first_rank,
        worst.first_rank + worst.num_ranks - 1,
        Bytes(worst.total()),
        Bytes(device.visible_bytes()),
        fit.margin.headroom,
        case.beside_figures(),
        worst.peak_origin,
        worst.peak_phase,
        overloaded_text(fit, device.visible_bytes())
    )
}

/// What the fullest rank holds under the overload that was asked for; nothing where none was.
pub fn overloaded_text(fit: &Fit, visible: u64) -> String {
    let Some(Overloaded { factor, class }) = &fit.overloaded else { return String::new() };
    let left = match u64::try_from(class.headroom) {
        Ok(left) => format!("{} left", Bytes(left)),
        Err(_) => format!("{} over", Bytes(class.headroom.unsigned_abs())),
    };
    format!(
        "with experts that receive {factor:.2} times their share, stage {} holds {} of {} ({left})\n",
        class.stage,
        Bytes(class.total()),
        Bytes(visible)
    )
}

/// The largest lines of the worst rank, in one sentence.
pub fn fit_lines(fit: &Fit) -> String {
    let mut lines: Vec<_> = fit.worst().lines.iter().filter(|a| a.bytes > 0).collect();
    lines.sort_by_key(|a| std::cmp::Reverse(a.bytes));
    let words: Vec<String> = lines.iter().take(6).map(|a| format!("{} {}", a.entry.name(), Bytes(a.bytes))).collect();
    format!("  most of it: {}\n", words.join(", "))
}

/// The lines of the worst class with their basis.
fn lines_text(class: &RankClass) -> String {
    let head = ["line", "bytes", "basis", "scales with", "does not care about"];
    let mut table = Table::new(&head).right(&[1]).spare(&[&[2], &[4]]);
    for amount in class.lines.iter().filter(|a| a.bytes > 0) {
        table.row([
            amount.entry.name(),
            &Bytes(amount.bytes).to_string(),
            &super::shorten(&amount.basis.words(), 34),
            &amount.scaling.words,
            &amount.scaling.ignored(),
        ]);
    }
    let title = format!("Lines at the peak of stage {} (one rank; {} parameters)", class.stage, count(class.params));
    let mut out = heading(&title) + &table.render();
    if class.offload.host_bytes > 0 {
        out += &format!(
            "  on the host: {} of AdamW's state, {} of activations; the link takes {:.2} s a step if nothing hides it\n",
            Bytes(class.offload.optimizer_bytes),
            Bytes(class.offload.activation_bytes),
            class.offload.link_seconds
        );
    }
    out
}

fn classes_text(classes: &[RankClass]) -> String {
    if classes.len() == 1 {
        return String::new();
    }
    let mut table =
        Table::new(&["stage", "ranks", "parameters", "allocated", "reserved", "outside", "headroom", "peak stands in"])
            .right(&[0, 2, 3, 4, 5, 6])
            .spare(&[&[1], &[2], &[3]]);
    for class in classes {
        let left = class.headroom as f64 / Bytes::GIB.0 as f64;
        table.row([
            class.stage.to_string(),
            format!("{}-{}", class.first_rank, class.first_rank + class.num_ranks - 1),
            count(class.params),
            Bytes(class.allocated_peak).to_string(),
            Bytes(class.reserved_peak).to_string(),
            Bytes(class.outside).to_string(),
            format!("{left:.1} GiB"),
            format!("{} ({})", class.peak_origin, class.peak_phase),
        ]);
    }
    heading("Rank classes") + &table.render()
}

/// Memory at each factor that was asked for.
fn overload_text(skew: &[AtOverload], asked: &[f64]) -> String {
    if asked.is_empty() {
        return String::new();
    }
    if skew.is_empty() {
        return heading("Routing skew") + "  there are no experts: nothing is routed\n";
    }
    let mut table = Table::new(&["overload", "holds", "headroom"]).right(&[0, 1, 2]);
    for at in skew {
        table.row([
            format!("{:.2}", at.factor),
            Bytes(at.total).to_string(),
            format!("{:.1} GiB", at.headroom as f64 / Bytes::GIB.0 as f64),
        ]);
    }
    heading("Routing skew (worst rank)") + &table.render()
}

/// Where routing breaks a job, and what it holds at each factor that was asked for.
pub fn overload_json(overload: &Overload, skew: &[AtOverload]) -> Value {
    let at = |o: &AtOverload| json!({ "factor": o.factor, "total_bytes": o.total, "headroom_bytes": o.headroom });
    let is_known = matches!(overload.breaks, Breaks::At(_) | Breaks::Never);
    let unknown = (!is_known).then(|| overload.words());
    json!({ "at": skew.iter().map(at).collect::<Vec<_>>(), "breaks_at": overload.breaks_at(), "most": overload.most, "unknown": unknown })
}

/// Levers that were left out, and what tries them.
fn untried_text(untried: &[String]) -> String {
    if untried.is_empty() {
        return String::new();
    }
    let text = format!(
        "not tried, because replaying this job takes long: {}; a larger `--work-limit` tries \
         them",
        untried.join(", ")
    );
    wrap(&text, "  ", 80) + "\n"
}

/// What is left, or lacking: a little less than nothing is not nothing.
fn headroom(bytes: i64) -> String {
    let gib = bytes as f64 / Bytes::GIB.0 as f64;
    match gib.abs() < 0.05 {
        true => format!("{}{}", if bytes < 0 { "-" } else { "" }, Bytes(bytes.unsigned_abs())),
        false => format!("{gib:.1} GiB"),
    }
}

/// Tokens a second and device.
pub fn tokens_per_second(case: &Case) -> Option<f64> {
    cost::step(case).ok().map(|step| step.tokens_per_second_per_device)
}

fn levers_text(levers: &[Lever]) -> String {
    let columns = ["change", "saves", "holds then", "headroom", "time", "costs"];
    let mut table = Table::new(&columns).right(&[1, 2, 3, 4]).spare(&[&[2]]);
    for lever in levers.iter().take(8) {
        table.row([
            lever.change.clone(),
            Bytes(lever.saves_bytes).to_string(),
            Bytes(lever.total_bytes).to_string(),
            headroom(lever.headroom_bytes),
            longer(lever.slows),
            lever.costs.to_string(),
        ]);
    }
    heading("Levers (one change each: bytes of the worst rank, time of a token)") + &table.render()
}

fn checklist_text(items: &[Item]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["", "item", "evidence"]);
    for item in items {
        table.row([if item.holds { "ok" } else { "NO" }, item.what, &item.evidence]);
    }
    heading("Checklist") + &table.render()
}

fn unmodelled_text(fit: &Fit) -> String {
    let lines: String = fit.unmodelled.iter().map(|line| format!("  {line}\n")).collect();
    heading("Not in any number above") + &lines
}

/// One rank class as JSON.
fn class_json(class: &RankClass) -> Value {
    let line = |a: &memory::fit::Amount| json!({ "line": a.entry.name(), "bytes": a.bytes, "basis": a.basis, "scales_with": a.scaling.words, "ignores": a.scaling.ignored() });
    json!({
        "ranks": { "first": class.first_rank, "count": class.num_ranks }, "example_rank": class.first_rank, "stage": class.stage,
        "params": class.params, "lines": class.lines.iter().map(line).collect::<Vec<_>>(),
        "phases": phases::json(class), "peak_phase": class.peak_phase.to_string(),
        "peak_block": class.peak_origin.to_string(), "allocated_peak_bytes": class.allocated_peak,
        "reserved_peak_bytes": class.reserved_peak, "outside_bytes": class.outside, "total_bytes": class.total(),
        "headroom_bytes": class.headroom, "host_bytes": class.offload.host_bytes, "drive_bytes": class.offload.drive_bytes, "link_seconds": class.offload.link_seconds,
    })
}

fn fit_json(case: &Case, fit: &Fit, levers: Option<&Levers>, overload: Value, items: &[Item]) -> Value {
    let has_experts = case.recipe.uses(Mixer::Moe);
    let mut json = json!({
        "recipe": case.recipe.name, "layout": layout_json(&case.layout, &case.defaults),
        "hardware": case.cluster, "engine": case.engine().name(),
        "device_bytes": case.on().device.visible_bytes(), "headroom_bytes": fit.margin.headroom,
        "verdict": fit.verdict, "host": fit.host, "rank_classes": fit.classes.iter().map(class_json).collect::<Vec<_>>(),
        "worst": fit.worst, "communicators": communicators(&case.layout, has_experts),
        "unmodelled": fit.unmodelled, "levers": levers.map(|levers| &levers.found), "checklist": items,
        "overload": overload, "seams": case.seams, "findings": case.findings, "case": case.to_json(),
    });
    if let Some(levers) = levers.filter(|levers| !levers.untried.is_empty()) {
        json["levers_untried"] = json!(levers.untried);
    }
    json
}
