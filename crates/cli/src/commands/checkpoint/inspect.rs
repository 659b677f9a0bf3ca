//! `checkpoint inspect`: what is in a checkpoint.

use super::{number, shorten, size, with_findings};
use crate::args::InspectArgs;
use crate::outcome::{NO, Outcome, Report};
use crate::table::{Table, heading, shape, wrap};
use ::checkpoint::{Checkpoint, Tensor, open};
use diag::{Blame, Finding, quote};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use units::exact;

/// Rows shown without `--all`.
const ROWS: usize = 24;
/// Columns of a value's key.
const NAME: usize = 34;

pub fn run(args: &InspectArgs) -> Outcome {
    let checkpoint = open(&args.path)?;
    if args.recipe {
        return recipe(&checkpoint);
    }
    let mut text = head(&args.path, &checkpoint) + &tensors(&checkpoint, args.all);
    if !checkpoint.values.is_empty() {
        text += &heading("Values");
        let mut table = Table::new(&["key", "value"]);
        for (key, value) in &checkpoint.values {
            let shown = value.shown.clone().unwrap_or_else(|| format!("{} of pickle, not read", size(value.bytes)));
            table.row([tail(key, NAME), shorten(&shown, 80 - NAME - 6)]);
        }
        text += &table.render();
    }
    text += &format!("\nnext: shardwright checkpoint verify {}\n", quote::typed(&args.path));
    let report = with_findings(Report::new(text, to_json(args, &checkpoint)), &checkpoint.findings);
    Ok(if checkpoint.findings.is_empty() { report } else { report.refused(NO, []) })
}

/// The recipe a checkpoint holds.
fn recipe(checkpoint: &Checkpoint) -> Outcome {
    let of = checkpoint.about.recipe.as_ref().filter(|of| !of.lines.is_empty()).ok_or_else(|| {
        let message = "the checkpoint does not hold the recipe it was saved from";
        Finding::error("checkpoint/recipe", Blame::Usage, "recipe", message)
            .hint("our own checkpoints do, and others with `shardwright.json` (docs/checkpoints.md)")
    })?;
    let recipe = of.recipe_of_any_length()?;
    let toml =
        format!("# From a checkpoint, as its mode runs it. Sequences may have another length.\n{}", recipe.to_toml());
    Ok(Report::file(toml.clone(), json!({ "recipe": recipe.name, "toml": toml })))
}

/// The checkpoint in a few lines.
pub fn head(path: &Path, checkpoint: &Checkpoint) -> String {
    let files: BTreeSet<&str> =
        checkpoint.tensors.values().flat_map(|t| t.chunks.iter().map(|c| c.file.as_str())).collect();
    let (about, is_state) = (&checkpoint.about, |key: &&String| key.starts_with("optimizer."));
    let state = checkpoint.tensors.keys().filter(is_state).count() as u64;
    let mut out = format!("\x1b[1m{}\x1b[0m\n", quote::shown(path));
    out += &format!(
        "  {}: {} ({} of optimizer state), {} in {}\n",
        checkpoint.layout,
        number(checkpoint.tensors.len() as u64, "tensor"),
        exact(state),
        size(checkpoint.bytes()),
        number(files.len() as u64, "file"),
    );
    let said = |name: &str, value: Option<u64>| value.map(|v| format!("{name} {v}"));
    let run = [said("step", about.step), said("data position", about.data_position), said("seed", about.seed)];
    let run: Vec<String> = run.into_iter().flatten().collect();
    if !run.is_empty() {
        out += &format!("  {}\n", run.join(", "));
    }
    if let Some(of) = &about.recipe {
        let mode = about.mode.as_ref().map_or("no mode".to_string(), |m| format!("mode {m}"));
        let features = about.features.as_ref().filter(|f| !f.is_empty());
        let features = features.map_or(String::new(), |f| format!(", with {}", f.join(", ")));
        let hash: String = of.sha256.chars().take(12).collect();
        let said = format!("recipe {} ({hash}…), {mode}{features}", of.name.terminal());
        out += &wrap(&said, "  ", 80);
    }
    if let (Some(world), Some(flags)) = (about.world, about.layout.as_ref()) {
        out += &wrap(&format!("written for {}: {}", number(world, "rank"), flags), "  ", 80);
    }
    out
}

fn tensors(checkpoint: &Checkpoint, all: bool) -> String {
    let head = ["tensor", "shape", "dtype", "pieces", "cut", "files"];
    let shown = if all { usize::MAX } else { ROWS };
    let cells = |tensor: &Tensor| -> [String; 5] {
        let files: BTreeSet<&str> = tensor.chunks.iter().map(|c| c.file.as_str()).collect();
        let (pieces, files) = (tensor.chunks.len().to_string(), files.len().to_string());
        [shape(&tensor.shape), tensor.dtype.name().to_string(), pieces, cut(tensor), files]
    };
    let rows: Vec<(&String, [String; 5])> =
        checkpoint.tensors.iter().take(shown).map(|(key, tensor)| (key, cells(tensor))).collect();
    let width = |c: usize| rows.iter().map(|row| row.1[c].chars().count()).max().unwrap_or(0).max(head[c + 1].len());
    // Two columns before each cell; names get what is left of a terminal.
    let rest: usize = (0..5).map(|c| 2 + width(c)).sum();
    let name = 78usize.saturating_sub(rest).max(16);
    let mut table = Table::new(&head).right(&[3, 5]);
    for (key, cells) in rows {
        table.row(std::iter::once(tail(key, name)).chain(cells));
    }
    let left = checkpoint.tensors.len().saturating_sub(shown);
    let more = if left > 0 { format!("  and {} more: --all lists them\n", exact(left as u64)) } else { String::new() };
    heading("Tensors") + &table.render() + &more
}

/// Parts along each dimension, where the pieces are a grid: `2 × 1`.
fn cut(tensor: &Tensor) -> String {
    if tensor.chunks.len() <= 1 {
        return "whole".to_string();
    }
    let starts = |d: usize| tensor.chunks.iter().map(|c| c.at.0[d].start).collect::<BTreeSet<_>>().len();
    let grid: Vec<usize> = (0..tensor.shape.len()).map(starts).collect();
    if grid.iter().product::<usize>() == tensor.chunks.len() {
        grid.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ")
    } else {
        "uneven".to_string()
    }
}

/// The end of a long name: what tells tensors apart stands there. What is not for terminals is escaped.
fn tail(name: &str, most: usize) -> String {
    let name = quote::terminal(name);
    let count = name.chars().count();
    if count <= most {
        name.to_string()
    } else {
        format!("…{}", name.chars().skip(count - most + 1).collect::<String>())
    }
}

fn to_json(args: &InspectArgs, checkpoint: &Checkpoint) -> Value {
    let piece = |c: &::checkpoint::Chunk| json!({ "at": c.at, "file": c.file, "start": c.start, "crc32": c.crc32 });
    let tensor = |t: &Tensor| {
        json!({
            "shape": t.shape, "dtype": t.dtype.name(), "bytes": t.bytes(), "cut": cut(t),
            "pieces": t.chunks.iter().map(piece).collect::<Vec<_>>(),
        })
    };
    let tensors: Map<String, Value> = checkpoint.tensors.iter().map(|(key, t)| (key.clone(), tensor(t))).collect();
    let values: Map<String, Value> = checkpoint.values.iter().map(|(key, v)| (key.clone(), json!(v.shown))).collect();
    let about = &checkpoint.about;
    json!({
        "path": args.path.display().to_string(), "format": checkpoint.layout.name(), "bytes": checkpoint.bytes(), "step": about.step,
        "data_position": about.data_position, "seed": about.seed,
        "recipe": about.recipe.as_ref().map(|of| json!({ "name": of.name, "sha256": of.sha256 })),
        "mode": about.mode, "features": about.features, "layout": about.layout, "world": about.world,
        "tensors": tensors, "values": values, "findings": checkpoint.findings,
    })
}
