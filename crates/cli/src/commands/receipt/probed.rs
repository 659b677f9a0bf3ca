//! `receipt record` of a probe directory: one receipt for every class of ranks that was run.

use super::record::{RecordArgs, kind_of};
use super::{five, short, time};
use crate::outcome::{Outcome, Report};
use crate::panics;
use ::receipt::{Launched, Outcome as Came, Receipt, Store, Superseded, of_logs, probe};
use diag::{Blame, Finding, quote};
use launch::probe::{Class, Planned};
use serde_json::json;
use std::path::{Path, PathBuf};

pub fn run(args: &RecordArgs, store: &Store, launched: &Launched, planned: &Planned) -> Outcome {
    let folder = args.launch.as_deref().unwrap_or(Path::new("."));
    let ran = ran(&args.log, folder, planned)?;
    if args.supersedes.is_some() && ran.len() > 1 {
        let message = format!("{} receipts cannot stand for one: the probe has as many classes", ran.len());
        let finding = Finding::error("receipt/probe", Blame::Usage, "supersedes", message);
        return Err(finding.hint(format!("name the lines of one: --log {}", ran[0].1.display())).into());
    }
    let (mut text, mut answers, mut findings) = (String::new(), Vec::new(), Vec::new());
    for (class, path) in ran {
        let gathered = of_logs(std::slice::from_ref(&path), &mut |_, _, _| {})?;
        let kind = kind_of(args.kind, &gathered.evidence)?;
        let of_launch = Receipt::new(kind, time::now(), launched.about.clone(), gathered.evidence);
        let mut receipt = probe::receipt(planned, class, of_launch);
        receipt.supersedes = match (&args.supersedes, &args.because) {
            (Some(old), Some(because)) => {
                let (id, _) = store.find(old)?;
                Some(Superseded { id, reason: because.clone() })
            }
            _ => store.earlier(&receipt),
        };
        panics::none_so_far()?;
        let kept = store.put(&receipt)?;
        let outcome = Came::of(&receipt);
        let (id, again) = (short(&kept.id), if kept.is_new { "" } else { ", recorded before" });
        let command = format!("shardwright receipt show {id}{}", args.store.typed());
        text += &format!(
            "\x1b[1mrank {} of {}, stage {}\x1b[0m\n{}receipt {id}{again}: `{command}`\n\n",
            class.rank,
            planned.world.probed,
            class.stage,
            five::lines(receipt.kind, &outcome, receipt.prediction.as_ref())
        );
        findings.extend(gathered.notes);
        findings.extend(kept.notes);
        answers.push(json!({
            "id": kept.id, "is_new": kept.is_new, "kind": receipt.kind, "recorded": receipt.recorded,
            "supersedes": receipt.supersedes, "rank": class.rank, "stage": class.stage, "outcome": outcome,
            "sources": receipt.evidence.sources,
        }));
    }
    let root = store.root().display().to_string();
    let json = json!({ "store": root, "receipts": answers, "findings": findings });
    Ok(Report::new(text.trim_end().to_string() + "\n", json).with_findings(&findings))
}

/// Classes with the lines their probes wrote: those named, or all in the directory.
fn ran<'a>(named: &[PathBuf], folder: &Path, planned: &'a Planned) -> Result<Vec<(&'a Class, PathBuf)>, Finding> {
    if named.is_empty() {
        let lines = |class: &'a Class| (class, folder.join(class.lines_file()));
        let all: Vec<_> = planned.classes.iter().map(lines).filter(|(_, path)| path.is_file()).collect();
        return if all.is_empty() { Err(not_run(folder)) } else { Ok(all) };
    }
    let class_of = |path: &PathBuf| {
        let found = planned.classes.iter().find(|class| path.ends_with(class.lines_file()));
        found.map(|class| (class, path.clone())).ok_or_else(|| {
            let message = format!("`{}` is not what a rank of this probe writes", quote::shown(path));
            let names: Vec<String> = planned.classes.iter().map(Class::lines_file).collect();
            Finding::error("receipt/probe", Blame::Usage, "log", message).hint(format!("it has {}", names.join(", ")))
        })
    };
    named.iter().map(class_of).collect()
}

fn not_run(folder: &Path) -> Finding {
    let message = format!("no rank of the probe in `{}` was run yet", quote::shown(folder));
    let hint = format!("on a machine with a GPU and the engine: cd {} && ./probe.sh", quote::shown(folder));
    Finding::error("receipt/no-logs", Blame::Environment, folder.display().to_string(), message).hint(hint)
}
