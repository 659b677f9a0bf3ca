//! Which axis could explain a tensor that is off. Forward, an axis is a suspect where the first block it touches is the
//! first one that is off: had it failed, an earlier block it touches would be off as well. In gradients, an axis
//! predicts a set of tensors, those whose gradients are summed over it, and is judged by how well that set is what is
//! off.

use super::Apart;
use crate::compare::Subject;
use case::Case;
use evidence::TensorKind;
use layout::Axis;
use layout::ownership::{Owner, Row};
use recipe::Place;
use serde::Serialize;
use std::collections::BTreeSet;

/// What a first tensor says of the kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// An activation is off first: a block computes or exchanges something else.
    Forward,
    /// Activations agree and their gradients do not: an exchange of backward.
    Backward,
    /// Activations and their gradients agree, gradients of weights do not: a reduction.
    Reduction,
    /// Everything agrees within a step, and the next begins with other weights: the update.
    Update,
}

/// An axis that could explain it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suspect {
    /// As typed: `tp`, `cp`, …
    pub axis: &'static str,
    /// Why it is one.
    pub because: String,
    /// How well what it would break is what is off, from 0 to 1.
    pub score: f64,
    /// A command that trains this split beside one rank.
    pub rehearse: String,
}

/// Reads the first tensor that is off; `of_kind` are all tensors of its step and kind.
pub(super) fn suspects(
    old: &Subject,
    new: &Subject,
    first: &Apart,
    of_kind: &[&Apart],
    tolerance: f64,
) -> (Option<Fault>, Vec<Suspect>) {
    let begins = |apart: &Apart| old.receipt.evidence.tensors.iter().all(|stat| stat.step >= apart.step);
    let fault = match first.kind {
        TensorKind::Activation => Fault::Forward,
        TensorKind::ActivationGradient => Fault::Backward,
        TensorKind::Gradient => Fault::Reduction,
        TensorKind::Weight => Fault::Update,
    };
    // The first activation of a later step is off while all of the step before agreed.
    let fault = if fault == Fault::Forward && !begins(first) { Fault::Update } else { fault };
    let cases: Vec<&Case> = [&new.case, &old.case].into_iter().flatten().collect();
    let other = |case: &Case| cases.iter().find(|c| !std::ptr::eq(**c, case)).copied();
    let mut found: Vec<Suspect> = Vec::new();
    for case in &cases {
        for axis in split_axes(case, other(case)) {
            if found.iter().any(|suspect| suspect.axis == axis) {
                continue;
            }
            let judged = match fault {
                Fault::Forward => forward(case, axis, &first.path),
                Fault::Backward => backward(case, axis, &first.path),
                Fault::Reduction => reduction(case, axis, of_kind, tolerance),
                Fault::Update => update(case, axis),
            };
            if let Some((score, because)) = judged {
                found.push(Suspect { axis, because, score, rehearse: rehearse(case, axis) });
            }
        }
    }
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    let best = found.first().map_or(0.0, |suspect| suspect.score);
    // What explains less than half of what the best does is no suspect.
    found.retain(|suspect| suspect.score > 0.5 * best);
    (Some(fault), found)
}

/// Axes with several ranks that the other run splits otherwise; all of them where both are split alike.
fn split_axes(case: &Case, other: Option<&Case>) -> Vec<&'static str> {
    let degree = |case: &Case, axis: Axis| case.layout.degree(axis).get();
    let all: Vec<&'static str> = Axis::ALL.into_iter().filter(|axis| degree(case, *axis) > 1).map(Axis::name).collect();
    let unlike = |name: &&'static str| {
        let axis = Axis::ALL.into_iter().find(|axis| axis.name() == *name);
        axis.is_some_and(|axis| other.is_none_or(|other| degree(case, axis) != degree(other, axis)))
    };
    let apart: Vec<&'static str> = all.iter().copied().filter(unlike).collect();
    let mut out = if apart.is_empty() { all } else { apart };
    // Experts' replicas are an axis of their own only where experts are.
    out.retain(|axis| *axis != "edp" || case.table.rows.iter().any(|row| row.owner() == Owner::Expert));
    out
}

/// Blocks in forward order, each with its layer: `embedding`, `layers.3.attention`, `layers.3`, …
fn blocks(case: &Case) -> Vec<String> {
    let mut out = vec!["embedding".to_string()];
    let mut last: Option<String> = None;
    for row in &case.table.rows {
        let mut words = row.tensor.path.split('.');
        let (Some(kind), Some(index), Some(block)) = (words.next(), words.next(), words.next()) else { continue };
        if kind != "layers" && kind != "mtp" {
            continue;
        }
        let path = format!("{kind}.{index}.{block}");
        if last.as_ref() != Some(&path) && !out.contains(&path) {
            out.push(path.clone());
        }
        last = Some(path);
    }
    out
}

/// Whether an axis exchanges anything in a block.
fn touches(case: &Case, axis: &str, block: &str) -> bool {
    let cut_by = |wanted: Axis| move |row: &Row| row.cuts.iter().any(|cut| cut.axis == wanted);
    let inside = |is: &dyn Fn(&Row) -> bool| match block {
        "embedding" => case.table.rows.iter().filter(|row| row.tensor.place == Place::Embedding).any(is),
        _ => case.table.inside(block).any(is),
    };
    let mixer = block.rsplit('.').next().unwrap_or("");
    let runs_through_time =
        ["attention", "mamba", "recurrent", "gated_delta"].iter().any(|kind| mixer.starts_with(kind));
    match axis {
        "tp" => inside(&cut_by(Axis::Tp)),
        "ep" => inside(&cut_by(Axis::Ep)),
        "etp" => inside(&cut_by(Axis::Etp)),
        "cp" => runs_through_time,
        "pp" => is_first_of_a_stage(case, block),
        _ => false,
    }
}

/// Whether a block is the first behind a cut of the depth.
fn is_first_of_a_stage(case: &Case, block: &str) -> bool {
    let layer = |path: &str| path.strip_prefix("layers.")?.split('.').next()?.parse::<usize>().ok();
    let Some(index) = layer(block) else { return false };
    let starts = case.stages.chunks.iter().skip(1).any(|chunk| chunk.layers.start == index);
    starts && blocks(case).iter().find(|path| layer(path) == Some(index)).is_some_and(|first| first == block)
}

fn forward(case: &Case, axis: &'static str, path: &str) -> Option<(f64, String)> {
    let all = blocks(case);
    let first = all.iter().find(|block| touches(case, axis, block))?;
    // Of a layer's own path, its last block; of a block that is listed, itself.
    let is_it = first == path || first.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
    if !is_it && axis != "pp" {
        return None;
    }
    if axis == "pp" && !touches(case, axis, path) {
        return None;
    }
    let what = match axis {
        "tp" => "its matrices are cut over tp, and partial outputs are summed over it",
        "cp" => "keys, values or state go from one span of the sequence to the next over cp",
        "ep" => "tokens are dispatched to experts and combined over ep",
        "etp" => "experts' matrices are cut over etp, and partial outputs are summed over it",
        _ => "it is the first block behind a cut of the depth, which its input crosses",
    };
    Some((1.0, format!("`{path}` is the first block that {axis} touches: {what}")))
}

fn backward(case: &Case, axis: &'static str, path: &str) -> Option<(f64, String)> {
    let layer = |block: &String| block.split('.').take(2).collect::<Vec<_>>().join(".");
    // Backward enters from the end: the gradient of a layer's output is off where something behind it is.
    let behind: Vec<String> = {
        let all = blocks(case);
        let at = all.iter().position(|block| layer(block) == path || block == path)?;
        let last = all.iter().rposition(|block| layer(block) == path || block == path).unwrap_or(at);
        all.into_iter().skip(last + 1).collect()
    };
    let next = behind.first().map(layer);
    let touched = |block: &&String| touches(case, axis, block);
    match next {
        None => {
            (axis == "tp").then(|| (0.5, "the head is cut over tp, and its input's gradient is summed over it".into()))
        }
        Some(next) => {
            let of_next: Vec<&String> = behind.iter().filter(|block| layer(block) == next).collect();
            let block = of_next.iter().copied().find(touched)?;
            // A layer further on that it touches too agreed.
            let agrees = behind.iter().filter(|b| layer(b) != next).any(|b| touches(case, axis, b));
            let score = if agrees && axis != "pp" { 0.25 } else { 1.0 };
            Some((score, format!("`{block}` behind it exchanges gradients of its input over {axis}")))
        }
    }
}

/// Tensors whose gradients are summed over an axis.
fn summed(case: &Case, axis: &str, row: &Row) -> bool {
    let is_expert = row.owner() == Owner::Expert;
    let is_cut = |wanted: Axis| row.cuts.iter().any(|cut| cut.axis == wanted);
    let copies = row.chunks.iter().collect::<BTreeSet<_>>().len();
    match axis {
        "tp" => !is_expert && !is_cut(Axis::Tp) && (case.layout.sp || row.serves_own_heads()),
        "cp" | "dp" => !is_expert,
        "ep" => is_expert && is_cut(Axis::Ep),
        "etp" => is_expert && !is_cut(Axis::Etp),
        "edp" => is_expert,
        "pp" => copies > 1,
        _ => false,
    }
}

fn reduction(case: &Case, axis: &'static str, of_kind: &[&Apart], tolerance: f64) -> Option<(f64, String)> {
    let off: BTreeSet<&str> = of_kind.iter().filter(|a| a.difference > tolerance).map(|a| a.path.as_str()).collect();
    let seen: BTreeSet<&str> = of_kind.iter().map(|apart| apart.path.as_str()).collect();
    let rows = case.table.rows.iter().filter(|row| seen.contains(row.tensor.path.as_str()));
    let predicted: BTreeSet<&str> =
        rows.filter(|row| summed(case, axis, row)).map(|row| row.tensor.path.as_str()).collect();
    let both = predicted.intersection(&off).count();
    if both == 0 {
        return None;
    }
    let either = predicted.union(&off).count();
    let what = match axis {
        "tp" => "gradients of tensors that tp does not cut are off (each tensor rank has a part of them)",
        "cp" => "gradients of dense tensors are off (each span of the sequence has a part of them)",
        "dp" => "gradients of dense tensors are off (each replica has a part of them)",
        "edp" => "gradients of experts are off (each of their replicas has a part of them)",
        "etp" => "gradients of what every rank of an expert holds whole are off",
        "pp" => "gradients of what several stages hold a copy of are off",
        _ => "gradients of experts are off",
    };
    let because = format!("{both} of {} {what}, and {} others", predicted.len(), off.len() - both);
    Some((both as f64 / either as f64, because))
}

fn update(case: &Case, axis: &'static str) -> Option<(f64, String)> {
    let shards = case.layout.zero != layout::ZeroStage::Zero;
    match axis {
        "dp" | "edp" | "cp" if shards => {
            Some((1.0, format!("optimizer state is shared out over {axis}, and updated weights are gathered over it")))
        }
        "tp" => Some((0.6, "Muon makes matrices that tp cuts whole before it steps".to_string())),
        _ => None,
    }
}

/// The split along this axis alone, as it is typed.
fn rehearse(case: &Case, axis: &'static str) -> String {
    let asked = &case.asked.recipe;
    let mut words = vec!["shardwright".to_string(), "rehearse".to_string(), asked.recipe.clone()];
    for (flag, features) in [("--with", &asked.with), ("--without", &asked.without)] {
        if !features.is_empty() {
            let names: Vec<&str> = features.iter().map(|feature| feature.name()).collect();
            words.extend([flag.to_string(), names.join(",")]);
        }
    }
    let degree = |axis: Axis| case.layout.degree(axis).get().min(8).to_string();
    let flags: Vec<String> = match axis {
        "tp" if case.layout.sp => vec!["--tp".into(), degree(Axis::Tp), "--sp".into()],
        "tp" => vec!["--tp".into(), degree(Axis::Tp), "--no-sp".into()],
        "cp" => vec!["--cp".into(), degree(Axis::Cp)],
        "pp" => vec!["--pp".into(), degree(Axis::Pp)],
        "ep" => vec!["--ep".into(), degree(Axis::Ep)],
        "etp" => vec!["--tp".into(), degree(Axis::Etp), "--etp".into(), degree(Axis::Etp)],
        "edp" => vec!["--dp".into(), degree(Axis::Edp)],
        _ => vec!["--dp".into(), degree(Axis::Dp), "--zero".into(), case.layout.zero.name().into()],
    };
    words.extend(flags);
    diag::quote::typed_line(words)
}
