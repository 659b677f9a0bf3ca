//! What a rehearsal leaves for later: norms as the hook's lines, and two receipts, of one rank and of all.

use crate::files::{write_file, write_folder};
use crate::outcome::Refusal;
use case::asked::{LayoutArgs, StateArgs};
use case::{Asked, Case, Terms};
use evidence::{Evidence, Format, Memory, MemoryKind, Source, Step, TensorKind, TensorStat};
use layout::Layout;
use receipt::{About, Argument, Kind, Receipt};
use recipe::Mixer;
use runtime::rehearse::{Ask, Prepared, Rehearsal, Source as Data};
use runtime::stats::{Norm, Of};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One of the two runs.
#[derive(Clone, Copy)]
struct Run<'a> {
    layout: &'a Layout,
    losses: &'a [f64],
    norms: &'a [Norm],
    is_split: bool,
}

fn runs<'a>(prepared: &'a Prepared, rehearsal: &'a Rehearsal) -> [Run<'a>; 2] {
    let (one, many) = &rehearsal.norms;
    [
        Run { layout: &prepared.one, losses: &rehearsal.one, norms: one, is_split: false },
        Run { layout: &prepared.layout, losses: &rehearsal.many, norms: many, is_split: true },
    ]
}

fn kind(of: Of) -> TensorKind {
    match of {
        Of::Activation => TensorKind::Activation,
        Of::ActivationGradient => TensorKind::ActivationGradient,
        Of::Gradient => TensorKind::Gradient,
    }
}

/// Where norms of the run on one rank go: `norms.jsonl` → `norms.one-rank.jsonl`.
pub fn beside(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = match path.extension() {
        Some(extension) => format!("{stem}.one-rank.{}", extension.to_string_lossy()),
        None => format!("{stem}.one-rank"),
    };
    path.with_file_name(name)
}

/// Writes the hook's lines of both runs.
pub fn stats(path: &Path, prepared: &Prepared, rehearsal: &Rehearsal) -> Result<Vec<PathBuf>, Refusal> {
    let [one, many] = runs(prepared, rehearsal);
    let files = [(path.to_path_buf(), many), (beside(path), one)];
    for (path, run) in &files {
        write_file(path, &lines(prepared, *run))?;
    }
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

fn lines(prepared: &Prepared, run: Run) -> String {
    use evidence::HOOK_SCHEMA as HOOK;
    let first = prepared.start.step();
    let mut out = vec![json!({
        "schema": HOOK, "kind": "start", "rank": 0, "world": run.layout.world, "engine": "shardwright rehearse",
        "versions": { "shardwright": env!("CARGO_PKG_VERSION") },
    })];
    for (at, loss) in run.losses.iter().enumerate() {
        let step = first + at as u64 + 1;
        let norms = run.norms.iter().filter(|norm| norm.step == at as u64);
        out.extend(norms.map(|norm| {
            json!({ "schema": HOOK, "kind": "tensor", "step": step, "path": norm.watched.path,
                "tensor": kind(norm.watched.of), "norm": norm.norm, "nonfinite": norm.nonfinite })
        }));
        // JSON has no word for what is no number.
        let said = if loss.is_finite() { json!(loss) } else { json!(loss.to_string()) };
        out.push(json!({ "schema": HOOK, "kind": "step", "number": step, "loss": said, "nan": !loss.is_finite() }));
    }
    out.push(json!({ "schema": HOOK, "kind": "end", "status": "ok" }));
    out.iter().map(|line| line.to_string() + "\n").collect()
}

/// Writes two receipts into a new folder.
pub fn receipts(
    folder: &Path,
    ask: &Ask,
    prepared: &Prepared,
    rehearsal: &Rehearsal,
    asked: &Asked,
) -> Result<(), Refusal> {
    let [one, many] = runs(prepared, rehearsal).map(|run| receipt(ask, prepared, rehearsal, asked, run));
    let file = |name: &str, receipt: Receipt| launch::File::new(name, receipt.text());
    write_folder(folder, &[file("one-rank.json", one?), file("all-ranks.json", many?)])
}

fn receipt(ask: &Ask, prepared: &Prepared, rehearsal: &Rehearsal, asked: &Asked, run: Run) -> Result<Receipt, Refusal> {
    let has_experts = prepared.recipe.uses(Mixer::Moe);
    let small = Asked { layout: LayoutArgs::pinned(run.layout, has_experts), on: None, ..asked.clone() };
    let small = Asked { state: StateArgs::default(), ..small };
    let case = Case::new(small, prepared.recipe.clone(), None, Terms::SPLIT)?;
    let data = match &ask.source {
        Data::Synthetic => "synthetic".to_string(),
        Data::Text(text) => receipt::sha256(String::from_utf8_lossy(text).as_bytes()),
    };
    let argument = |flag: &str, value: String| Argument { flag: flag.to_string(), values: vec![value] };
    let mut arguments = vec![
        argument("--seed", prepared.start.seed().to_string()),
        argument("--data", data),
        argument("--dtype", ask.number.name().to_string()),
    ];
    arguments.extend(prepared.changes.iter().map(|change| argument(change.what, change.to.to_string())));
    let mut about = About::of_case(&case, env!("CARGO_PKG_VERSION"), None);
    about.arguments = arguments;
    about.overlay["precision"] = json!(ask.number.name());
    let evidence = evidence(prepared, rehearsal, run);
    Ok(Receipt::new(Kind::Rehearsal, crate::commands::receipt::now(), about, evidence))
}

fn evidence(prepared: &Prepared, rehearsal: &Rehearsal, run: Run) -> Evidence {
    let first = prepared.start.step();
    let step = |(at, loss): (usize, &f64)| Step {
        number: first + at as u64 + 1,
        loss: Some(*loss),
        nan: !loss.is_finite(),
        line: at as u64 + 1,
        ..Step::default()
    };
    let tensor = |(at, norm): (usize, &Norm)| TensorStat {
        step: first + norm.step + 1,
        path: norm.watched.path.clone(),
        kind: kind(norm.watched.of),
        norm: norm.norm,
        nonfinite: norm.nonfinite,
        source: 0,
        line: at as u64 + 1,
    };
    // Phases are those of the split run; nobody counts the other's.
    let phases = rehearsal.phases.iter().filter(|_| run.is_split);
    let memory = phases.enumerate().filter_map(|(at, phase)| {
        Some(Memory {
            rank: Some(phase.rank as u64),
            kind: MemoryKind::AllocatedPeak,
            bytes: phase.peak_bytes?,
            resolution: 0,
            phase: Some(phase.phase.name().to_string()),
            step: None,
            source: 0,
            line: at as u64 + 1,
        })
    });
    let mut evidence = Evidence {
        sources: vec![Source {
            format: Format::Rehearsal,
            path: if run.is_split { "all ranks" } else { "one rank" }.to_string(),
            bytes: 0,
            sha256: String::new(),
            digits: BTreeMap::new(),
            unread: 0,
            first_unread: None,
        }],
        steps: run.losses.iter().enumerate().map(step).collect(),
        memory: memory.collect(),
        tensors: run.norms.iter().enumerate().map(tensor).collect(),
        ..Evidence::default()
    };
    evidence.mark_warm_up();
    evidence
}
