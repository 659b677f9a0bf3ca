//! `probe`: a directory that becomes one rank of a job on one device.

use super::fit::{allowed, step_json};
use super::launch::{Attempt, begin, plan, refused, verdict};
use super::{case_text, typed};
use crate::args::{LaunchArgs, ProbeArgs, RunArgs};
use crate::files::write_folder;
use crate::outcome::{Outcome, Refusal, Report};
use crate::panics;
use crate::table::{Table, heading, wrap};
use case::Case;
use diag::{Blame, Finding, quote};
use hardware::ClusterText;
use launch::job::Job;
use launch::probe::{self, Class, Probe};
use launch::record;
use launch::schedulers::{self, Scheduler};
use launch::{Frontend, engines};
use memory::fit::{Fit, HEADROOM};
use serde_json::json;
use std::path::Path;
use units::Bytes;

pub fn run(args: &ProbeArgs) -> Outcome {
    let out = quote::path(args.out.as_os_str())?;
    let asked = begin(&launch_args(args))?;
    let policy = asked.policy.clone();
    if let Some(finding) = probe::refusal(engines::engine_of(&Job::new(&asked.case, &policy, Frontend::MegatronLm))) {
        return Err(vec![finding].into());
    }
    let rank = checked_rank(args, &asked.case)?;
    let Attempt { case, policy, mut emission, findings } = probed(args, &asked.case)?;
    allowed(&asked.case, &args.work.of_an_answer(), 2)?;
    let (whole, fit) = (Fit::price(&asked.case, HEADROOM), Fit::price(&case, HEADROOM));
    let memory = verdict(&case, &fit, args.override_memory);
    if let Some(refused) = refused(&memory, args.override_memory) {
        return refused;
    }
    let job = Job::new(&case, &policy, Frontend::MegatronLm);
    let step = cost::step(&case);
    emission.files = schedulers::files(Scheduler::Torchrun, &job, &emission)?;
    let record = record::Predicted { memory: &memory, step: step_json(&step), case: case.to_json() };
    let launch = record::files(&job, &emission, Scheduler::Torchrun, &record, plan(&job));
    let classes = probe::classes((&asked.case, &whole), (&case, &fit), rank);
    let changes = probe::changes(&asked.case, &case);
    let words = [typed(&asked.case), typed(&case)];
    let probe = Probe {
        asked: &asked.case,
        job: &job,
        emission: &emission,
        changes: &changes,
        classes: &classes,
        steps: args.steps,
        memory_snapshot: args.memory_snapshot,
        typed: [&words[0], &words[1]],
    };
    let files = probe.files(launch);
    panics::none_so_far()?;
    write_folder(Path::new(out), &files)?;
    let text = text(&probe, out);
    let json = json!({ "probe": probe.planned(), "files": files, "memory": memory, "findings": findings });
    Ok(Report::new(text, json).with_findings(&findings))
}

/// The launch of the job as asked for. Data are the engine's own test data, since nobody reads the losses.
fn launch_args(args: &ProbeArgs) -> LaunchArgs {
    LaunchArgs {
        recipe: args.recipe.clone(),
        on: args.on.clone(),
        layout: args.layout.clone(),
        state: args.state.clone(),
        lane: None,
        frontend: Frontend::MegatronLm,
        scheduler: Scheduler::Torchrun,
        out: None,
        explain: false,
        allow_seams: args.allow_seams,
        override_memory: args.override_memory,
        policy: None,
        run: RunArgs::default(),
        attempt: None,
        work: args.work,
    }
}

fn checked_rank(args: &ProbeArgs, case: &Case) -> Result<Option<u64>, Refusal> {
    let world = case.layout.world;
    match args.who.rank {
        Some(rank) if rank >= world => {
            let message = format!("there is no rank {rank}: the job has {world}, counted from 0");
            let finding = Finding::error("probe/rank", Blame::Usage, "rank", message);
            Err(vec![finding.hint("--all-classes takes one rank of every class")].into())
        }
        rank => Ok(rank),
    }
}

/// The job whose rank runs: as asked for, but for what one device needs otherwise. The largest world that is small
/// enough and legal; as asked for where none is.
fn probed(args: &ProbeArgs, asked: &Case) -> Result<Attempt, Refusal> {
    let mut wanted = launch_args(args);
    if let Some(word) = probe::engine_words(asked)
        && !wanted.state.engine_args.iter().any(|words| words.contains(word))
    {
        wanted.state.engine_args.push(word.to_string());
    }
    for (world, dp) in probe::worlds(asked).into_iter().filter(|(world, _)| *world != asked.layout.world) {
        let Some(on) = smaller(&args.on, asked, world) else { continue };
        let mut fewer = launch_args(args);
        fewer.state.engine_args.clone_from(&wanted.state.engine_args);
        fewer.on = on;
        fewer.layout.world = Some(world);
        fewer.layout.dp = Some(dp);
        fewer.layout.gbs = None;
        fewer.layout.microbatches = Some(asked.layout.microbatches);
        if let Ok(attempt) = begin(&fewer) {
            return Ok(attempt);
        }
    }
    begin(&wanted)
}

/// The cluster with fewer nodes, or with fewer devices on one.
fn smaller(on: &str, asked: &Case, world: u64) -> Option<String> {
    let device = ClusterText::parse(on).ok()?.device;
    let behind = &on[on.find(device)?..];
    let each = asked.on().devices_per_node;
    match world {
        world if world.is_multiple_of(each) => Some(format!("{}x{each}x{behind}", world / each)),
        world if world < each => Some(format!("1x{world}x{behind}")),
        _ => None,
    }
}

fn text(probe: &Probe, out: &str) -> String {
    let job = probe.job;
    let mut text = case_text(job.case);
    for change in probe.changes {
        text += &wrap(&format!("changed: {}: {}", change.what, change.why), "  ", 80);
    }
    text += &heading("Predicted, of each rank by itself");
    let mut table = Table::new(&["class", "rank", "stages", "allocated", "reserved", "kernels", "host", "step"]);
    for (index, class) in probe.classes.iter().enumerate() {
        table.row(row(index, class));
    }
    text += &table.render();
    text += &corrections(probe.classes);
    let reasons = probe.classes.first().map(|class| &class.predicted);
    for reason in reasons.into_iter().flat_map(|p| [&p.unmodelled, &p.unpriced]).flatten() {
        text += &wrap(&format!("not predicted: {reason}"), "  ", 80);
    }
    text += &format!("\nwrote {}\n", quote::terminal(out));
    text += &heading("Run it");
    text += &format!("  cd {} && ./probe.sh\n", quote::typed(out));
    text + &format!("on a machine with one {} and the engine; elsewhere it exits 3\n", job.cluster.device.name)
}

fn row(index: usize, class: &Class) -> [String; 8] {
    let predicted = &class.predicted;
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_string(), |bytes| Bytes(bytes).to_string());
    let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_string(), super::plan::text::seconds);
    [
        index.to_string(),
        class.rank.to_string(),
        super::ranges(&class.stands_for),
        bytes(predicted.held.allocated_peak),
        bytes(predicted.held.reserved_peak),
        time(predicted.kernel_seconds),
        time(predicted.host_seconds),
        time(predicted.step_seconds),
    ]
}

/// What a smaller world changes, which is to be added to what is measured.
fn corrections(classes: &[Class]) -> String {
    if classes.iter().all(|class| class.correction.is_empty()) {
        return String::new();
    }
    let mut table = Table::new(&["class", "line", "as asked", "as probed", "to add"]);
    for (index, class) in classes.iter().enumerate() {
        for line in &class.correction {
            let sign = if line.add < 0 { "-" } else { "+" };
            let add = format!("{sign}{}", Bytes(line.add.unsigned_abs()));
            table.row([
                index.to_string(),
                line.what.clone(),
                Bytes(line.asked).to_string(),
                Bytes(line.probed).to_string(),
                add,
            ]);
        }
    }
    heading("Correction for the smaller world") + &table.render()
}
