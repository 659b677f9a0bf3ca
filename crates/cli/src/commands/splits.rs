//! `splits`: the ownership table, and what no axis can fix.

mod holders;

use super::{case_text, layout_json, shorten, split_case};
use crate::args::SplitsArgs;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, shape, wrap};
use diag::{Blame, Finding};
use layout::activations::{Exchange, StateContract, contracts, exchanges};
use layout::ownership::{Owner, OwnershipTable, Row};
use layout::rules::{Quality, STATE_SURFACES};
use layout::{Axis, Layout, Mesh, Order};
use recipe::{Mixer, Place, Recipe};
use serde_json::{Value, json};
use units::{count, exact};

/// Rows as JSON are built where they are wanted only: a model of many layers has more of them than text.
pub fn run(args: &SplitsArgs, wants_json: bool) -> Outcome {
    let case = split_case(&args.recipe, &args.layout)?;
    let (recipe, layout, table) = (&case.recipe, &case.layout, &case.table);
    let mesh = Mesh::new(layout, Order::Megatron, recipe.uses(Mixer::Moe))?;
    let rank = args.rank.unwrap_or(0);
    if rank >= layout.world {
        let message = format!("rank {rank} is not among the {} ranks", layout.world);
        return Err(Finding::error("mesh/rank", Blame::Usage, "rank", message)
            .hint(format!("ranks are 0 to {}", layout.world - 1))
            .into());
    }
    if let Some(path) = &args.tensor {
        return holders::run(path, &case, &mesh);
    }
    let stage = args.rank.map(|rank| mesh.coordinates(rank).on(Axis::Pp) as usize);
    let rows: Vec<&Row> =
        table.rows.iter().filter(|row| stage.is_none_or(|stage| table.copies_on_stage(row, stage) > 0)).collect();
    let held = table.rank_params(layout, &mesh, rank);
    let mut text = case_text(&case);
    text += &rows_text(&rows, layout, &mesh, rank, stage);
    text += &quality_text(recipe, table);
    text += &exchange_text(&exchanges(recipe, layout, table));
    text += &contract_text(&contracts(recipe, layout));
    let negative = negative_space(recipe, table, layout);
    text += &heading("What no axis can fix");
    text += &negative.iter().map(|line| wrap(line, "  ", 110)).collect::<String>();
    text += &format!("\nrank {rank} holds {} parameters of {}\n", exact(held), exact(recipe.counts().all.total));
    let mut json = json!({
        "recipe": recipe.name, "layout": layout_json(layout, &case.defaults), "rank": rank, "rank_params": held,
        "tensors": [],
        "collectives": exchanges(recipe, layout, table), "state_contracts": contracts(recipe, layout), "seams": case.seams,
        "split_quality": quality_json(recipe, table), "no_axis_can_fix": negative,
    });
    if wants_json {
        json["tensors"] = rows.iter().map(|row| row_json(row, table, layout, &mesh, rank)).collect();
    }
    Ok(Report::new(text, json).with_findings(&case.findings))
}

fn row_json(row: &Row, table: &OwnershipTable, layout: &Layout, mesh: &Mesh, rank: u64) -> Value {
    let at = mesh.coordinates(rank);
    let part = row.part(layout, &at);
    let ranges = |dim: &Vec<std::ops::Range<u64>>| dim.iter().map(|r| [r.start, r.end]).collect::<Vec<_>>();
    let segment =
        |s: &recipe::Segment| json!({ "name": s.name, "unit": s.unit.name(), "count": s.count, "size": s.size });
    let units: Vec<Vec<Value>> = row.tensor.dims.iter().map(|d| d.0.iter().map(segment).collect()).collect();
    json!({
        "path": row.tensor.path, "logical": row.tensor.shape(), "per_rank": part.shape(), "split": row.split(),
        "rule": row.rule.id, "quality": row.rule.quality.name(), "role": row.tensor.role.name(),
        "dtype": row.tensor.dtype.name(), "optimizer": row.tensor.optimizer.name(),
        "surface": row.tensor.surface.name(), "family": row.tensor.family.key(), "chunks": row.chunks,
        "copies": table.copies_on_stage(row, at.on(Axis::Pp) as usize), "holds": row.holds(layout, &at),
        "part": part.dims.iter().map(ranges).collect::<Vec<_>>(), "units": units,
        "state_over": { "axis": row.shards.axis.name(), "weights": row.shards.weights,
            "gradients": row.shards.gradients, "optimizer": row.shards.optimizer },
    })
}

/// A tensor's path with the layer left out, so that equal layers share a line.
fn family_path(row: &Row) -> String {
    match row.tensor.place {
        Place::Layer(index) => row.tensor.path.replacen(&format!("layers.{index}."), "", 1),
        Place::Mtp(index) => row.tensor.path.replacen(&format!("mtp.{index}."), "mtp.*.", 1),
        _ => row.tensor.path.clone(),
    }
}

fn rows_text(rows: &[&Row], layout: &Layout, mesh: &Mesh, rank: u64, stage: Option<usize>) -> String {
    let at = mesh.coordinates(rank);
    let mut lines: Vec<(String, Vec<String>, u64, Vec<usize>)> = Vec::new();
    for row in rows {
        let cells = vec![
            family_path(row),
            shape(&row.tensor.shape()),
            shape(&row.part(layout, &at).shape()),
            row.split(),
            state_text(row),
            row.tensor.optimizer.name().to_string(),
            row.rule.id.to_string(),
            if stage.is_some() { shorten(&row.holds(layout, &at), 40) } else { String::new() },
        ];
        match lines.iter_mut().find(|line| line.1 == cells) {
            Some(line) => {
                line.2 += 1;
                line.3.extend(&row.chunks);
            }
            None => lines.push((family_path(row), cells, 1, row.chunks.clone())),
        }
    }
    let title = match stage {
        Some(stage) => format!("Ownership on rank {rank} (stage {stage})"),
        None => "Ownership".to_string(),
    };
    let holds = if stage.is_some() { "holds" } else { "" };
    let head = ["tensor", "×", "logical", "per rank", "split", "state over", "steps", "chunks", "rule", holds];
    let mut table = Table::new(&head).right(&[1]).spare(&[&[7], &[6], &[5], &[2]]);
    for (_, cells, times, mut chunks) in lines {
        chunks.sort_unstable();
        chunks.dedup();
        let [path, logical, per_rank, split, state, steps, rule, holds] =
            <[String; 8]>::try_from(cells).unwrap_or_default();
        table.row([
            path,
            times.to_string(),
            logical,
            per_rank,
            split,
            state,
            steps,
            shorten(&super::ranges(&chunks), 20),
            rule,
            holds,
        ]);
    }
    heading(&title) + &table.render()
}

/// Which state is shared out, over how many replicas: `o/8`, `go/8`, `wgo/8`.
fn state_text(row: &Row) -> String {
    let shards = row.shards;
    let kinds = [("w", shards.weights), ("g", shards.gradients), ("o", shards.optimizer)];
    let letters: String = kinds.iter().filter(|(_, n)| *n > 1).map(|(letter, _)| *letter).collect();
    if letters.is_empty() { "–".to_string() } else { format!("{letters}/{} {}", shards.optimizer, shards.axis) }
}

/// One line of the quality table: surface or rule, parameters, quality, why, what it cannot fix.
type QualityLine = (&'static str, u64, Quality, &'static str, &'static str);

/// Every rule in use with the parameters it decides, then the surfaces that are no tensors.
fn quality_lines(recipe: &Recipe, table: &OwnershipTable) -> Vec<QualityLine> {
    let mut lines: Vec<QualityLine> = Vec::new();
    for row in &table.rows {
        let elements = row.tensor.elements();
        match lines.iter_mut().find(|line| line.0 == row.rule.id) {
            Some(line) => line.1 += elements,
            None => lines.push((row.rule.id, elements, row.rule.quality, row.rule.why, row.rule.cannot_fix)),
        }
    }
    lines.sort_by_key(|line| (line.2, line.0));
    let state = STATE_SURFACES.iter().filter(|surface| (surface.applies)(recipe));
    lines.extend(state.map(|s| (s.name, 0, s.quality, s.why, s.cannot_fix)));
    lines
}

fn quality_text(recipe: &Recipe, table: &OwnershipTable) -> String {
    let mut out = Table::new(&["rule or surface", "parameters", "quality", "why", "what the split cannot fix"])
        .right(&[1])
        .spare(&[&[4]]);
    for (name, elements, quality, why, cannot_fix) in quality_lines(recipe, table) {
        let elements = if elements == 0 { String::new() } else { count(elements) };
        out.row([name, &elements, quality.name(), why, cannot_fix]);
    }
    heading("How well it splits") + &out.render()
}

fn quality_json(recipe: &Recipe, table: &OwnershipTable) -> Vec<Value> {
    let line = |(name, params, quality, why, cannot_fix): QualityLine| json!({ "name": name, "params": params, "quality": quality.name(), "why": why, "cannot_fix": cannot_fix });
    quality_lines(recipe, table).into_iter().map(line).collect()
}

fn exchange_text(exchanges: &[Exchange]) -> String {
    if exchanges.is_empty() {
        return String::new();
    }
    let mut out = Table::new(&["axis", "where", "forward", "backward", "elements", "×", "members agree on"])
        .right(&[4, 5])
        .spare(&[&[6]]);
    for e in exchanges {
        out.row([
            e.axis.name(),
            &e.place,
            e.forward.name(),
            e.backward.name(),
            &count(e.elements),
            &e.count.to_string(),
            e.agree,
        ]);
    }
    heading("What moves, and its transpose (elements a rank puts in, a microbatch)") + &out.render()
}

fn contract_text(contracts: &[StateContract]) -> String {
    if contracts.is_empty() {
        return String::new();
    }
    let mut out =
        Table::new(&["mixer", "blocks", "state a sequence", "conv tail", "under cp", "under pp"]).right(&[1, 2, 3]);
    for c in contracts {
        let (state, tail) = (exact(c.state_elements), exact(c.conv_elements));
        out.row([c.mixer, &c.blocks.to_string(), &state, &tail, c.under_cp, c.under_pp]);
    }
    heading("State contracts") + &out.render()
}

/// What stays whole on every rank, and what no axis changes, a sentence each.
fn negative_space(recipe: &Recipe, table: &OwnershipTable, layout: &Layout) -> Vec<String> {
    let replicated: u64 = (0..layout.pp.get() as usize)
        .flat_map(|stage| table.owned(layout, stage, Owner::Replicated))
        .map(|(_, elements)| elements)
        .sum();
    let share = 100.0 * replicated as f64 / recipe.counts().all.total as f64;
    let share = if share < 0.1 { "under 0.1%".to_string() } else { format!("{share:.1}%") };
    let mut lines = vec![format!(
        "{} parameters ({share}) are whole on every rank that owns their layer, at any degree: norms, routers, \
         latents and helpers; tp, sp, cp and ep leave them alone. `fit` and `fit --serve` call them replicated, and \
         what is whole only because its axis has one rank here by that axis.",
        count(replicated)
    )];
    if recipe.uses(Mixer::Moe) {
        lines.push(
            "Routing is live: no axis balances tokens between experts, and ep does not shrink dense blocks."
                .to_string(),
        );
    }
    if recipe.layers.iter().flat_map(|l| l.mixers()).any(Mixer::carries_state) {
        lines.push(
            "Recurrent state has a contract, not an axis: tp cuts its heads, cp only with state or heads exchanged."
                .to_string(),
        );
    }
    if layout.pp.splits() {
        lines.push("Stages own depth only: embedding, head and loss stay on the edges whatever pp is.".to_string());
    }
    lines
}
