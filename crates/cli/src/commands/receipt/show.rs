//! `receipt show`: who ran, what was promised beside what was measured, and where each figure came from.

use super::five::{called, figure};
use super::{StoreArgs, five, held, named, percent, short, word};
use crate::args::WorkArgs;
use crate::commands::plan::text::seconds;
use crate::commands::shorten;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, wrap};
use ::receipt::{Outcome as Came, RankPrediction, Receipt, promised};
use clap::Args;
use evidence::{EventKind, Evidence, Memory, MemoryKind};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use units::{Bytes, exact};

/// Arguments of `receipt show`.
#[derive(Args)]
pub struct ShowArgs {
    /// The receipt: the beginning of its name, or a receipt's file
    pub receipt: String,
    /// torch's memory snapshot of the run: say which blocks of its peak the replay does not have, and which it has
    /// that are not there
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Ranks of a kind of figure that are listed; the rest are counted.
const RANKS: usize = 8;

pub fn run(args: &ShowArgs) -> Outcome {
    let store = args.store.open()?;
    let (id, receipt) = named(&store, &args.receipt)?;
    let listed = store.list().unwrap_or_default();
    let old = listed.superseded.get(&id);
    let outcome = Came::of(&receipt);
    let mut text = format!(
        "\x1b[1m{}\x1b[0m {} of {}, recorded {}\n",
        short(&id),
        word(receipt.kind),
        diag::quote::terminal(&receipt.identity.recipe),
        receipt.recorded
    );
    if let Some((with, because)) = old {
        let with = with.as_ref().map_or("retracted".to_string(), |with| format!("superseded by {}", short(with)));
        text += &wrap(&format!("no longer believed, {with}: {because}"), "", 80);
    }
    if let Some(old) = &receipt.supersedes {
        text += &wrap(&format!("supersedes {}: {}", short(&old.id), old.reason), "", 80);
    }
    text += &five::lines(receipt.kind, &outcome, receipt.prediction.as_ref());
    text += &who(&receipt);
    text += &figures(&receipt, &outcome);
    text += &phases(&receipt);
    text += &lines(&receipt);
    text += &events(&receipt.evidence);
    text += &sources(&receipt.evidence);
    let mut json = json!({
        "id": id, "receipt": receipt, "outcome": outcome,
        "superseded": old.map(|(with, because)| json!({ "with": with, "because": because })), "findings": [],
    });
    if let Some(path) = &args.snapshot {
        let (section, answer) = held::section(path, &receipt, &args.work.of_an_answer())?;
        text += &section;
        json["snapshot"] = answer;
    }
    Ok(Report::new(text, json))
}

fn who(receipt: &Receipt) -> String {
    let who = &receipt.identity;
    let (mut out, indent) = (heading("Who"), " ".repeat(15));
    let mut say = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let text = diag::quote::sentence(&value);
            out += &wrap(&text, &indent, 80).replacen(&indent, &format!("  {:<13}", diag::quote::sentence(key)), 1);
        }
    };
    let hash = |hash: &str| hash.chars().take(12).collect::<String>();
    say("recipe", Some(format!("{} {}", who.recipe, hash(&who.recipe_sha256))));
    say("shape", Some(hash(&who.shape_sha256)));
    say("pattern", Some(shorten(&who.pattern, 60)));
    let features = if who.features.is_empty() { "none".to_string() } else { who.features.join(" ") };
    say("features", Some(format!("{features} {}", hash(&who.features_sha256))));
    say("mode", who.mode.clone());
    say("lane", who.lane.clone());
    say("engine", who.engine.clone());
    say("seams", Some(who.seams.join(" ")));
    say("topology", who.topology.clone());
    say("launch", who.launch_id.as_deref().map(hash));
    let pairs = |map: &BTreeMap<String, String>| {
        map.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
    };
    say("written for", Some(pairs(&receipt.versions)));
    say("ran with", Some(pairs(&receipt.evidence.versions)));
    say("machine", Some(pairs(&receipt.evidence.machine)));
    for (asked, ran) in &receipt.evidence.ran {
        let wanted = receipt.overlay[asked].as_str().or(receipt.overlay[format!("{asked}_backend")].as_str());
        let wanted = wanted.map_or(String::new(), |wanted| format!(" (asked for: {wanted})"));
        say(asked, Some(format!("{ran}{wanted}")));
    }
    out
}

/// Where a figure stands: the file's name and the line.
fn place(evidence: &Evidence, source: usize, line: u64) -> String {
    format!("{}:{line}", file(evidence, source))
}

fn file(evidence: &Evidence, source: usize) -> String {
    let path = evidence.sources.get(source).map_or("", |source| source.path.as_str());
    Path::new(path).file_name().map_or(path.to_string(), |name| name.to_string_lossy().into_owned())
}

fn figures(receipt: &Receipt, outcome: &Came) -> String {
    let run = &receipt.evidence;
    let any = !run.steps.is_empty() || !run.memory.is_empty();
    let mut table = Table::new(&["figure", "promised", "measured", "off", "from"]).right(&[1, 2, 3]);
    let step = receipt.prediction.as_ref().and_then(|said| said.step.as_ref());
    if let Some(took) = outcome.step_seconds {
        let timed: Vec<_> = run.steps.iter().filter(|step| !step.warm_up && step.seconds.is_some()).collect();
        let from =
            timed.last().map_or(String::new(), |step| format!("{} steps of {}", timed.len(), file(run, step.source)));
        let off = outcome.time_error().map_or(String::new(), percent);
        table.row([
            "a step, median".to_string(),
            step.map_or(String::new(), |s| seconds(s.seconds)),
            seconds(took),
            off,
            from,
        ]);
        if let Some(step) = step.filter(|step| step.tokens > 0) {
            let [said, ran] = [step.seconds, took].map(|s| step.tokens as f64 / s);
            let row = [exact(said.round() as u64), exact(ran.round() as u64), percent(ran / said - 1.0)];
            let [said, ran, off] = row;
            table.row([
                "tokens/s, all devices".to_string(),
                said,
                ran,
                off,
                format!("{} tokens a step", exact(step.tokens)),
            ]);
        }
    }
    for kind in [
        MemoryKind::AllocatedPeak,
        MemoryKind::ReservedPeak,
        MemoryKind::DeviceUsedPeak,
        MemoryKind::DeviceUsed,
        MemoryKind::HostUsed,
    ] {
        let most = by_rank(run, kind);
        for memory in most.iter().take(RANKS) {
            let said =
                receipt.prediction.as_ref().and_then(|said| promised(said, kind, memory.rank)).filter(|b| *b > 0);
            let off = said.map_or(String::new(), |said| percent(memory.bytes as f64 / said as f64 - 1.0));
            let rank = memory.rank.map_or("any rank".to_string(), |rank| format!("rank {rank}"));
            table.row([
                format!("{rank}: {}", called(kind)),
                said.map_or(String::new(), |bytes| Bytes(bytes).to_string()),
                Bytes(memory.bytes).to_string(),
                off,
                place(run, memory.source, memory.line),
            ]);
        }
        if most.len() > RANKS {
            table.row([
                format!("and {} more ranks: --json", most.len() - RANKS),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
    }
    for (what, step) in [
        ("first loss", run.steps.iter().find(|s| s.loss.is_some())),
        ("last loss", run.steps.iter().rev().find(|s| s.loss.is_some())),
    ] {
        if let Some(step) = step {
            let loss = step.loss.map_or(String::new(), figure);
            table.row([
                format!("{what}, step {}", step.number),
                String::new(),
                loss,
                String::new(),
                place(run, step.source, step.line),
            ]);
        }
    }
    if let Some(step) = run.steps.iter().rev().find(|step| step.grad_norm.is_some()) {
        let norm = step.grad_norm.map_or(String::new(), figure);
        table.row([
            format!("gradient norm, step {}", step.number),
            String::new(),
            norm,
            String::new(),
            place(run, step.source, step.line),
        ]);
    }
    match any {
        true => heading("Promised beside measured") + &table.render(),
        false => {
            heading("Promised beside measured")
                + "  nothing was measured: no source holds a step or a figure of memory\n"
        }
    }
}

/// The largest figure of a kind for each rank.
fn by_rank(run: &Evidence, kind: MemoryKind) -> Vec<&Memory> {
    let mut most: BTreeMap<Option<u64>, &Memory> = BTreeMap::new();
    for memory in run.memory.iter().filter(|memory| memory.kind == kind) {
        let held = most.entry(memory.rank).or_insert(memory);
        if memory.bytes > held.bytes {
            *held = memory;
        }
    }
    most.into_values().collect()
}

/// Phases that were both promised and measured.
fn phases(receipt: &Receipt) -> String {
    let Some(said) = &receipt.prediction else { return String::new() };
    let mut table = Table::new(&["rank", "phase", "what", "promised", "measured", "off", "from"])
        .right(&[0, 3, 4, 5])
        .spare(&[&[6]]);
    let mut any = false;
    for memory in &receipt.evidence.memory {
        let (Some(rank), Some(phase)) = (memory.rank, memory.phase.as_deref()) else { continue };
        let of_rank = |class: &&RankPrediction| class.first_rank <= rank && rank <= class.last_rank;
        let Some(class) = said.ranks.iter().find(of_rank) else { continue };
        let Some((_, after, most)) = class.phases.iter().find(|(name, _, _)| name == phase) else { continue };
        let said = match memory.kind {
            MemoryKind::Allocated => *after,
            MemoryKind::AllocatedPeak => *most,
            _ => continue,
        };
        any = true;
        let off = if said == 0 { String::new() } else { percent(memory.bytes as f64 / said as f64 - 1.0) };
        table.row([
            rank.to_string(),
            phase.to_string(),
            called(memory.kind).to_string(),
            Bytes(said).to_string(),
            Bytes(memory.bytes).to_string(),
            off,
            place(&receipt.evidence, memory.source, memory.line),
        ]);
    }
    if any { heading("Phases") + &table.render() } else { String::new() }
}

/// What the fullest rank was promised to hold at its peak, line by line.
fn lines(receipt: &Receipt) -> String {
    let Some(said) = &receipt.prediction else {
        return heading("Promised") + "  nothing: it was a rehearsal, or the cluster it ran on was not said\n";
    };
    let Some(class) = said.ranks.iter().max_by_key(|class| class.allocated_peak) else {
        return heading("Promised") + &format!("  no bytes: {}\n", said.verdict);
    };
    let mut held: Vec<(&String, &u64)> = class.lines.iter().collect();
    held.sort_by_key(|(name, bytes)| (std::cmp::Reverse(**bytes), (*name).clone()));
    let mut table = Table::new(&["line", "bytes", "of the peak"]).right(&[1, 2]);
    for (name, bytes) in held {
        let share = 100.0 * *bytes as f64 / class.allocated_peak.max(1) as f64;
        table.row([name.clone(), Bytes(*bytes).to_string(), format!("{share:.1}%")]);
    }
    let profile = said.profile.as_ref().map_or(String::new(), |profile| format!(", profile {}", short(profile)));
    let title = format!(
        "Promised lines of stage {}, ranks {}-{} ({}, by {}{profile})",
        class.stage, class.first_rank, class.last_rank, said.verdict, said.by
    );
    heading(&title) + &table.render()
}

/// What happened beside steps: counted by kind, and what went wrong in words.
fn events(run: &Evidence) -> String {
    if run.events.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["event", "times", "last", "from"]).right(&[1]);
    let mut kinds: BTreeMap<EventKind, Vec<&evidence::Event>> = BTreeMap::new();
    run.events.iter().for_each(|event| kinds.entry(event.kind).or_default().push(event));
    for (kind, all) in kinds {
        let Some(last) = all.last() else { continue };
        let mut words = Vec::new();
        words.extend(last.step.map(|step| format!("step {step}")));
        words.extend(last.rank.map(|rank| format!("rank {rank}")));
        words.extend(last.seconds.filter(|took| *took > 0.0).map(seconds));
        words.extend((!last.detail.is_empty()).then(|| shorten(&last.detail, 120)));
        table.row([word(kind), all.len().to_string(), words.join(", "), place(run, last.source, last.line)]);
    }
    heading("Events") + &table.render()
}

fn sources(run: &Evidence) -> String {
    let mut table = Table::new(&["source", "format", "bytes", "sha256", "unread lines", "path"])
        .right(&[2, 4])
        .spare(&[&[5], &[3]]);
    for (at, source) in run.sources.iter().enumerate() {
        let unread = if source.unread == 0 { String::new() } else { exact(source.unread) };
        let row = [
            file(run, at),
            word(source.format),
            exact(source.bytes),
            short(&source.sha256).to_string(),
            unread,
            source.path.clone(),
        ];
        table.row(row);
    }
    heading("Sources") + &table.render()
}
