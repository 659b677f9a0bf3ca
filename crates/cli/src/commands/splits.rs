//! `splits`: the ownership table, and what no axis can fix.

use super::{layout_json, layout_text, legal, model_line, seams_text, shorten};
use crate::args::SplitsArgs;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, shape, wrap};
use diag::{Blame, Finding};
use layout::activations::{Exchange, StateContract, contracts, exchanges};
use layout::ownership::{OwnershipTable, Row};
use layout::rules::Quality;
use layout::{Axis, Layout, Mesh, Order};
use recipe::{Mixer, Place, Recipe};
use serde_json::{Value, json};
use units::{count, exact};

pub fn run(args: &SplitsArgs) -> Outcome {
    let (checked, layout) = legal(&args.recipe, &args.layout)?;
    let recipe = &checked.recipe;
    let table = OwnershipTable::new(recipe, &layout)?;
    let mesh = Mesh::new(&layout, Order::Megatron, recipe.uses(Mixer::Moe))?;
    let rank = args.rank.unwrap_or(0);
    if rank >= layout.world {
        let message = format!("rank {rank} is not among the {} ranks", layout.world);
        return Err(Finding::error("mesh/rank", Blame::Usage, "rank", message)
            .hint(format!("ranks are 0 to {}", layout.world - 1))
            .into());
    }
    let stage = args.rank.map(|rank| mesh.coordinates(rank).on(Axis::Pp) as usize);
    let rows: Vec<&Row> =
        table.rows.iter().filter(|row| stage.is_none_or(|stage| table.copies_on_stage(row, stage) > 0)).collect();
    let held = table.rank_params(&layout, &mesh, rank);
    let mut text = model_line(recipe) + "\n" + &layout_text(&layout, &checked) + &seams_text(&checked.seams);
    text += &rows_text(&rows, &layout, &mesh, rank, stage);
    text += &quality_text(&table);
    text += &exchange_text(&exchanges(recipe, &layout));
    text += &contract_text(&contracts(recipe));
    text += &negative_space(recipe, &table, &layout);
    text += &format!("\nrank {rank} holds {} parameters of {}\n", exact(held), exact(recipe.counts().all.total));
    let json = json!({
        "recipe": recipe.name, "layout": layout_json(&layout, &checked), "rank": rank, "rank_params": held,
        "tensors": rows.iter().map(|row| row_json(row, &layout, &mesh, rank)).collect::<Vec<_>>(),
        "collectives": exchanges(recipe, &layout), "state_contracts": contracts(recipe), "seams": checked.seams,
    });
    Ok(Report::new(text, json).with_findings(&checked.findings))
}

fn row_json(row: &Row, layout: &Layout, mesh: &Mesh, rank: u64) -> Value {
    let part = row.part(layout, &mesh.coordinates(rank));
    json!({
        "path": row.tensor.path, "logical": row.tensor.shape(), "per_rank": part.shape(), "split": row.split(),
        "rule": row.rule.id, "quality": row.rule.quality.name(), "role": row.tensor.role.name(),
        "dtype": row.tensor.dtype.name(), "optimizer": row.tensor.optimizer.name(),
        "surface": row.tensor.surface.name(), "family": row.tensor.family.key(), "chunks": row.chunks,
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
    let mut table =
        Table::new(&["tensor", "×", "logical", "per rank", "split", "state over", "steps", "chunks", "rule"])
            .right(&[1]);
    for (_, cells, times, mut chunks) in lines {
        chunks.sort_unstable();
        chunks.dedup();
        let [path, logical, per_rank, split, state, steps, rule] = <[String; 7]>::try_from(cells).unwrap_or_default();
        table.row([path, times.to_string(), logical, per_rank, split, state, steps, ranges(&chunks), rule]);
    }
    heading(&title) + &table.render()
}

/// `0`, `0-3`, `0,2`: chunks as people write them.
fn ranges(numbers: &[usize]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut i = 0;
    while i < numbers.len() {
        let run = (i..numbers.len()).take_while(|&j| numbers[j] == numbers[i] + (j - i)).count();
        out.push(if run > 1 { format!("{}-{}", numbers[i], numbers[i] + run - 1) } else { numbers[i].to_string() });
        i += run;
    }
    shorten(&out.join(","), 20)
}

/// Which state is shared out, over how many replicas: `o/8`, `go/8`, `wgo/8`.
fn state_text(row: &Row) -> String {
    let shards = row.shards;
    let kinds = [("w", shards.weights), ("g", shards.gradients), ("o", shards.optimizer)];
    let letters: String = kinds.iter().filter(|(_, n)| *n > 1).map(|(letter, _)| *letter).collect();
    if letters.is_empty() { "–".to_string() } else { format!("{letters}/{} {}", shards.optimizer, shards.axis) }
}

fn quality_text(table: &OwnershipTable) -> String {
    let mut rules: Vec<_> = table.rows.iter().map(|row| row.rule).collect();
    rules.sort_by_key(|r| (r.quality, r.id));
    rules.dedup_by_key(|r| r.id);
    let mut out = Table::new(&["rule", "quality", "why", "what the split cannot fix"]);
    for rule in rules {
        out.row([rule.id, rule.quality.name(), rule.why, rule.cannot_fix]);
    }
    heading("How well it splits") + &out.render()
}

fn exchange_text(exchanges: &[Exchange]) -> String {
    if exchanges.is_empty() {
        return String::new();
    }
    let mut out =
        Table::new(&["axis", "where", "forward", "backward", "elements", "×", "members agree on"]).right(&[4, 5]);
    for e in exchanges {
        out.row([e.axis, &e.place, e.forward, e.backward, &count(e.elements), &e.count.to_string(), e.agree]);
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

/// What stays whole on every rank, and what no axis changes.
fn negative_space(recipe: &Recipe, table: &OwnershipTable, layout: &Layout) -> String {
    let replicated: u64 =
        table.rows.iter().filter(|r| r.rule.quality == Quality::Replicated).map(|r| r.tensor.elements()).sum();
    let share = 100.0 * replicated as f64 / recipe.counts().all.total as f64;
    let share = if share < 0.1 { "under 0.1%".to_string() } else { format!("{share:.1}%") };
    let mut lines = vec![format!(
        "{} parameters ({share}) are whole on every rank that owns their layer: norms, routers, latents and helpers; \
         tp, sp, cp and ep leave them alone.",
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
    let body: String = lines.iter().map(|line| wrap(line, "  ", 110)).collect();
    heading("What no axis can fix") + &body
}
