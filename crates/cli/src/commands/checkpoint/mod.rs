//! `checkpoint`: what is in one, whether it is whole, and the same for another layout.

mod inspect;

use super::shorten;
use crate::args::{CheckpointArgs, CheckpointCommand, ReshardArgs, Switched, VerifyArgs};
use crate::files::load_recipe;
use crate::outcome::{NO, Outcome, Refusal, Report};
use ::checkpoint::{Against, Checkpoint, Job, Target, open, reshard, verify};
use case::asked::LayoutArgs;
use diag::{Blame, Finding, quote};
use layout::{Layout, check};
use recipe::{Mode, Recipe};
use serde_json::json;
use units::exact;

/// Findings that are printed one by one; the rest are counted, and in JSON.
const SHOWN: usize = 20;

pub fn run(args: &CheckpointArgs) -> Outcome {
    match &args.what {
        CheckpointCommand::Inspect(args) => inspect::run(args),
        CheckpointCommand::Verify(args) => run_verify(args),
        CheckpointCommand::Reshard(args) => run_reshard(args),
    }
}

/// A recipe as its mode runs it, under a layout.
struct Settled {
    recipe: Recipe,
    layout: Layout,
}

impl Settled {
    fn new(recipe: &Recipe, args: &LayoutArgs, mode: Option<Mode>) -> Result<Settled, Refusal> {
        let mut request = args.request();
        request.mode = request.mode.or(mode);
        let checked = check(recipe, &request);
        match checked.layout.clone().filter(|_| checked.is_legal()) {
            Some(layout) => Ok(Settled { recipe: checked.recipe, layout }),
            None => Err(checked.findings.into()),
        }
    }

    /// A recipe that was named.
    fn named(name: &str, switched: &Switched, args: &LayoutArgs) -> Result<Settled, Refusal> {
        let recipe = load_recipe(name)?.with_features(&switched.with, &switched.without)?;
        Settled::new(&recipe, args, None)
    }

    /// The recipe the checkpoint holds, already as its mode runs it.
    fn held(checkpoint: &Checkpoint, args: &LayoutArgs) -> Result<Option<Settled>, Refusal> {
        let about = &checkpoint.about;
        let Some(of) = about.recipe.as_ref().filter(|of| !of.lines.is_empty()) else { return Ok(None) };
        let saved = about.mode.as_deref().and_then(Mode::from_name);
        if let Some(mode) = args.mode {
            ::checkpoint::index::check_mode(about.mode.as_deref(), Some(mode))?;
        }
        let recipe = args
            .seq
            .or_else(|| saved_sequence(about.layout.as_deref()?))
            .map_or_else(|| of.recipe_of_any_length(), |seq| of.recipe(seq))?;
        Ok(Some(Settled::new(&recipe, args, saved)?))
    }

    fn against(&self) -> Against<'_> {
        Against { recipe: &self.recipe, mode: self.layout.mode }
    }
}

/// Tokens of a sequence in the flags a checkpoint was written under.
fn saved_sequence(flags: &str) -> Option<u64> {
    let words: Vec<&str> = flags.split_whitespace().collect();
    words.windows(2).find(|pair| pair[0] == "--seq").and_then(|pair| pair[1].parse().ok())
}

fn usage(object: &str, message: &str, hint: &str) -> Refusal {
    Finding::error("checkpoint/layout", Blame::Usage, object, message).hint(hint).into()
}

/// What was found, the first ones in words.
fn with_findings(report: Report, findings: &[Finding]) -> Report {
    report.with_findings(&findings[..findings.len().min(SHOWN)])
}

/// `1 finding`, `2 findings`.
fn number(n: u64, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{} {word}s", exact(n)) }
}

fn run_verify(args: &VerifyArgs) -> Outcome {
    let checkpoint = open(&args.path)?;
    let is_bare =
        args.layout == LayoutArgs::default() && args.switched.with.is_empty() && args.switched.without.is_empty();
    let settled = match &args.against {
        Some(name) => Some(Settled::named(name, &args.switched, &args.layout)?),
        None if is_bare => None,
        None => {
            let message = "a layout is verified of a recipe, and none is given";
            return Err(usage("against", message, "--against RECIPE, or leave the layout out"));
        }
    };
    let findings = verify(&checkpoint, settled.as_ref().map(Settled::against).as_ref());
    let pieces: u64 = checkpoint.tensors.values().map(|t| t.chunks.len() as u64).sum();
    let mut text = inspect::head(&args.path, &checkpoint);
    let checked = if checkpoint.layout == ::checkpoint::FileLayout::Safetensors {
        "lengths hold (the format has no checksums)"
    } else {
        "lengths and checksums hold"
    };
    text += &match findings.len() as u64 {
        0 => {
            let of = settled
                .as_ref()
                .map_or(String::new(), |s| format!("; names and shapes are those of {}", s.recipe.name.terminal()));
            format!(
                "\n\x1b[1;32mwhole\x1b[0m: {} cover every element once;\n  {checked}{of}\n",
                number(pieces, "piece")
            )
        }
        n => format!("\n\x1b[1;31mnot whole\x1b[0m: {}{}\n", number(n, "finding"), more(findings.len())),
    };
    let json = json!({
        "path": args.path.display().to_string(), "format": checkpoint.layout.name(), "whole": findings.is_empty(), "tensors": checkpoint.tensors.len(),
        "pieces": pieces, "bytes": checkpoint.bytes(), "against": settled.as_ref().map(|s| &s.recipe.name), "findings": findings,
    });
    let report = with_findings(Report::new(text, json), &findings);
    Ok(if findings.is_empty() { report } else { report.refused(NO, []) })
}

fn more(findings: usize) -> String {
    if findings > SHOWN { format!("; the first {SHOWN} are below, --json has all") } else { String::new() }
}

fn run_reshard(args: &ReshardArgs) -> Outcome {
    let checkpoint = open(&args.path)?;
    let settled = match &args.of {
        Some(name) => Some(Settled::named(name, &args.switched, &args.layout)?),
        None => Settled::held(&checkpoint, &args.layout)?,
    };
    let only_world = LayoutArgs { world: args.layout.world, ..LayoutArgs::default() };
    let target = match &settled {
        Some(settled) => Target::new(&settled.recipe, &settled.layout)?,
        None if args.layout == only_world => Target::Even(args.layout.world.unwrap_or(1)),
        None => {
            let message = "the checkpoint does not say which recipe it is of, so its tensors have no degrees";
            return Err(usage("of", message, "--of RECIPE, or --world alone to cut along the first dimension"));
        }
    };
    if target.world() == 0 || target.world() > layout::layout::MOST_RANKS {
        let message = format!("a world of {} ranks cannot be written for", target.world());
        return Err(usage("world", &message, "--world 1 or more"));
    }
    let format = args.format.unwrap_or(checkpoint.layout);
    let mut job = Job::new(&checkpoint, &target, format, &args.out);
    job.against = settled.as_ref().map(Settled::against);
    job.limit = args.work.limit();
    let copied = match reshard(&job) {
        Ok(copied) => copied,
        Err(findings) => return Err(shortened(findings).into()),
    };
    let flags = settled.as_ref().map(|s| s.layout.all_flags());
    let ranks = number(target.world(), "rank");
    let text = format!(
        "{}\n\x1b[1;32mwritten\x1b[0m: {} as {format} for {ranks}: {} in {} of {}\n{}  buffers of at most {}; the source was verified first\n",
        inspect::head(&args.path, &checkpoint),
        quote::shown(&args.out),
        size(copied.bytes),
        number(copied.pieces, "piece"),
        number(copied.tensors, "tensor"),
        flags.as_ref().map_or(String::new(), |flags| crate::table::wrap(flags, "  ", 80)),
        size(copied.largest_buffer as u64),
    );
    let json = json!({
        "path": args.path.display().to_string(), "out": args.out.display().to_string(), "format": format.name(), "world": target.world(), "layout": flags,
        "tensors": copied.tensors, "pieces": copied.pieces, "bytes": copied.bytes, "files": copied.files,
        "largest_buffer_bytes": copied.largest_buffer,
    });
    Ok(Report::new(text, json))
}

/// The first findings, and how many more there are.
fn shortened(mut findings: Vec<Finding>) -> Vec<Finding> {
    let left = findings.len().saturating_sub(SHOWN);
    findings.truncate(SHOWN);
    if left > 0 {
        let message = format!("and {}", number(left as u64, "more finding"));
        findings.push(
            Finding::note("checkpoint/tensors", Blame::Usage, "checkpoint", message)
                .hint("`checkpoint verify --json` lists all"),
        );
    }
    findings
}

/// `512 B`, `3.2 KiB`, `1.5 GiB`: checkpoints of rehearsals are small, and those of models large.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..UNITS.len()).rev().find(|u| bytes >> (10 * u) > 0).unwrap_or(0);
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit]),
    }
}
