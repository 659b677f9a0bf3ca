//! The smallest fleet that does it: rising sizes, from the first that no device could do it below of, each searched
//! only for layouts that are fast enough.

use super::budget::Run;
use super::text::flags_of;
use super::{Aim, Solved, Wanted, report, with_solution};
use crate::args::{BudgetArgs, FitArgs, PictureArgs, PlanArgs, SearchArgs, SeenArgs};
use crate::bars;
use crate::commands::plan::budget::text as budget;
use crate::commands::typed;
use crate::outcome::{NO, Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use case::options::Format;
use diag::{Blame, Finding};
use fleet::failures::DAY;
use fleet::words::{MOST_DEVICES, sizes};
use fleet::{Failures, Smallest, smallest};
use hardware::{ClusterText, Device};
use search::Choice;
use serde_json::{Value, json};
use units::{Bytes, exact};

/// What is asked of a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// So many tokens in so many days.
    Days { tokens: u64, days: f64 },
    /// Room for the model.
    Hold,
}

/// One device's smallest fleet.
struct Found {
    on: String,
    devices: u64,
    /// Days, and what they cost.
    run: Option<Run>,
    report: Report,
}

/// What came of one device.
struct Row {
    device: String,
    /// Or why there is none.
    found: Result<Found, String>,
    tried: Vec<u64>,
    skipped: Vec<u64>,
}

pub fn run(args: &PlanArgs, devices: &[String]) -> Outcome {
    let (Some(tokens), Some(days)) = (args.budget.tokens, args.budget.days) else {
        let message = "`?` asks how many devices it takes, and nothing says for what";
        let hint = "add --tokens 15T --days 30; `shardwright fit RECIPE --on ?xH100` says how many hold the model";
        return Err(Finding::error("plan/fleet", Blame::Usage, "on", message).hint(hint).into());
    };
    of_devices(args, devices, Goal::Days { tokens, days })
}

/// The smallest fleet of every device, and the cheapest of them in full.
pub fn of_devices(args: &PlanArgs, devices: &[String], goal: Goal) -> Outcome {
    if let Some(flag) = args.seen.first().filter(|_| devices.len() != 1) {
        let message = format!("`{flag}` writes one job, and several devices are several");
        return Err(Finding::error("plan/sweep-seen", Blame::Usage, flag, message).hint("ask for one device").into());
    }
    if args.search.sequences.len() > 1 {
        let message = "`--sequences` is a sweep, and `?` looks for one fleet";
        return Err(Finding::error("plan/fleet", Blame::Usage, "sequences", message)
            .hint("pick one with --seq")
            .into());
    }
    let every: Vec<String> = Device::names().map(str::to_string).collect();
    let is_every = devices.is_empty();
    let devices = if is_every { &every } else { devices };
    let mut rows = Vec::new();
    for device in devices {
        match row(args, device, goal) {
            Ok(row) => rows.push(row),
            // One that cannot be priced is a row among others, and the answer where it is alone.
            Err(refusal) if devices.len() == 1 => return Err(refusal),
            Err(refusal) => {
                let why = refusal.findings.first().map_or("refused".to_string(), |finding| finding.message.clone());
                rows.push(Row { device: device.clone(), found: Err(why), tried: Vec::new(), skipped: Vec::new() });
            }
        }
    }
    Ok(answer(args, rows, goal))
}

fn row(args: &PlanArgs, device: &str, goal: Goal) -> Result<Row, Refusal> {
    let first = format!("1x{device}");
    let typed = ClusterText::parse(&first)?;
    let known = crate::files::load_device(typed.device)?;
    let sizes = sizes(&known);
    let least = least(args, &known, device, goal)?;
    let Smallest { found, tried, skipped } = smallest(&sizes, least, |size| does(args, device, size, goal))?;
    let found = match found {
        Some((_, found)) => Ok(found),
        None => Err(format!("none up to {} devices", exact(MOST_DEVICES))),
    };
    Ok(Row { device: device.to_string(), found, tried, skipped })
}

/// Devices below which no layout does it: every product at the device's peak and nothing else takes too long, or what a
/// step cannot do without is more than all their memory.
fn least(args: &PlanArgs, device: &Device, name: &str, goal: Goal) -> Result<u64, Refusal> {
    let node = format!("{}x{name}", sizes(device).first().copied().unwrap_or(1));
    let wanted = Wanted::new(args, &node, None)?;
    let count = match goal {
        Goal::Days { tokens, days } => {
            let peak = match wanted.options.format {
                Format::Bf16 => device.peak("bf16").map(|peak| peak.flops).unwrap_or(0.0),
                _ => 0.0,
            };
            let highest = device.peaks.iter().map(|peak| peak.flops).fold(peak, f64::max);
            let peak = if peak > 0.0 { peak } else { highest };
            let flops = tokens as f64 * cost::products_per_token(&wanted.recipe);
            flops / (peak.max(1.0) * days * DAY)
        }
        // Weights alone, in four bits: less than any engine holds.
        Goal::Hold => wanted.recipe.counts().all.total as f64 / 2.0 / device.visible_bytes().max(1) as f64,
    };
    Ok(count.ceil().clamp(1.0, 2.0 * MOST_DEVICES as f64) as u64)
}

/// Whether a fleet of a size does it. A size that nothing is legal on does not.
fn does(args: &PlanArgs, device: &str, size: u64, goal: Goal) -> Result<Option<Found>, Refusal> {
    let on = format!("{size}x{device}");
    let wanted = Wanted::new(args, &on, args.search.sequences.first().copied())?;
    let sequence = wanted.pinned.sequence.unwrap_or(wanted.recipe.sequence);
    let most = match goal {
        Goal::Hold => f64::INFINITY,
        Goal::Days { tokens, days } => {
            // As much of the time as could count: nothing redone, no save waited for.
            let cluster = &wanted.cluster;
            let failures = Failures::of(&cluster.device.name, cluster.nodes, &args.budget.failures());
            let useful = 1.0 - failures.restart_seconds / failures.between(cluster.nodes);
            days * DAY * useful.max(0.0) / (tokens as f64 / sequence as f64)
        }
    };
    // How many hold a model is asked of the devices themselves.
    let aim = Aim { is_open: matches!(goal, Goal::Days { .. }), ..Aim::fleet(most) };
    if !wanted.may_fit(args, aim) {
        return Ok(None);
    }
    let solved = with_solution(args, &wanted, aim, |solved| found(args, &wanted, solved, &on, goal));
    match solved {
        Ok(found) => Ok(found),
        // What refuses every layout of this size may let others pass.
        Err(refusal) if refusal.findings.iter().all(|finding| finding.blame == Blame::Layout) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

fn found(args: &PlanArgs, wanted: &Wanted, solved: &Solved, on: &str, goal: Goal) -> Result<Option<Found>, Refusal> {
    let Some(best) = solved.answer.best() else { return Ok(None) };
    let run = match goal {
        Goal::Hold => None,
        Goal::Days { tokens, days } => {
            let run = Run::of(&args.budget, tokens, &best.case, &best.step)?;
            if run.budget.days > days {
                return Ok(None);
            }
            Some(run)
        }
    };
    let report = match goal {
        Goal::Hold => held(wanted, solved, best),
        Goal::Days { .. } => report(&PlanArgs { on: on.to_string(), ..args.clone() }, wanted, solved)?,
    };
    Ok(Some(Found { on: on.to_string(), devices: wanted.cluster.devices(), run, report }))
}

/// A layout under which it fits, and how to look at it.
fn held(wanted: &Wanted, solved: &Solved, best: &Choice) -> Report {
    let layout = flags_of(&best.case);
    let worst = best.fit.worst();
    let left = Bytes(worst.headroom.max(0) as u64);
    let text = heading("The fastest layout that fits")
        + &wrap(&layout, "  ", 100)
        + &format!("  {} on the fullest rank (stage {}), {left} left\n", Bytes(worst.total()), worst.stage)
        + &bars::bars(&best.fit.classes[..best.fit.classes.len().min(8)], wanted.cluster.device.visible_bytes(), 60)
        + &heading("Look closer")
        + &format!("  shardwright fit {}\n", typed(&best.case));
    let json = json!({ "recipe": wanted.recipe.name, "seq": solved.space.sequence, "flags": typed(&best.case),
        "total_bytes": worst.total(), "headroom_bytes": worst.headroom });
    Report::new(text, json)
}

/// `fit`'s question as a search's; what only one layout can be asked is refused.
pub fn asked_by(args: &FitArgs) -> Result<PlanArgs, Refusal> {
    let one = [
        ("--serve", args.serving.serve),
        ("--checklist", args.checklist),
        ("--routing", args.routing),
        ("--overload", !args.overload.is_empty()),
    ];
    let named = one.iter().find(|(_, is_typed)| *is_typed).map(|(flag, _)| *flag);
    let drawn = args.pictures.given().next().map(|(flag, _)| flag);
    if let Some(flag) = named.or(drawn).or(args.seen.first()) {
        let message = format!("`{flag}` is about one layout, and `?` looks for a fleet");
        let hint = "ask for the fleet first, then `fit` the layout it names";
        return Err(Finding::error("plan/fleet", Blame::Usage, flag, message).hint(hint).into());
    }
    Ok(PlanArgs {
        recipe: args.recipe.clone(),
        on: args.on.clone(),
        layout: args.layout.clone(),
        state: args.state.clone(),
        search: SearchArgs::with(args.headroom),
        budget: BudgetArgs {
            price_per_device_hour: args.price_per_device_hour.clone(),
            pue: 1.0,
            ..BudgetArgs::default()
        },
        pictures: PictureArgs::default(),
        seen: SeenArgs::default(),
        work: args.work,
    })
}

/// The rows, and the cheapest in full: by price where every fleet found has one, else by count.
fn answer(args: &PlanArgs, rows: Vec<Row>, goal: Goal) -> Report {
    let price = |found: &Found| -> Option<f64> {
        let name = ClusterText::parse(&found.on).ok().and_then(|text| Device::find(text.device).ok())?.name;
        let price = args.budget.price_per_device_hour.as_ref()?.of(&name)?;
        Some(match &found.run {
            Some(run) => run.budget.device_hours * price,
            None => found.devices as f64 * price,
        })
    };
    let founds = || rows.iter().filter_map(|row| row.found.as_ref().ok().map(|found| (row, found)));
    let is_priced = args.budget.price_per_device_hour.is_some() && founds().any(|(_, f)| price(f).is_some());
    let rank = |found: &Found| match is_priced {
        true => price(found).unwrap_or(f64::INFINITY),
        false => found.devices as f64,
    };
    let chosen = founds().min_by(|a, b| rank(a.1).total_cmp(&rank(b.1))).map(|(_, found)| found);
    let text = heading_of(goal, chosen) + &table(&rows, &price) + &words(&rows);
    let listed: Vec<Value> = rows
        .iter()
        .map(|row| {
            let found = row.found.as_ref().ok();
            json!({ "device": row.device, "devices": found.map(|f| f.devices), "on": found.map(|f| &f.on),
                "days": found.and_then(|f| f.run.as_ref()).map(|run| run.budget.days), "cost": found.and_then(&price),
                "why_not": row.found.as_ref().err(), "tried": row.tried, "skipped": row.skipped })
        })
        .collect();
    let Some(chosen) = chosen else {
        let message = text_line(goal);
        let finding = Finding::error("plan/fleet-none", Blame::Layout, "on", format!("no fleet {message}"))
            .hint("allow more --days, less --headroom, or another device");
        return Report::new(text, json!({ "fleets": listed })).refused(NO, [finding]);
    };
    let mut json = chosen.report.json.clone().unwrap_or_default();
    json["fleets"] = json!(listed);
    json["on"] = json!(chosen.on);
    Report {
        text: text + "\n" + &chosen.report.text,
        json: Some(json),
        messages: chosen.report.messages.clone(),
        ..Report::default()
    }
}

fn text_line(goal: Goal) -> String {
    match goal {
        Goal::Hold => "holds it".to_string(),
        Goal::Days { tokens, days } => format!("does {} tokens in {} days", units::count(tokens), days),
    }
}

fn heading_of(goal: Goal, chosen: Option<&Found>) -> String {
    match chosen {
        Some(found) => format!("\x1b[1;32m{}\x1b[0m {}\n", found.on, text_line(goal)),
        None => format!("\x1b[1;31mNo fleet {}\x1b[0m\n", text_line(goal)),
    }
}

fn table(rows: &[Row], price: &dyn Fn(&Found) -> Option<f64>) -> String {
    if let [only] = rows
        && only.found.is_ok()
    {
        return String::new();
    }
    // A column that nothing stands in has no name either, and is not shown.
    let founds = || rows.iter().filter_map(|row| row.found.as_ref().ok());
    let days = if founds().any(|found| found.run.is_some()) { "days" } else { "" };
    let cost = if founds().any(|found| price(found).is_some()) { "cost" } else { "" };
    let mut table = Table::new(&["fleet", "devices", days, cost, ""]).right(&[1, 2, 3]);
    for row in rows {
        let cells = match &row.found {
            Ok(found) => [
                found.on.clone(),
                exact(found.devices),
                found.run.as_ref().map_or(String::new(), |run| budget::days(run.budget.days)),
                price(found).map_or(String::new(), budget::money),
                String::new(),
            ],
            Err(why) => [row.device.clone(), String::new(), String::new(), String::new(), why.clone()],
        };
        table.row(cells);
    }
    heading("Smallest fleets") + &table.render()
}

/// What was looked at, in a line a device.
fn words(rows: &[Row]) -> String {
    let list = |sizes: &[u64]| match sizes {
        [] => String::new(),
        [one] => exact(*one),
        [first, .., last] if sizes.len() > 6 => format!("{} … {} ({} sizes)", exact(*first), exact(*last), sizes.len()),
        sizes => sizes.iter().map(|n| exact(*n)).collect::<Vec<_>>().join(", "),
    };
    let one = |row: &Row| {
        let mut parts = Vec::new();
        if let Some(last) = row.skipped.last() {
            parts.push(format!("{} and fewer cannot, whatever the layout", exact(*last)));
        }
        if !row.tried.is_empty() {
            parts.push(format!("{} do not", list(&row.tried)));
        }
        if parts.is_empty() { String::new() } else { wrap(&format!("{}: {}", row.device, parts.join("; ")), "  ", 100) }
    };
    rows.iter().map(one).collect()
}
